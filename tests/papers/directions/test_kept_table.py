"""The kept table of directions agrees with an independent calculation, and the page with the table."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest
from direction_figures import DIMENSION, OF_DIRECTIONS, OF_NOISE, SPEARMAN

from papers.directions import tabulate_capacity

ROOT = Path(__file__).parents[3]
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
    # More orders can only lower a Renyi figure.
    "like_for_like:renyi_epsilon": (0.96, 1.003),
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


def test_the_pairs_of_the_paper_are_not_equal_and_ways_of_counting_are_in_order():
    pairs, directions = part("printed_gaussian"), part("like_for_like")
    assert (pairs["true_epsilon_of_it"] > 1.6 * pairs["true_epsilon"]).all()
    assert (pairs["equally_private_kappa"] * pairs["sigma"] / (DIMENSION**0.5 / 2)).between(0.999, 1.001).all()
    assert (directions["true_epsilon"] / directions["gaussian_epsilon"]).between(0.997, 1.003).all()
    assert (directions["true_epsilon"] < directions["renyi_epsilon"]).all()
    assert (directions["renyi_epsilon"] < directions["second_approach"]).all()


def test_at_equal_epsilon_gaussian_noise_leaks_more_and_points_nearer():
    found = part("equal_epsilon")
    assert list(found["true_epsilon"]) == [0.5, 1, 2, 4, 8]
    assert (found["kappa"] * found["sigma"] / (DIMENSION**0.5 / 2)).tolist() == pytest.approx([1] * 5, rel=2e-3)
    assert (found["gaussian_capacity_1"] / found["direction_capacity"]).tolist() == pytest.approx([2] * 5, rel=2e-3)
    assert (found["gaussian_capacity_128"] > 100 * found["direction_capacity"]).all()
    assert found["even_norm"].tolist() == pytest.approx([1 / 256] * 5, rel=2e-3)


def test_at_equal_capacity_epsilons_differ():
    found = part("equal_capacity")
    for radius in (1, 128):
        rows = found[found["radius"].astype(float) == radius]
        assert rows[f"gaussian_capacity_{radius}"].tolist() == pytest.approx(rows["capacity"].tolist(), rel=1e-5)
        assert rows["direction_capacity"].tolist() == pytest.approx(rows["capacity"].tolist(), rel=1e-5)
        assert (rows["direction_epsilon"] > 2 * rows["gaussian_epsilon"]).all()
        assert rows["even_norm"].tolist() == pytest.approx([radius / 128] * 5, rel=0.01)


def test_the_papers_claim_on_its_own_errors():
    found = part("claim").set_index("predictor")
    own = found.drop("true epsilon")
    for data in ("MNIST", "Fashion-MNIST"):
        assert own[f"spearman_{data}"].tolist() == pytest.approx(SPEARMAN, abs=6e-4)


def test_the_page_shows_what_the_table_holds():
    pairs = part("printed_gaussian").set_index("printed_kappa")
    directions = part("printed_directions").set_index("kappa")
    shown = re.findall(
        r"^\| (\d+) \| ([\d.]+) \| ([\d.]+) \| \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| (\d+) \|$", PAGE, re.M
    )
    assert len(shown) == 5
    for kappa, printed, true, sigma, printed_pair, true_pair, alike in shown:
        row = pairs.loc[int(kappa)]
        assert printed == printed_pair == f"{row['printed']:g}"
        assert true == f"{directions.loc[int(kappa), 'true_epsilon']:.3g}"
        assert (sigma, true_pair) == (f"{row['sigma']:g}", f"{row['true_epsilon']:.3g}")
        assert alike == f"{row['equally_private_kappa']:.0f}"
    claim = part("claim").set_index("predictor")["spearman_MNIST"]
    ranks = dict(re.findall(r"^\| (.*?) \| (-[\d.]+) \|$", PAGE, re.M))
    named = {
        "printed ε": "printed epsilon",
        "true ε": "true epsilon",
        "capacity, radius 1": "capacity_radius_1",
        "capacity, radius √3": "capacity_radius_root 3",
        "capacity, radius 3 (the paper's)": "capacity_radius_3",
        "capacity, radius 128 (mean over the batch)": "capacity_radius_128",
    }
    assert ranks == {label: f"{claim[name.replace('_', ' ')]:.2f}" for label, name in named.items()}
    equal = part("equal_epsilon").set_index("true_epsilon").loc[[1, 8]]
    for _, row in equal.iterrows():
        cells = [f"{row['kappa']:.1f}", f"{row['sigma']:.3f}", f"{row['direction_capacity']:.1f}"]
        cells += [f"{row['gaussian_capacity_1']:.1f}", f"{row['gaussian_capacity_128']:.0f}"]
        assert f"| {' | '.join(cells)} |" in PAGE


def test_the_pages_example_runs():
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    names: dict = {}
    exec(example, names)
    assert 7.9 < names["spent"] <= 8
    assert names["leaked"] > 0 < names["other"]
    assert names["released"].shape == names["gradient"].shape
