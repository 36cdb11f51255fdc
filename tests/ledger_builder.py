"""A small ledger, as a run that was trained to its end leaves it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pandas as pd

from zetadp.account.declaration import Declaration
from zetadp.account.ledger import Ledger
from zetadp.accounting import composition
from zetadp.accounting.events import Event, entries_of, sampling_probability
from zetadp.accounting.kinds import NoisySum

DELTA, ROUNDS = 1e-3, 6
KIND = NoisySum(0.25, 2.0)
EVENT = Event("a", 0, 40, 10.0, 1.0, KIND)
HEADER = {
    "noise": "os",
    "unit": "patient",
    "delta": DELTA,
    "training": {"rounds": ROUNDS},
    "releases": entries_of([EVENT]),
}


def declared(**changes: object) -> Declaration:
    """Return what a run declares that ends after `ROUNDS` rounds, with changes of its JSON."""
    return Declaration.from_json({**HEADER, **changes})


DECLARATION = declared()
COST = [composition.epsilon({KIND: rounds}, DELTA) if rounds else 0.0 for rounds in range(ROUNDS + 3)]
"""Epsilon of so many rounds."""
FILTER = [COST[0], COST[ROUNDS], *(composition.epsilon_rdp({KIND: runs * ROUNDS}, DELTA) for runs in (2, 3, 4))]
"""Epsilon of so many runs, each of which was chosen after the results of those before."""


def poisson(
    node: str, *, population: int, expected: float, noise_multiplier: float, clip: float, share: Fraction = Fraction(1)
) -> Event:
    """Return round zero of a node that releases a noisy sum; a unit can be drawn for a share of several sums."""
    probability = float(sampling_probability(population, expected, share))
    return Event(node, 0, population, expected, clip, NoisySum(probability, noise_multiplier))


def record(path: Path, rounds: int = ROUNDS, event: Event = EVENT, **changes: object) -> None:
    """Record an attempt, of as many rounds."""
    with Ledger(path) as ledger:
        ledger.start(declared(**changes))
        for number in range(rounds):
            ledger.record([replace(event, round=number)])
            ledger.note_sent(number, 0, "digest")


def index(path: Path, *train: str, test: tuple[str, ...] = ()) -> Path:
    """Write the index of a cohort whose files have these hashes."""
    rows = [("train", content) for content in train] + [("test", content) for content in test]
    named = [(f"BRATS_{number:03d}", *row) for number, row in enumerate(rows, start=1)]
    pd.DataFrame(named, columns=["record", "part", "sha256"]).to_csv(path, index=False)
    return path
