"""The rounds of hospitals, which build plan, mechanism, ledger and store themselves: the same properties of messages.

The head that they train is complex in every parameter, so messages have real and imaginary parts and no other.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from itertools import product
from pathlib import Path
from typing import Any

import torch

from mutants.hospitals import Hospitals
from mutants.installing import FALSE_ALARM, certain, mutant, replacement, statistical
from mutants.of_contributions import add_up, clipped_at
from mutants.of_noise import (
    EXACT,
    EXACT_ROUNDS,
    EXPECTED,
    OVERWHELMING,
    PAIR,
    RELEASE,
    every_second,
    independent,
    mutant_of_noise,
    noise_is_as_stated,
)
from mutants.of_records import (
    releases_watched,
)
from mutants.stub import CLIP, random_records
from zetadp.hospitals.protocol import Answer
from zetadp.training.records import Node

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
    updates = {(reply.place.round, reply.update) for reply in replies if isinstance(reply, Answer)}
    assert sorted(number for number, _ in updates) == [0, 1, 2], f"{len(updates)} updates left for three rounds"
    _as_planned(hospitals, 3)


HOSPITAL = "zetadp.hospitals.hospital"
ROUND = f"{HOSPITAL}:do_round"


def mutant_of_nodes(killer: Callable[[Path], None]) -> Any:
    """Register what alters the node that a hospital has built for a round, and the check that kills it."""

    def register(alter: Callable[[Node], None]) -> None:
        @wraps(alter)
        def do_round(original: Any, contribution: Any, nodes: Any, *more: Any) -> Any:
            for node in nodes:
                alter(node)
            return original(contribution, nodes, *more)

        mutant(ROUND, killer)(do_round)

    return register


@mutant(ROUND, check_hospitals_add_exact_noise_as_stated)
def hospital_divides_by_the_realised_batch(original, contribution, nodes, records, outbox, number):
    messages, bad = original(contribution, nodes, records, outbox, number)
    mechanism = nodes[0].mechanism
    return messages * mechanism.event.expected / max(1, len(mechanism.draw(number).members)), bad


@mutant_of_nodes(check_hospitals_add_exact_noise_as_stated)
def noise_divided_among_hospitals(node):
    event = node.mechanism.event
    node.mechanism.event = replace(event, kind=event.kind.with_noise_times(2**-0.5))


@mutant(ROUND, check_hospitals_without_patients_send_noise)
def hospital_breaks_an_empty_round_off(original, contribution, nodes, records, outbox, number):
    if not len(nodes[0].mechanism.draw(number).members):
        msg = "found a batch without patients"
        raise ValueError(msg)
    return original(contribution, nodes, records, outbox, number)


@mutant_of_nodes(check_hospitals_share_no_noise)
def hospitals_seeded_alike(node):
    node.mechanism.node_index = 0


@mutant_of_nodes(check_a_hospitals_patients_add_up_to_the_clip_each)
def hospital_without_noise_does_not_clip(node):
    if node.mechanism.event.noise_multiplier == 0:
        node.mechanism.event = replace(node.mechanism.event, clip=float("inf"))


@replacement(f"{HOSPITAL}:Ledger", check_a_hospital_records_a_round_before_it_releases)
def hospitals_ledger_not_synced(original):
    class Unsynced(original):
        def _append(self, content, *, sync=True):
            super()._append(content, sync=False)

    return Unsynced


@mutant(f"{HOSPITAL}:_refuse_repetition", check_a_hospital_answers_a_round_once)
def hospital_answers_a_round_again(original, outbox, number, weights):
    return None


@mutant(f"{HOSPITAL}:Hospital._begin", check_a_hospital_answers_a_round_once)
def hospital_begins_anew_whenever_asked(original, self, ledger, request, parts):
    generous = copy.copy(self)
    generous.settings = replace(self.settings, attempts=self.settings.attempts + ledger.attempts)
    original(generous, ledger, request, parts)


mutant_of_noise(
    check_hospitals_share_no_noise,
    one_noise_for_both_parts=lambda mechanism, noise: every_second(noise, noise[0::2][: len(noise) // 2].clone()),
)


@mutant(RELEASE, check_hospitals_without_patients_send_noise)
def empty_batch_releases_zeros(original, self, draw, clipped_sum, *, again=0):
    message = original(self, draw, clipped_sum, again=again)
    return message if len(draw.members) else torch.zeros_like(message)


@mutant(EXACT, check_hospitals_add_exact_noise_as_stated)
def exact_noise_of_half_variance(original, count, scale, *more, **named):
    # sqrt(1/2) as a fraction, so that only the scale is wrong.
    return original(count, scale * 5741 / 8119, *more, **named)


@mutant(EXACT, check_hospitals_add_exact_noise_as_stated)
def exact_noise_in_the_real_part_only(original, count, scale, *more, **named):
    noise = original(count, scale, *more, **named)
    noise[1::2] = 0
    return noise


@mutant("zetadp.mechanism.grid:Grid.noise_scale", check_hospitals_add_exact_noise_as_stated)
def exact_noise_in_units_of_the_step(original, self, noise_multiplier):
    return original(self, noise_multiplier) / 2**self.bits


@mutant("zetadp.account.ledger:Ledger.record", check_a_hospital_records_a_round_before_it_releases)
def ledger_written_after_release(original, self, events):
    # The line is written when the next round is recorded: an accountant that steps behind the optimiser.
    late = vars(self).pop("late", [])
    if late:
        # They stand in memory already, where writing adds them again.
        self.attempts[-1] = replace(self.attempts[-1], events=self.attempts[-1].events[: -len(late)])
        original(self, late)
    self.attempts[-1].add(events)
    vars(self)["late"] = list(events)


@mutant("zetadp.account.ledger:Ledger._append", check_a_hospital_records_a_round_before_it_releases)
def ledger_not_synced(original, self, content, *, sync=True):
    return original(self, content, sync=False)


@mutant("zetadp.training.round:do_round", check_hospitals_without_patients_send_noise)
def empty_round_skipped(original, contribution, nodes, records, outbox, number):
    if not any(len(node.mechanism.draw(number).members) for node in nodes):
        return torch.zeros(len(nodes), contribution.dimension), 0
    return original(contribution, nodes, records, outbox, number)


@mutant("zetadp.training.round:do_round", check_hospitals_without_patients_send_noise)
def empty_round_sends_noise_and_is_not_recorded(original, contribution, nodes, records, outbox, number):
    draws = [node.mechanism.draw(number) for node in nodes]
    if not any(len(draw.members) for draw in draws):
        zero = torch.zeros(contribution.dimension)
        parts = zip(nodes, draws, strict=True)
        return torch.stack([node.mechanism._privatised(draw.event, zero, 0) for node, draw in parts]), 0
    return original(contribution, nodes, records, outbox, number)
