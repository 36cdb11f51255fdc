"""The kept table of directions agrees with an independent calculation, and the page with the table."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from papers.directions import tabulate_capacity

ROOT = Path(__file__).parents[3]
# An independent calculation, whose columns are named as those of the kept table, with its part before the colon.
OF_DIRECTIONS = pd.read_csv(Path(__file__).with_name("independent_directions.csv"), index_col="kappa")
OF_NOISE = pd.read_csv(Path(__file__).with_name("independent_gaussian.csv"), index_col="sigma")
TABLE = pd.read_csv(ROOT / "papers/directions/results/table.csv", comment="#")
PAGE = (ROOT / "papers/directions/README.md").read_text()


def part(name: str) -> pd.DataFrame:
    return TABLE[TABLE["part"] == name].dropna(axis="columns", how="all")


def test_the_program_makes_what_is_kept(monkeypatch):
    for name in ("TABLE_1", "TABLE_4"):
        monkeypatch.setattr(tabulate_capacity, name, {150: getattr(tabulate_capacity, name)[150]})
    for name in ("printed_directions", "like_for_like", "capacities"):
        made = getattr(tabulate_capacity, name)().set_index("kappa")
        kept = part(name).set_index("kappa").loc[made.index, made.columns]
        pd.testing.assert_frame_equal(kept, made, rtol=1e-3, check_dtype=False, check_index_type=False)


# How far a kept figure may lie from the independent one: lowest and highest ratio, and half a unit of what is printed.
WITHIN = {
    "printed_directions:table_1": (1, 1),
    "printed_directions:table_4": (1, 1),
    # The other calculation minimises the first approach over whole and half orders only, which costs up to 1.4 %.
    "printed_directions:first_approach": (0.985, 1.003),
    "printed_directions:second_approach": (0.998, 1.002),
    "printed_directions:second_whole_orders": (0.998, 1.002),
    "printed_directions:true_epsilon_3_steps": (0.988, 1.012),
    "like_for_like:equivalent_sigma": (1, 1, 6e-5),
    "like_for_like:true_epsilon": (0.985, 1.001),
    "like_for_like:gaussian_epsilon": (0.9985, 1.0015),
    "like_for_like:second_approach": (0.997, 1.003),
    "capacities:direction": (1, 1, 6e-4),
    "printed_gaussian:printed": (1, 1),
    # Both programs take the same orders; at fractional ones they differ by up to 0.3 %.
    "printed_gaussian:renyi_1407_steps": (0.9965, 1.0035),
    "printed_gaussian:renyi_3_steps": (0.998, 1.002),
    # The grid of the other calculation is coarse where epsilon is small, and bounds it from above.
    "printed_gaussian:true_epsilon": (0.98, 1.001),
    # By Renyi privacy up to order 63 the concentration at the most noise came out larger.
    "printed_gaussian:equally_private_kappa": (0.982, 1.001),
    **{f"capacities:radius_{name}": (1 - 3.3e-5, 1 + 3.3e-5, 3e-3) for name in ("1", "root 3", "3", "128", "384")},
}


@pytest.mark.parametrize("column", WITHIN)
def test_kept_figures_are_those_of_an_independent_calculation(column):
    other = OF_DIRECTIONS if column in OF_DIRECTIONS else OF_NOISE
    place, _, name = column.partition(":")
    found = part(place).dropna(subset=[other.index.name]).set_index(other.index.name)[name]
    assert list(found.index) == list(other.index)
    assert (found.isna() == other[column].isna()).all()
    expected, (low, high, *rounding) = other[column].dropna(), WITHIN[column]
    slack = rounding[0] if rounding else 1e-12
    assert found.dropna().between(low * expected - slack, high * expected + slack).all()


def test_the_pages_example_runs():
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    names: dict = {}
    exec(example, names)
    assert 7.9 < names["spent"] <= 8
    assert names["leaked"] > 0 < names["other"]
    assert names["released"].shape == names["gradient"].shape
