"""What is kept of the experiments on released rows agrees with its claims, with the programs, and with the page."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from papers.neuromixgdp import compare_mnist, sweep_rows

ROOT = Path(__file__).parents[3]
KEPT = ROOT / "papers/neuromixgdp/results"


def kept(name: str) -> pd.DataFrame:
    return pd.read_csv(KEPT / f"{name}.csv", comment="#")


def test_every_release_cost_what_its_column_says():
    table = kept("mnist")
    assert (table["spent"] <= 1.0005 * table["epsilon"]).all()
    assert (table["spent"] >= 0.99 * table["epsilon"]).all(), "a budget that is not used makes a method look worse"


def test_the_table_has_the_runs_that_are_declared():
    wanted = pd.DataFrame([vars(run) for run in compare_mnist.wanted()])
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


def test_no_attack_proves_more_than_is_claimed_and_some_prove_much():
    members = kept("membership")
    private = members[members["claimed"] < math.inf]
    assert (private["proved"] <= private["claimed"]).all()
    alone = private[private["how"].str.contains("nobody else")].set_index(["how", "claimed"])
    assert (alone["seen"] > 0.7 * alone.index.get_level_values("claimed")).all(), "the attack is near what is possible"
    assert (alone["proved"][alone.index.get_level_values("claimed") > 7] > 3).all()


def test_inversion_works_where_it_must_and_noise_hides_members():
    ranks = kept("inversion").set_index(["features", "degree", "epsilon"])["rank"]
    for features in ("pixels", "encoder"):
        assert ranks[features, 1, math.inf] > 99
        assert ranks[features, 1, math.inf] > ranks[features, 1, 8.0] > ranks[features, 1, 1.0]
        assert abs(ranks[features, 64, 1.0] - 50) < 8  # more than four standard errors of the mean of 300 ranks


@pytest.mark.parametrize("method", ["rows", "open_rows", "means", "moments", "merf", "gradients"])
def test_the_pages_show_what_the_table_holds(method):
    row = kept("mnist").query("data == 'mnist'").set_index(["kind", "method", "epsilon"]).loc["encoder", method, 1.0]
    shown = f"{row['mean']:.2f} ± {row['std']:.2f}" if row["seeds"] > 1 else f"{row['mean']:.2f}"
    assert shown in (ROOT / "papers/neuromixgdp/README.md").read_text()


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
