"""Every run of every scenario releases what it always did, and costs what it always cost, to the last bit."""

from __future__ import annotations

import json
import math
import runpy
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from papers.directions.mechanism import Direction
from zetadp.accounting import composition
from zetadp.accounting.kinds import NoisySum
from zetadp.training.plan import FORMAT
from zetadp.training.seeding import seeding_of

BASELINE = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("baseline.py"))))
STORED = json.loads(BASELINE.FILE.read_text())
SAME = STORED["computed_on"] == BASELINE.computed_on()
"""Whether this machine computes the same last bits as the one that wrote the file."""
OTHER_BITS = 1e-8
"""How far figures of other processors may lie apart: 3e-9 was seen between AVX2 and AVX-512, in Fourier transforms."""
QUOTED = {
    place
    for row in STORED["runs"]
    for place in row["exposures"].get("server", [])
    if all(units == 1 for *_, units, _ in STORED["exposures"][place]["releases"])
}
"""Exposures of single units to the server, whose figures are quoted; the others are checked by the slow tests."""


def equal(found: float, stored: float | str) -> bool:
    return found == float(stored) if SAME else math.isclose(found, float(stored), rel_tol=OTHER_BITS)


def exposure_of(releases: list[list[float]]) -> Counter[Any]:
    """Return releases as an accountant takes them. Where kinds have other classes, change only this function."""
    found: Counter[Any] = Counter()
    for probability, level, dimension, units, count in releases:
        kind = Direction(probability, level, dimension) if dimension else NoisySum(probability, level, units)
        found[kind] += count
    return found


def wrong(exposures: list[dict[str, Any]]) -> list[str]:
    faults = []
    for each in exposures:
        exposure = exposure_of(each["releases"])
        for name, figure in (("epsilon", composition.epsilon), ("rdp", composition.epsilon_rdp)):
            found = figure(exposure, each["delta"])
            if not equal(found, each[name]):
                faults.append(f"{name} of {each['releases']}: {found!r} instead of {each[name]!r}")
    return faults


def test_the_quoted_epsilon_of_every_run_is_what_it_was():
    assert len(QUOTED) > 100
    assert not wrong([STORED["exposures"][place] for place in sorted(QUOTED)])


@pytest.mark.slow
def test_other_figures_of_every_run_are_what_they_were():
    others = [each for place, each in enumerate(STORED["exposures"]) if place not in QUOTED]
    assert len(others) > 100
    assert not wrong(others)


@pytest.fixture(scope="module")
def planned() -> list[tuple[str, Any, dict[str, Any]]]:
    """Return every plan with its noise as stored, and what is stored about it."""
    rows = {(row["scenario"], row["network"], row["arm"], row["epsilon"]): row for row in STORED["runs"]}
    found = []
    for scenario, plan in BASELINE.plans():
        row = rows[scenario, plan.run.network, plan.run.arm, str(plan.target)]
        found.append((scenario, plan.with_noise(row["noise"]), row))
    assert len(found) == sum(len(row["seeds"]) for row in rows.values()), "scenarios declare other runs than stored"
    return found


def test_every_run_releases_what_it_did_and_draws_as_it_did(planned):
    for scenario, plan, row in planned:
        where = f"{scenario} {plan.run}"
        digest, seeding = row["seeds"][str(plan.run.seed)]
        assert seeding_of(plan)[: BASELINE.HASH] == seeding, where
        if STORED["plan_format"] == FORMAT:
            assert plan.digest[: BASELINE.HASH] == digest, where
        assert BASELINE.events_of(plan) == row["events"], where
        assert (plan.delta, plan.training.rounds) == (row["delta"], row["rounds"]), where
