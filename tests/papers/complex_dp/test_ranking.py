"""The comparison of activations: fair splits and budgets, honest statistics, and what is kept of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import binomtest

from papers.complex_dp import activation_inputs as inputs
from papers.complex_dp import compare_activations as activations
from papers.complex_dp import ranking
from zetadp.nn.activations import ACTIVATIONS

ROOT = Path(__file__).parents[3]


def scores(**shift: float) -> pd.DataFrame:
    """Return scores of ten seeds that follow the paper's order, those of some activations shifted in every task."""
    random = np.random.default_rng(0)
    rows = []
    for task, epsilon in (("speech", "1.47"), ("k-space", "8")):
        for seed, (place, name) in product(range(10), enumerate(ranking.NAMES)):
            score = ranking.PAPER.get(name, 60 + place) + shift.get(name, 0) + 0.1 * random.normal()
            row = {"task": task, "activation": name, "epsilon": epsilon, "rate": 0.01, "seed": seed}
            rows.append({**row, "spent": float(epsilon), "score": score})
    return pd.DataFrame(rows)


def test_every_activation_has_a_name_and_those_of_the_paper_their_printed_area():
    assert set(ranking.NAMES) == set(ACTIVATIONS)
    assert set(ranking.PAPER) == set(ACTIVATIONS) - {"conj_mish", "split_mish", "complex_tanh"}
    assert list(ranking.PAPER.values()) == sorted(ranking.PAPER.values())


def test_ten_seeds_can_reach_five_percent_after_correction_and_five_cannot():
    own = ranking.by_seed(scores(crelu=5), "speech")
    every = ranking.paired(own, "crelu")
    assert len(every) == 12
    # A difference of one sign in all of ten seeds, twelve times.
    assert every.to_numpy() == pytest.approx(12 * binomtest(10, 10).pvalue)
    assert (every < ranking.SIGNIFICANT).all()
    assert (ranking.paired(own.head(5), "crelu") > ranking.SIGNIFICANT).all()


def test_agreement_is_one_for_the_papers_order_and_minus_one_for_its_reverse():
    own = ranking.by_seed(scores(), "speech")
    found = ranking.agreement(own)
    assert found["tau"] > 0.9
    assert found["tau_low"] - 1e-9 <= found["tau"] <= found["tau_high"] + 1e-9
    assert found["p"] < 0.001
    assert ranking.agreement(-own)["tau"] == pytest.approx(-found["tau"])


@pytest.fixture
def items():
    """Return items of 40 people with four classes each, which differ in their means."""
    random = torch.Generator().manual_seed(0)
    labels = np.tile(np.arange(4), 40)
    means = torch.randn(4, 1, 4, 4, dtype=torch.complex64, generator=random)
    noise = torch.randn(160, 1, 4, 4, dtype=torch.complex64, generator=random)
    return inputs.Items(means[labels] + 0.3 * noise, labels, np.repeat(np.arange(40), 4), 0.25)


def test_a_split_is_by_people_and_a_function_of_the_seed(items):
    train, test = items.split(3)
    assert sorted([*train, *test]) == list(range(160))
    assert not set(items.people[train]) & set(items.people[test])
    assert len(set(items.people[test])) == 10
    assert np.array_equal(items.split(3)[1], test)
    assert not np.array_equal(items.split(4)[1], test)


@pytest.fixture
def comparison(items):
    """Return the comparison on k-space with a smaller network, fewer rounds and other items."""
    own = activations.comparisons()[1]
    network = replace(own.network, widths=(4, 3))
    return replace(own, network=network, training=replace(own.training, rounds=3), inputs=lambda: (items, items))


@pytest.mark.parametrize("name", ["complex_tanh", "modrelu_per_channel"])
def test_a_run_spends_the_epsilon_that_all_spend(comparison, items, name):
    found = activations.trained(comparison, items, activations.Run("k-space", "private", name, "8", 0.03, 0))
    assert 0.99 * 8 < found["spent"] <= 8
    assert 0 <= found["score"] <= 100


# The stored results


def kept(name: str) -> pd.DataFrame:
    return pd.read_csv(ROOT / f"papers/complex_dp/results/activations/{name}.csv", comment="#", dtype={"epsilon": str})


def finished() -> list:
    """Return the comparisons whose results are stored."""
    there = set(kept("table")["task"])
    found = [own for own in activations.comparisons() if own.name in there]
    assert found
    assert len(found) == len(there)
    return found


def test_the_stored_rates_are_the_best_of_an_equal_public_search():
    search, every = kept("search"), kept("scores")
    for own in finished():
        tried = search[search["task"] == own.name]
        assert set(tried["seeds"]) == {len(activations.TUNING_SEEDS)}
        for name, rows in tried.groupby("activation"):
            assert rows["rate"].tolist() == list(activations.RATES)
            best = rows.loc[rows["mean"].idxmax(), "rate"]
            assert set(every[(every["task"] == own.name) & (every["activation"] == name)]["rate"]) == {best}


def test_the_stored_table_and_order_follow_from_the_stored_scores():
    every = kept("scores")
    pd.testing.assert_frame_equal(ranking.table(every), kept("table"), rtol=1e-3, atol=5e-4, check_dtype=False)
    pd.testing.assert_frame_equal(ranking.order(every), kept("order"), rtol=1e-4, check_dtype=False)
