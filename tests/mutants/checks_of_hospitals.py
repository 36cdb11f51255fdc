"""The rounds of hospitals, which build plan, mechanism, ledger and store themselves: the same properties of messages.

The head that they train is complex in every parameter, so messages have real and imaginary parts and no other.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import torch

from mutants.checks_of_contributions import add_up, clipped_at
from mutants.checks_of_noise import EXACT_ROUNDS, EXPECTED, OVERWHELMING, PAIR, independent, noise_is_as_stated
from mutants.checks_of_records import releases_watched
from mutants.hospitals import Hospitals
from mutants.installing import certain, statistical
from mutants.margins import FALSE_ALARM
from mutants.stub import CLIP, random_records
from zetadp.federation.flower.protocol import Answer

if TYPE_CHECKING:
    from pathlib import Path

ROUNDS = 20


def _as_planned(hospitals: Hospitals, rounds: int) -> None:
    """Compare the ledgers with the plan: each round once, with the constants that all sites agreed on."""
    planned = {replace(event, round=number) for event, number in product(hospitals.declared, range(rounds))}
    found = hospitals.events()
    assert len(found) == len(planned), f"{len(planned)} messages left the hospitals, {len(found)} are in their ledgers"
    assert set(found) == planned, "ledgers state other constants than the plan"


@statistical
def check_hospitals_add_exact_noise_as_stated(folder: Path) -> None:
    """Exact noise of a hospital has the variance and law that its ledger and the plan state, in each part."""
    hospitals = Hospitals(folder, PAIR[:1], expected=EXPECTED, sigma=OVERWHELMING, exact=True)
    noise_is_as_stated(hospitals, hospitals.rounds(EXACT_ROUNDS))
    _as_planned(hospitals, EXACT_ROUNDS)


@statistical
def check_hospitals_without_patients_send_noise(folder: Path) -> None:
    """With one patient a hospital and p = 0.02, every round is answered with noise as stated and stands in the ledger.

    Forty messages show one patient on average: a signal of at most B beside noise of B in each of 520 coordinates.
    """
    hospitals = Hospitals(folder, [[0], [1]], expected=0.02, sigma=1.0)
    messages = hospitals.rounds(ROUNDS)
    _as_planned(hospitals, ROUNDS)
    noise_is_as_stated(hospitals, messages)


@statistical
def check_hospitals_share_no_noise(folder: Path) -> None:
    """Noise is independent across rounds, across hospitals of one seed, and across real and imaginary parts."""
    hospitals = Hospitals(folder, PAIR, expected=EXPECTED, sigma=OVERWHELMING)
    parts = hospitals.parts(hospitals.rounds(5))
    independent(torch.cat([part.flatten(0, 1) for part in parts.values()]), FALSE_ALARM, "noises of hospitals")


@certain
def check_a_hospitals_patients_add_up_to_the_clip_each(folder: Path) -> None:
    """A patient adds at most B to a hospital's message, and several add what each adds alone."""
    records = random_records(12, scale=100.0)
    alone = Hospitals(folder / "alone", [[patient] for patient in range(12)], records=records).round(0).double()
    clipped_at(CLIP, alone, "at a hospital")
    groups = [[0, 1], [1, 2], [0, 2], list(range(12))]
    messages = Hospitals(folder / "together", groups, records=records).round(0).double()
    for members, message in zip(groups, messages, strict=True):
        add_up(message * len(members), alone[members], CLIP, f"patients {members} of a hospital")


@certain
def check_a_hospital_records_a_round_before_it_releases(folder: Path) -> None:
    """When a hospital releases, its ledger on disk, as last synced, names the round."""
    hospitals = Hospitals(folder, [[0, 1]], expected=1.0, sigma=1.0)
    with releases_watched():
        for number in range(3):
            hospitals.round(number)


@certain
def check_a_hospital_answers_a_round_once(folder: Path) -> None:
    """Whatever a server asks, a hospital releases each round of its one attempt once, and pays for it once."""
    hospitals = Hospitals(folder, PAIR[:1], expected=EXPECTED, sigma=1.0, exact=True)
    # Round, rounds that are no longer needed, and scale of the weights. With the third request the first message goes.
    new = [(0, 0, 1.0), (1, 0, 1.0), (2, 1, 1.0)]
    again = [(number, 0, scale) for number in (0, 1, 2) for scale in (1.0, 2.0)]
    replies = [
        hospitals.reply(0, number, attempt=attempt, checkpointed=checkpointed, scale=scale)
        for attempt in ("first", "second")
        for number, checkpointed, scale in new + again
    ]
    updates = {(reply.round, reply.update) for reply in replies if isinstance(reply, Answer)}
    assert sorted(number for number, _ in updates) == [0, 1, 2], f"{len(updates)} updates left for three rounds"
    _as_planned(hospitals, 3)
