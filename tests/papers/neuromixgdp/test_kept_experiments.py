"""What is kept of the experiments on released rows agrees with its claims, with the programs, and with the page."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest
import torch

from papers.neuromixgdp import compare_mnist, compare_regimes, sweep_rows
from zetadp.nn.heads import RowExamples

ROOT = Path(__file__).parents[3]
KEPT = ROOT / "papers/neuromixgdp/results"


def kept(name: str) -> pd.DataFrame:
    return pd.read_csv(KEPT / f"{name}.csv", comment="#")


def test_the_table_has_the_runs_that_are_declared():
    wanted = pd.DataFrame([vars(run) for run in compare_mnist.all_runs()])
    wanted = wanted[~wanted["method"].str.startswith("long")]
    cells = ["data", "kind", "method", "epsilon"]
    expected = wanted.groupby(cells).size()
    found = kept("mnist").set_index(cells)["seeds"]
    assert found.sort_index().to_dict() == expected.sort_index().to_dict()


def test_the_chosen_settings_are_the_best_of_the_search():
    search = kept("search")
    for method, names in (("moments", ["directions"]), ("merf", ["length"]), ("gradients", ["rate"])):
        own = search[search["method"] == method]
        best = own.loc[own["accuracy"].idxmax()]
        assert {name: best[name] for name in names} == {name: getattr(compare_mnist.CHOSEN, name) for name in names}


def test_the_sweep_has_its_seeds_and_shares_spread_as_the_law_of_open_rows_says():
    table = kept("sweep")
    values = [(name, value) for name, swept in sweep_rows.SWEPT.items() for value in swept]
    assert list(table[["setting", "value"]].itertuples(index=False, name=None)) == values
    assert set(table["seeds"]) == {len(sweep_rows.SEEDS)}
    for row in table.dropna().itertuples():
        mixed, active = (row.value, 1.0) if row.setting == "degree" else (sweep_rows.MIXED, row.value)
        people, chance = sweep_rows.PEOPLE / 10, mixed / sweep_rows.PEOPLE / active
        square = people * chance * (1 - chance + people * chance)
        expected = math.sqrt(active * square - (active * people * chance) ** 2) / mixed
        assert row.share_std == pytest.approx(expected, rel=0.03)


def test_rows_of_several_holders_have_the_noise_of_their_second_moments():
    releases = [
        RowExamples(torch.ones(rows, 2) * rows, torch.ones(rows, 3), noise) for rows, noise in ((2, 0.5), (6, 1.0))
    ]
    together = compare_regimes.join_releases(releases)
    assert together.features[:, 0].tolist() == [2] * 2 + [6] * 6
    assert together.labels.shape == (8, 3)
    assert 8 * together.noise == 2 * 0.5 + 6 * 1.0
