"""Wrong code of a hospital alone: how it builds a round, what it answers, and what its ledger says."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any

from mutants.checks_of_hospitals import (
    check_a_hospital_answers_a_round_once,
    check_a_hospital_records_a_round_before_it_releases,
    check_a_hospitals_patients_add_up_to_the_clip_each,
    check_hospitals_add_exact_noise_as_stated,
    check_hospitals_share_no_noise,
    check_hospitals_without_patients_send_noise,
)
from mutants.installing import mutant, replacement

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zetadp.core.records import Node
    from zetadp.federation.flower.hospital import Hospital
    from zetadp.federation.flower.protocol import Request
    from zetadp.privacy.ledger import Ledger

HOSPITAL = "zetadp.federation.flower.hospital"
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
def hospital_divides_by_the_realised_batch(
    original: Any, contribution: Any, nodes: Any, records: Any, outbox: Any, number: int
) -> Any:
    messages, bad = original(contribution, nodes, records, outbox, number)
    mechanism = nodes[0].mechanism
    return messages * mechanism.event.expected / max(1, len(mechanism.draw(number).members)), bad


@mutant_of_nodes(check_hospitals_add_exact_noise_as_stated)
def noise_divided_among_hospitals(node: Node) -> None:
    event = node.mechanism.event
    node.mechanism.event = replace(event, kind=event.kind.with_noise_times(2**-0.5))


@mutant(ROUND, check_hospitals_without_patients_send_noise)
def hospital_breaks_an_empty_round_off(
    original: Any, contribution: Any, nodes: Any, records: Any, outbox: Any, number: int
) -> Any:
    if not len(nodes[0].mechanism.draw(number).members):
        msg = "found a batch without patients"
        raise ValueError(msg)
    return original(contribution, nodes, records, outbox, number)


@mutant_of_nodes(check_hospitals_share_no_noise)
def hospitals_seeded_alike(node: Node) -> None:
    node.mechanism.place = 0


@mutant_of_nodes(check_a_hospitals_patients_add_up_to_the_clip_each)
def hospital_without_noise_does_not_clip(node: Node) -> None:
    if node.mechanism.event.noise_multiplier == 0:
        node.mechanism.event = replace(node.mechanism.event, clip=float("inf"))


@replacement(f"{HOSPITAL}:Ledger", check_a_hospital_records_a_round_before_it_releases)
def hospitals_ledger_not_synced(original: Any) -> Any:
    class Unsynced(original):
        def _append(self, content: Any, *, sync: bool = True) -> None:
            super()._append(content, sync=False)

    return Unsynced


@mutant(f"{HOSPITAL}:_refuse_repetition", check_a_hospital_answers_a_round_once)
def hospital_answers_a_round_again(original: Any, outbox: Any, number: Any, weights: Any) -> Any:
    return None


@mutant(f"{HOSPITAL}:Hospital._begin", check_a_hospital_answers_a_round_once)
def hospital_begins_anew_whenever_asked(
    original: Any, self: Hospital, ledger: Ledger, request: Request, parts: Any
) -> None:
    generous = copy.copy(self)
    generous.settings = replace(self.settings, attempts=self.settings.attempts + ledger.attempts)
    original(generous, ledger, request, parts)
