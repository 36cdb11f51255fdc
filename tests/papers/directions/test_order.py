"""What is kept of attacks across mechanisms: pages show what the tables hold."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.integrate import quad
from scipy.special import gamma

from papers.directions import rank_capacity

ROOT = Path(__file__).parents[3]


def kept(name: str) -> pd.DataFrame:
    return pd.read_csv(ROOT / f"papers/directions/results/{name}.csv", comment="#")


@pytest.mark.parametrize(("epsilon", "radius"), [(0.5, 1.0), (3.0, 2.0), (8.0, 4.0)])
def test_the_capacity_of_the_third_mechanism_is_the_integral_that_defines_it(epsilon, radius):
    sphere, factor = 4 * math.pi, epsilon**3 / (4 * math.pi * gamma(3))
    outside = quad(lambda r: sphere * r**2 * math.exp(-epsilon * (r - radius)), radius, np.inf)[0]
    expected = math.log(factor * (sphere * radius**3 / 3 + outside))
    assert rank_capacity.norm_capacity(epsilon, radius, 3) == pytest.approx(expected)


def test_correlations_follow_from_the_kept_errors():
    table = kept("order")
    assert len(table) == len(rank_capacity.settings()) * rank_capacity.MESSAGES
    shown = (ROOT / "papers/directions/README.md").read_text()
    for row in rank_capacity.correlations(table).to_dict("records"):
        assert f"{row['rank']:.2f}" in shown
    right, pairs = rank_capacity.ordered_pairs(table)
    assert f"In {right} of {pairs}" in shown
    # A capacity that says nothing of the mechanism orders about half of them.
    shuffled = table.assign(capacity=table["mechanism"].map({"gaussian": 1.0, "norm": 2.0, "direction": 3.0}))
    assert rank_capacity.ordered_pairs(shuffled)[0] < right


def test_the_attack_works_where_there_is_little_noise():
    table = kept("order")
    easy = table[(table["epsilon"] == 4096) & (table["mechanism"] == "gaussian") & (table["clip"] == 0.1)]
    assert easy[easy["batch"] == 1]["nmse"].mean() < 0.1
    assert table[table["epsilon"] == 1]["nmse"].mean() > 0.9
