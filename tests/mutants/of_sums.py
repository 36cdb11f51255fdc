"""Masked sums as hospitals make them: what the server can add up, what a ledger states, and what no server may get."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from mutants.hospitals import SummingHospitals
from mutants.installing import FALSE_ALARM, certain, mutant, mutants, replacement, statistical, variance_limits
from mutants.of_hospitals import HOSPITAL, ROUND, mutant_of_nodes
from mutants.of_noise import OVERWHELMING, independent
from mutants.stub import CLIP, releases_seen
from zetadp.account.attempts import read_ledger
from zetadp.accounting.masked import MaskedSum
from zetadp.hospitals.certificates import signature
from zetadp.hospitals.masks import FreshValue, Masking, signed_content
from zetadp.hospitals.protocol import Answer, Reason, Refusal, Request, encode
from zetadp.training.outbox import digest_of

UNEQUAL = [[0], [1, 2], [3, 4, 5], [6], [7, 8]]
"""Five hospitals, of which one colludes and one may be missing."""
EVERYBODY = range(len(UNEQUAL))
WITHOUT_ONE = [0, 2, 3, 4]
LARGE = [[*range(40 * place, 40 * (place + 1))] for place in range(4)]


def _unmasked(numbers: Tensor) -> bool:
    """Return whether words are those of messages: of words with masks, half are larger."""
    return bool((numbers.abs() < 1 << 62).all())


@statistical
def check_a_masked_sum_has_the_noise_that_ledgers_state(folder: Path) -> None:
    """Sums of all and of all but one have one share of noise of each member; ledgers count those relied on alone.

    Three of five hospitals are relied on, since one colludes and another one may be missing.
    """
    hospitals = SummingHospitals(folder, UNEQUAL, sigma=OVERWHELMING)
    relied_on = len(UNEQUAL) - hospitals.COLLUDING - hospitals.MISSING
    for number, members in enumerate((list(EVERYBODY), WITHOUT_ONE)):
        total = hospitals.total(members, number, 0)
        assert _unmasked(total), "masks do not cancel in the sum of all members of a try"
        missing = [f"node-{place}" for place in EVERYBODY if place not in members]
        mean = hospitals.assembled.received(total, missing).double()
        stated = OVERWHELMING * CLIP * math.sqrt(len(members)) / sum(len(UNEQUAL[place]) for place in members)
        low, high = variance_limits(mean.numel(), FALSE_ALARM / 2)
        found = float((mean / stated).square().mean())
        assert low <= found <= high, f"{found:.3f} of the variance in a sum of {len(members)} members"
    for event in hospitals.recorded(0):
        assert isinstance(event.kind, MaskedSum)
        stated = OVERWHELMING * math.sqrt(relied_on)
        assert math.isclose(event.noise_multiplier, stated), "a ledger counts on other noise than is relied on"


@statistical
def check_every_try_is_drawn_anew(folder: Path) -> None:
    """Tries of one round have patients and noise of their own: among 40 at p = 1/2 the same ones have chance 2^-40."""
    hospitals = SummingHospitals(folder, LARGE, expected=20.0, sigma=OVERWHELMING)
    sent = []
    for again in range(3):
        with releases_seen() as found:
            hospitals.decoded(hospitals.ask(0, 0, again, hospitals.values(range(4), 0, again)))
        # With noise from a seed the earlier release is computed first, to see whether it was sent. The last one leaves.
        sent.append(found[-1])
    for one, other in combinations(sent, 2):
        assert not torch.equal(one.clipped_sum, other.clipped_sum), "two tries have the same patients"
    independent(torch.stack([each.message - each.clipped_sum for each in sent]), FALSE_ALARM, "noises of tries")


@certain
def check_every_try_stands_in_the_ledger(folder: Path) -> None:
    """A hospital answers no more tries than the plan has rounds and spare ones, and its ledger holds each of them."""
    hospitals = SummingHospitals(folder, UNEQUAL)
    answers = 0
    for number, again in [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3)]:
        reply = hospitals.ask(0, number, again, hospitals.values(EVERYBODY, number, again))
        answers += isinstance(reply, Answer)
        assert len(hospitals.recorded(0)) == answers, f"{answers} messages left, others are in the ledger"
    assert answers == hospitals.ROUNDS + hospitals.SPARE, "a hospital answers more tries than were paid for"


@certain
def check_no_masks_are_used_twice(folder: Path) -> None:
    """A hospital with its old disk masks the same try otherwise, since its fresh value is another one.

    Where its random generator repeats itself as well, so that values are the same, any other training, round, try or
    weights have other masks. The difference of two messages with the same masks would be that of the clear ones.
    """
    hospitals = SummingHospitals(folder, UNEQUAL, exact=True)

    def masked(values: list[FreshValue], number: int = 0, again: int = 0, **changes: object) -> Tensor:
        hospitals.forget(0)
        return hospitals.decoded(hospitals.ask(0, number, again, values, **changes))

    first, *others = hospitals.values(EVERYBODY, 0, 0)
    before = masked([first, *others])
    after = masked([*hospitals.values([0], 0, 0), *others])
    assert not _unmasked(before - after), "an old disk leads to the same masks"
    with mock.patch("zetadp.hospitals.masks.os", SimpleNamespace(urandom=bytes)):
        found = {
            "a try": masked(hospitals.values(EVERYBODY, 0, 0)),
            "the round": masked(hospitals.values(EVERYBODY, 1, 0), 1),
            "the number": masked(hospitals.values(EVERYBODY, 0, 1), 0, 1),
            "the training": masked(hospitals.values(EVERYBODY, 0, 0, "another"), training="another"),
            "the weights": masked(hospitals.values(EVERYBODY, 0, 0), weights=encode(2 * hospitals.weights)),
        }
    base = found.pop("a try")
    for what, message in found.items():
        assert not _unmasked(base - message), f"a try that differs in {what} alone has the same masks"


@certain
def check_a_fresh_value_serves_one_computation(folder: Path) -> None:
    """Whatever becomes of the computation of a try, no second one begins with the same masks."""
    hospitals = SummingHospitals(folder, UNEQUAL, exact=True)
    hospital, values = hospitals.hospitals[0], hospitals.values(EVERYBODY, 0, 0)

    def die(request: Request, own: FreshValue | None) -> Refusal:
        assert own == values[0]
        return hospital.refuse(request, Reason.FAILED)

    with mock.patch.object(hospital, "reply", die):
        hospitals.ask(0, 0, 0, values)
    assert isinstance(hospitals.ask(0, 0, 0, values), Refusal), "a value served two computations"


@certain
def check_a_hospital_takes_part_in_no_unsafe_try(folder: Path) -> None:
    """Too few members, or a value that its member did not sign, bring no message, and nothing is released."""
    hospitals = SummingHospitals(folder, UNEQUAL)

    def invented(values: list[FreshValue]) -> list[FreshValue]:
        return [values[0], replace(values[1], value="00" * 32), *values[2:]]

    few = len(UNEQUAL) - hospitals.MISSING - 1
    for what, alter in {"few members": lambda values: values[:few], "a value of the server's": invented}.items():
        reply = hospitals.ask(0, 0, 0, alter(hospitals.values(EVERYBODY, 0, 0)))
        assert isinstance(reply, Refusal), f"a hospital took part in a try with {what}"
    assert not hospitals.recorded(0)


@certain
def check_nothing_unmasked_is_stored_or_noted(folder: Path) -> None:
    """Neither a message without masks nor its hash is in any file of a hospital; the ledger notes what was sent."""
    hospitals = SummingHospitals(folder, UNEQUAL, exact=True)
    with releases_seen() as found:
        reply = hospitals.ask(0, 0, 0, hospitals.values(EVERYBODY, 0, 0))
    (clear,) = (each.message.numpy().tobytes() for each in found)
    own = hospitals.hospitals[0]
    content = b"".join(path.read_bytes() for path in own.settings.state.rglob("*") if path.is_file())
    assert clear[:64] not in content, "a message lies on disk without masks"
    assert hashlib.sha256(clear).hexdigest().encode() not in content, "the hash of a message without masks is noted"
    assert isinstance(reply, Answer)
    assert set(read_ledger(own.participant.ledger)[-1].sent.values()) == {hashlib.sha256(reply.update).hexdigest()}


MASKS = "zetadp.hospitals.masks"
SHARES = "zetadp.accounting.threat:Sums.shares"
TRANSCRIPT = f"{MASKS}:Try.transcript"


@replacement(f"{MASKS}:Masking._add", check_a_masked_sum_has_the_noise_that_ledgers_state)
def masks_are_added_by_both(original):
    return staticmethod(lambda words, key, *, subtract: original.__func__(words, key, subtract=False))


@mutant(f"{MASKS}:Masking.__call__", check_a_masked_sum_has_the_noise_that_ledgers_state)
def sign_by_the_place_among_those_present(_, self, message):
    masked = message.clone()
    names, place = self.attempt.names, self.attempt.roster.plan.position
    for name in names:
        if name != self.name:
            first = names.index(self.name) > place(name)
            self._add(masked.numpy().reshape(-1).view("uint64"), self._stream_key(name), subtract=first)
    return masked


@mutant(f"{MASKS}:Masking._stream_key", check_a_masked_sum_has_the_noise_that_ledgers_state)
def streams_named_from_each_side(original, self, other):
    return hashlib.sha256(self.name.encode() + original(self, other)).digest()


@mutant("zetadp.mechanism.release:NodeMechanism._privatised", check_a_masked_sum_has_the_noise_that_ledgers_state)
def part_of_a_sum_divided_by_its_own_patients(original, self, event, clipped_sum, again):
    return original(self, event, clipped_sum, again) // round(event.expected)


mutants(
    SHARES,
    check_a_masked_sum_has_the_noise_that_ledgers_state,
    shares_of_all_nodes_are_relied_on=lambda _, self, nodes: nodes,
    colluding_and_missing_counted_once=lambda _, self, nodes: nodes - max(self.colluding, self.missing),
)


@mutant_of_nodes(check_every_try_is_drawn_anew)
def patients_drawn_once_for_all_tries(node):
    honest = node.mechanism.draw
    node.mechanism.draw = lambda number, again=0: honest(number)


@mutant_of_nodes(check_every_try_is_drawn_anew)
def noise_of_the_first_try_in_all(node):
    honest = node.mechanism._privatised
    node.mechanism._privatised = lambda event, clipped_sum, again: honest(event, clipped_sum, 0)


@replacement(f"{HOSPITAL}:Ledger", check_every_try_stands_in_the_ledger)
def only_the_first_try_of_a_round_is_recorded(original):
    class Once(original):
        def record(self, events):
            super().record([event for event in events if not super(Once, self).holds(event)])

        def holds(self, event, times=1):
            return super().holds(event)

    return Once


@mutant(f"{HOSPITAL}:Hospital._masking", check_every_try_stands_in_the_ledger)
def tries_without_end(_, self, ledger, attempt, own, weights):
    return Masking(attempt, self.settings.name, self.participant.agreement, own, weights)


def _told(attempt: Any, **changes: Any) -> SimpleNamespace:
    """Return a try as its transcript sees it, with something else in its place."""
    return SimpleNamespace(**{**vars(attempt), **changes})


mutants(
    TRANSCRIPT,
    check_no_masks_are_used_twice,
    transcript_without_the_training=lambda original, self, weights: original(
        _told(self, place=replace(self.place, training="none")), weights
    ),
    transcript_without_the_try=lambda original, self, weights: original(
        _told(self, place=replace(self.place, number=0)), weights
    ),
    transcript_without_fresh_values=lambda original, self, weights: original(
        _told(self, values=[replace(value, value="") for value in self.values]), weights
    ),
    transcript_without_the_weights=lambda original, self, _: original(self, ""),
)


@mutant(f"{MASKS}:fresh_value", check_no_masks_are_used_twice)
def fresh_values_that_follow_from_the_try(_, roster, name, key, place):
    value = hashlib.sha256(f"{name} {place}".encode()).hexdigest()
    return FreshValue(name, value, signature(signed_content(roster, name, value, place), key))


@mutant(f"{HOSPITAL}:Hospital.exchange", check_a_fresh_value_serves_one_computation)
def fresh_value_kept_until_the_answer(original, self, request):
    held = self._unused_value
    reply = original(self, request)
    self._unused_value = self._unused_value or held
    return reply


@replacement("zetadp.hospitals.roster:Roster.least", check_a_hospital_takes_part_in_no_unsafe_try)
def fewest_members_left_to_the_server(_):
    return property(lambda self: 2)


@mutant(f"{MASKS}:check_value", check_a_hospital_takes_part_in_no_unsafe_try)
def fresh_values_are_taken_unsigned(_, roster, value, place):
    return None


@mutant(ROUND, check_nothing_unmasked_is_stored_or_noted)
def masks_are_added_when_all_is_stored(original, *arguments):
    *rest, mask = arguments
    messages, bad = original(*rest, lambda message: message)
    return mask(messages), bad


@mutant(ROUND, check_nothing_unmasked_is_stored_or_noted)
def clear_message_is_hashed(original, contribution, nodes, records, outbox, number, mask):
    def noting(message):
        outbox.ledger.note_sent(number, outbox.ledger.releases(number) - 1, digest_of(message))
        return mask(message)

    return original(contribution, nodes, records, outbox, number, noting)
