"""What is kept of attacks by candidates and across mechanisms: bounds hold, and the pages show what the tables hold."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.integrate import quad
from scipy.special import gamma

from zetadp.privacy import gaussian

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "benchmarks"))
import candidates  # noqa: E402  (benchmarks import each other by name)
import capacity_order  # noqa: E402

sys.path.remove(str(ROOT / "benchmarks"))


def kept(name: str) -> pd.DataFrame:
    return pd.read_csv(ROOT / f"docs/results/{name}.csv", comment="#")


@pytest.mark.parametrize("mu", [0.4, 2.0])
def test_the_attack_reaches_what_is_known_for_candidates_at_right_angles(mu):
    random = np.random.default_rng(0)
    error = 50 / math.sqrt(candidates.TRIALS)
    assert candidates.named(np.eye(100), mu, 10, random) == pytest.approx(candidates.worst(mu, 10), abs=5 * error)


def test_no_attack_names_candidates_oftener_than_the_bound_allows():
    table = kept("inversion/candidates")
    error = 50 / math.sqrt(candidates.TRIALS)
    assert (table["named"] < table["bound"] + 4 * error).all()
    assert (table["worst"] < table["bound"]).all()
    mu = [gaussian.mu(epsilon, candidates.DELTA) for epsilon in table["epsilon"]]
    expected = [100 * (1 - gaussian.beta(1 / k, m)) for k, m in zip(table["candidates"], mu, strict=True)]
    assert table["bound"].to_numpy() == pytest.approx(expected, rel=1e-3)


def test_on_patients_the_attack_comes_close_to_the_bound():
    table = kept("inversion/candidates").set_index(["training", "candidates", "epsilon"])
    row = table.loc["head of all components", 10, 1.0]
    assert row["named"] - 10 > 0.7 * (row["bound"] - 10)


@pytest.mark.parametrize(("epsilon", "radius"), [(0.5, 1.0), (3.0, 2.0), (8.0, 4.0)])
def test_the_capacity_of_the_third_mechanism_is_the_integral_that_defines_it(epsilon, radius):
    sphere, factor = 4 * math.pi, epsilon**3 / (4 * math.pi * gamma(3))
    outside = quad(lambda r: sphere * r**2 * math.exp(-epsilon * (r - radius)), radius, np.inf)[0]
    expected = math.log(factor * (sphere * radius**3 / 3 + outside))
    assert capacity_order.norm_capacity(epsilon, radius, 3) == pytest.approx(expected)


def test_correlations_follow_from_the_kept_errors():
    table = kept("directions/order")
    assert len(table) == len(capacity_order.settings()) * capacity_order.MESSAGES
    shown = (ROOT / "docs/results/directions/order.md").read_text()
    for row in capacity_order.correlations(table).to_dict("records"):
        assert f"{row['rank']:.2f}" in shown


def test_the_attack_works_where_there_is_little_noise():
    table = kept("directions/order")
    easy = table[(table["epsilon"] == 4096) & (table["mechanism"] == "gaussian") & (table["clip"] == 0.1)]
    assert easy[easy["batch"] == 1]["nmse"].mean() < 0.1
    assert table[table["epsilon"] == 1]["nmse"].mean() > 0.9
