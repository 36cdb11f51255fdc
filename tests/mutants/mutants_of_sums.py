"""Wrong code of masked sums: masks, fresh values, tries, and how many shares of noise are counted."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from mutants.checks_of_sums import (
    check_a_fresh_value_serves_one_computation,
    check_a_hospital_takes_part_in_no_unsafe_try,
    check_a_masked_sum_has_the_noise_that_ledgers_state,
    check_every_try_is_drawn_anew,
    check_every_try_stands_in_the_ledger,
    check_no_masks_are_used_twice,
    check_nothing_unmasked_is_stored_or_noted,
)
from mutants.installing import mutant, replacement
from mutants.mutants_of_hospitals import HOSPITAL, ROUND, mutant_of_nodes
from zetadp.core.outbox import digest_of
from zetadp.federation.flower.certificates import signature
from zetadp.federation.masks import FreshValue, Masking, signed_content

if TYPE_CHECKING:
    from zetadp.core.records import Node
    from zetadp.privacy.threat import Sums

MASKS = "zetadp.federation.masks"
SHARES = "zetadp.privacy.threat:Sums.shares"
TRANSCRIPT = f"{MASKS}:Try.transcript"


@replacement(f"{MASKS}:Masking._add", check_a_masked_sum_has_the_noise_that_ledgers_state)
def masks_are_added_by_both(original: Any) -> Any:
    return staticmethod(lambda words, key, *, subtract: original.__func__(words, key, subtract=False))


@mutant(f"{MASKS}:Masking.__call__", check_a_masked_sum_has_the_noise_that_ledgers_state)
def sign_by_the_place_among_those_present(_: Any, self: Masking, message: torch.Tensor) -> torch.Tensor:
    masked = message.clone()
    names, place = self.attempt.names, self.attempt.roster.plan.place
    for name in names:
        if name != self.name:
            first = names.index(self.name) > place(name)
            self._add(masked.numpy().reshape(-1).view("uint64"), self._stream_key(name), subtract=first)
    return masked


@mutant(f"{MASKS}:Masking._stream_key", check_a_masked_sum_has_the_noise_that_ledgers_state)
def streams_named_from_each_side(original: Any, self: Any, other: Any) -> Any:
    return hashlib.sha256(self.name.encode() + original(self, other)).digest()


@mutant("zetadp.privacy.mechanism:NodeMechanism._privatised", check_a_masked_sum_has_the_noise_that_ledgers_state)
def part_of_a_sum_divided_by_its_own_patients(
    original: Any, self: Any, event: Any, clipped_sum: Any, again: int
) -> Any:
    return original(self, event, clipped_sum, again) // round(event.expected)


@mutant(SHARES, check_a_masked_sum_has_the_noise_that_ledgers_state)
def shares_of_all_nodes_are_relied_on(_: Any, self: Any, nodes: Any) -> Any:
    return nodes


@mutant(SHARES, check_a_masked_sum_has_the_noise_that_ledgers_state)
def colluding_and_missing_counted_once(_: Any, self: Sums, nodes: int) -> int:
    return nodes - max(self.colluding, self.missing)


@mutant_of_nodes(check_every_try_is_drawn_anew)
def patients_drawn_once_for_all_tries(node: Node) -> None:
    honest = node.mechanism.draw
    node.mechanism.draw = lambda number, again=0: honest(number)


@mutant_of_nodes(check_every_try_is_drawn_anew)
def noise_of_the_first_try_in_all(node: Node) -> None:
    honest = node.mechanism._privatised
    node.mechanism._privatised = lambda event, clipped_sum, again: honest(event, clipped_sum, 0)


@replacement(f"{HOSPITAL}:Ledger", check_every_try_stands_in_the_ledger)
def only_the_first_try_of_a_round_is_recorded(original: Any) -> Any:
    class Once(original):
        def record(self, events: Any) -> None:
            super().record([event for event in events if not super(Once, self).holds(event)])

        def holds(self, event: Any, times: int = 1) -> bool:
            return super().holds(event)

    return Once


@mutant(f"{HOSPITAL}:Hospital._masking", check_every_try_stands_in_the_ledger)
def tries_without_end(_: Any, self: Any, ledger: Any, attempt: Any, own: Any, weights: Any) -> Any:
    return Masking(attempt, self.settings.name, self.agreement, own, weights)


def _told(attempt: Any, **changes: Any) -> SimpleNamespace:
    """Return a try as its transcript sees it, with something else in its place."""
    names = ("roster", "training", "round", "number", "values")
    return SimpleNamespace(**{**{name: getattr(attempt, name) for name in names}, **changes})


@mutant(TRANSCRIPT, check_no_masks_are_used_twice)
def transcript_without_the_training(original: Any, self: Any, weights: Any) -> Any:
    return original(_told(self, training=""), weights)


@mutant(TRANSCRIPT, check_no_masks_are_used_twice)
def transcript_without_the_try(original: Any, self: Any, weights: Any) -> Any:
    return original(_told(self, number=0), weights)


@mutant(TRANSCRIPT, check_no_masks_are_used_twice)
def transcript_without_fresh_values(original: Any, self: Any, weights: str) -> Any:
    return original(_told(self, values=[replace(value, value="") for value in self.values]), weights)


@mutant(TRANSCRIPT, check_no_masks_are_used_twice)
def transcript_without_the_weights(original: Any, self: Any, weights: Any) -> Any:
    return original(self, "")


@mutant(f"{MASKS}:fresh_value", check_no_masks_are_used_twice)
def fresh_values_that_follow_from_the_try(_: Any, roster: Any, name: str, key: Any, *place: Any) -> FreshValue:
    value = hashlib.sha256(f"{name} {place}".encode()).hexdigest()
    return FreshValue(name, value, signature(signed_content(roster, name, value, *place), key))


@mutant(f"{HOSPITAL}:Hospital.exchange", check_a_fresh_value_serves_one_computation)
def fresh_value_kept_until_the_answer(original: Any, self: Any, request: Any, compute: Any) -> Any:
    held = self._held
    reply = original(self, request, compute)
    self._held = self._held or held
    return reply


@replacement(f"{MASKS}:Roster.least", check_a_hospital_takes_part_in_no_unsafe_try)
def fewest_members_left_to_the_server(_: Any) -> Any:
    return property(lambda self: 2)


@mutant(f"{MASKS}:check_value", check_a_hospital_takes_part_in_no_unsafe_try)
def fresh_values_are_taken_unsigned(_: Any, roster: Any, value: Any, training: Any, number: Any, attempt: Any) -> Any:
    return None


@mutant(ROUND, check_nothing_unmasked_is_stored_or_noted)
def masks_are_added_when_all_is_stored(original: Any, *arguments: Any) -> Any:
    *rest, mask = arguments
    messages, bad = original(*rest, lambda message: message)
    return mask(messages), bad


@mutant(ROUND, check_nothing_unmasked_is_stored_or_noted)
def clear_message_is_hashed(
    original: Any, contribution: Any, nodes: Any, records: Any, outbox: Any, number: int, mask: Any
) -> Any:
    def noting(message: torch.Tensor) -> torch.Tensor:
        outbox.ledger.note_sent(number, outbox.ledger.releases(number) - 1, digest_of(message))
        return mask(message)

    return original(contribution, nodes, records, outbox, number, noting)
