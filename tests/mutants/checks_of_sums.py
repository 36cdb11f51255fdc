"""Masked sums as hospitals make them: what the server can add up, what a ledger states, and what no server may get."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace
from typing import TYPE_CHECKING
from unittest import mock

import torch

from mutants.checks_of_noise import OVERWHELMING, independent
from mutants.hospitals import SummingHospitals, releases_seen
from mutants.installing import certain, statistical
from mutants.margins import FALSE_ALARM, variance_limits
from mutants.stub import CLIP
from zetadp.federation.flower.protocol import Answer, Reason, Refusal, encode
from zetadp.privacy.ledger import read_ledger
from zetadp.privacy.masked import MaskedSum

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from zetadp.federation.flower.protocol import Request
    from zetadp.federation.masks import FreshValue

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
    with mock.patch("zetadp.federation.masks.os", SimpleNamespace(urandom=bytes)):
        found = {
            "a try": masked(hospitals.values(EVERYBODY, 0, 0)),
            "the round": masked(hospitals.values(EVERYBODY, 1, 0), 1),
            "the number": masked(hospitals.values(EVERYBODY, 0, 1), 0, 1),
            "the training": masked(hospitals.values(EVERYBODY, 0, 0, "another"), attempt="another"),
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
