"""The kept tables of the release's privacy agree with an independent calculation, and the page with them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from papers.neuromixgdp import tabulate_accounting

ROOT = Path(__file__).parents[3]
TABLE = pd.read_csv(ROOT / "papers/neuromixgdp/results/accounting.csv", comment="#")
INDEPENDENT = pd.read_csv(Path(__file__).with_name("independent.csv"))
KEYS = ["printed_epsilon", "class_rate", "mixed", "records"]


def part(name: str, table: pd.DataFrame = TABLE) -> pd.DataFrame:
    return table[table["part"] == name].dropna(axis="columns", how="all")


@pytest.mark.parametrize(
    ("name", "few", "keys"),
    [
        ("poisson", {"EPSILONS": (0.5, 8.0)}, ["printed_epsilon"]),
        ("hierarchical", {"EPSILONS": (1.0,)}, ["printed_epsilon", "class_rate"]),
        ("convergence", {"ROUNDS": (10, 1000)}, ["rounds"]),
        ("row_noise", {"DEGREES": (64,)}, ["mixed"]),
        ("best_degrees", {"EPSILONS": (1.0,)}, ["records", "printed_epsilon"]),
    ],
)
def test_the_program_makes_what_is_kept(name, few, keys, monkeypatch):
    for constant, values in few.items():
        monkeypatch.setattr(tabulate_accounting, constant, values)
    made = getattr(tabulate_accounting, name)().set_index(keys)
    kept = part(name).set_index(keys).loc[made.index]
    pd.testing.assert_frame_equal(kept[made.columns], made, rtol=1e-3, check_dtype=False, check_index_type=False)


@pytest.mark.parametrize(
    ("name", "column", "within"),
    [
        ("poisson", "printed_mu", {"abs": 6e-6}),
        ("poisson", "printed_noise", {"abs": 6e-5}),
        ("poisson", "renyi_epsilon", {"abs": 1.2e-3}),
        ("poisson", "needed_noise", {"rel": 3e-3}),
        ("hierarchical", "true_epsilon", {"rel": 3e-3}),
        ("hierarchical", "safe_limit_noise", {"rel": 5e-4}),
        *(("row_noise", f"{kind}_row_noise", {"rel": 2e-3}) for kind in ("printed", "uniform", "true", "renyi")),
        ("best_degrees", "printed_mu", {"abs": 6e-6}),
        ("best_degrees", "best_mixed", {"abs": 0.06}),
        ("best_degrees", "true_epsilon", {"rel": 3e-3}),
    ],
)
def test_kept_figures_are_those_of_an_independent_calculation(name, column, within):
    other = part(name, INDEPENDENT)
    keys = [key for key in KEYS if key in other]
    found, expected = part(name).set_index(keys)[column], other.set_index(keys)[column].dropna()
    assert len(found) == len(other)
    assert found[expected.index].to_dict() == pytest.approx(expected.to_dict(), **within)
