from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from ledger_builder import DECLARATION, poisson

import zetadp.accounting.seeded_noise
import zetadp.mechanism.release
import zetadp.training.records
from papers.directions.mechanism import Direction
from zetadp.account.ledger import Ledger
from zetadp.accounting.events import Event
from zetadp.accounting.kinds import NoisySum
from zetadp.accounting.masked import MaskedSum
from zetadp.accounting.threat import LEAST_SHARES
from zetadp.base.randomness import Purpose
from zetadp.mechanism.grid import Grid
from zetadp.mechanism.release import Draw, NodeMechanism, bernoulli_mask
from zetadp.training.records import Node, choose_items, items_of


class HoldsEverything:
    """Stands for a ledger where the order of record and release is not the subject."""

    def holds(self, event: Event, times: int = 1) -> bool:
        return True


def mechanism(
    place: int = 0, *, seed: int = 5, ledger: object = None, dimension: int = 0, **changes: float
) -> NodeMechanism:
    settings = {"population": 44, "expected": 24, "noise_multiplier": 1.5, "clip": 2.0} | changes
    event = poisson(f"node-{place}", **settings)
    if dimension:
        event = replace(event, kind=Direction.hiding(event.kind, dimension))
    return NodeMechanism(event, node_index=place, seed=seed, ledger=ledger or HoldsEverything())


def noise(mechanism: NodeMechanism, size: int, round_number: int = 0, again: int = 0) -> torch.Tensor:
    return mechanism.release(mechanism.draw(round_number), torch.zeros(size), again=again).double()


def test_no_two_uses_share_a_stream(monkeypatch):
    """Sampling, noise and choice of images have streams of their own, in every round, at every node, in every run."""
    used = []
    original = zetadp.mechanism.release.stream

    def remember(*key: int) -> np.random.Generator:
        used.append(tuple(map(int, key)))
        return original(*key)

    monkeypatch.setattr(zetadp.mechanism.release, "stream", remember)
    labels = np.array([0, 0, 1, 1])
    for seed in (5, 6):
        for place in (0, 1):
            one = mechanism(place, seed=seed)
            for number in range(3):
                one.draw(number, again=1)
                draw = one.draw(number)
                choose_items(Node(one, items_of([[i] for i in range(44)], 4)), draw, np.tile(labels, 44), 2)
                for again in (0, 1):
                    one.release(draw, torch.zeros(2), again=again)
    assert len(set(used)) == len(used)
    by_purpose = Counter(key[1] for key in used)
    assert by_purpose == {Purpose.SAMPLING: 24, Purpose.IMAGES: 12, Purpose.NOISE: 24}


def test_nothing_is_released_before_its_event_is_recorded(tmp_path):
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        one, louder = mechanism(ledger=ledger), mechanism(ledger=ledger, noise_multiplier=1.4)
        draw, other = one.draw(0), louder.draw(0)

        def refused(which: NodeMechanism = one, of: Draw = draw, **how: int) -> None:
            with pytest.raises(RuntimeError, match="before its release"):
                which.release(of, torch.zeros(3), **how)

        ledger.start(DECLARATION)
        refused()
        ledger.record([mechanism(1).draw(0).event])
        refused()
        ledger.record([draw.event])
        refused(again=1)
        refused(louder, other)
        one.release(draw, torch.zeros(3))
        ledger.start(DECLARATION)
        refused()


def test_no_release_is_made_twice():
    """Two sums under one noise would show their difference bare, and the ledger would know of one."""
    one = mechanism()
    draw = one.draw(0)
    one.release(draw, torch.zeros(3))
    with pytest.raises(RuntimeError, match="was released already"):
        one.release(draw, torch.ones(3))
    one.release(draw, torch.ones(3), again=1)
    with pytest.raises(RuntimeError, match="was released already"):
        one.release(draw, torch.ones(3), again=1)


DIMENSION = 400
AHEAD = {
    "seeded": (poisson("node-0", population=44, expected=24, noise_multiplier=1.5, clip=2.0), 5, False),
    "exact": (poisson("node-0", population=44, expected=24, noise_multiplier=1.5, clip=2.0), None, True),
    "masked": (Event("node-0", 0, 44, 24.0, 2.0, MaskedSum(24 / 44, 1.5, LEAST_SHARES)), 5, True),
}


@pytest.fixture(params=AHEAD)
def drawing_ahead(request, monkeypatch):
    """Return what makes equal mechanisms of a kind, each with bytes of its own where the system is their source."""
    event, seed, integers = AHEAD[request.param]
    grid = Grid.choose(2.0, noise_multiplier=1.5, population=44, dimension=DIMENSION) if integers else None

    def make() -> NodeMechanism:
        monkeypatch.setattr(zetadp.mechanism.release.os, "urandom", np.random.default_rng(3).bytes)
        return NodeMechanism(event, grid=grid, seed=seed, ledger=HoldsEverything())

    return make


def released(mechanism: NodeMechanism, round_number: int = 0, again: int = 0, size: int = DIMENSION) -> torch.Tensor:
    draw = Draw(replace(mechanism.event, round=round_number), np.arange(0))
    dtype = torch.float32 if mechanism.grid is None else torch.int64
    return mechanism.release(draw, torch.arange(size).to(dtype), again=again)


def test_noise_drawn_ahead_is_the_noise_of_the_release(drawing_ahead):
    expected = released(drawing_ahead(), 3, 1)
    ahead = drawing_ahead()
    ahead.draw_ahead(3, DIMENSION, torch.device("cpu"), again=1)
    with pytest.MonkeyPatch.context() as patch:  # nothing is drawn a second time
        patch.setattr(zetadp.mechanism.release, "rounded_normal", None)
        patch.setattr(zetadp.accounting.seeded_noise, "scaled_normal", None)
        assert torch.equal(released(ahead, 3, 1), expected)


@pytest.mark.parametrize("other", [{"round_number": 4, "again": 1}, {"round_number": 3, "again": 0}])
def test_noise_drawn_ahead_serves_its_own_release_or_none(drawing_ahead, other):
    """One noise on two sums would show their difference bare."""
    expected = released(drawing_ahead(), 3, 1)
    ahead = drawing_ahead()
    ahead.draw_ahead(3, DIMENSION, torch.device("cpu"), again=1)
    assert not torch.equal(released(ahead, **other), expected)
    if ahead.seed is None:  # a seed draws the same again
        assert not torch.equal(released(ahead, 3, 1), expected)


@pytest.mark.parametrize("change", [{"kind": NoisySum(0.5, 1.5)}, {"count": 2}, {"expected": 12.0}])
def test_an_event_that_says_another_chance_than_is_drawn_with_is_refused(change):
    event = replace(mechanism().event, **change)
    with pytest.raises(ValueError, match="drawn for with the chance"):
        NodeMechanism(event, seed=5, ledger=HoldsEverything())


def test_nothing_but_one_sum_with_seeded_noise_and_as_many_numbers_as_recorded_can_be_a_direction():
    one = mechanism(noise_multiplier=0.2, dimension=DIMENSION)
    with pytest.raises(ValueError, match=f"{DIMENSION} numbers"):
        one.release(one.draw(0), torch.ones(DIMENSION + 2))
    event = one.event
    with pytest.raises(ValueError, match="several rows"):
        NodeMechanism(replace(event, count=2), seed=1, ledger=HoldsEverything(), rows=2)
    grid = Grid.choose(event.clip, noise_multiplier=event.noise_multiplier, population=44, dimension=DIMENSION)
    with pytest.raises(ValueError, match="Gaussian"):
        NodeMechanism(event, grid=grid, ledger=HoldsEverything())


# Draws with exactly the stated probability

SHARE = Fraction(24, 44)


def given(*values: int):
    """A source that gives these bytes, one after the other."""
    content = bytes(values)
    position = 0

    def source(count: int) -> bytes:
        nonlocal position
        position += count
        assert position <= len(content), "more bits were drawn than were needed"
        return content[position - count : position]

    return source


@pytest.mark.parametrize("probability", [SHARE, Fraction(1, 3), Fraction(2**64 - 1, 2**64 + 1), Fraction(1, 10**40)])
def test_decision_is_exact_at_every_byte_of_the_probability(probability):
    """A number agrees with the binary digits of p for some bytes, and is then below or above them by one."""
    digits, rest = [], probability
    for _ in range(32):
        whole, rest = divmod(rest * 256, 1)
        digits.append(whole)
    for agreed, digit in enumerate(digits):
        if digit:
            assert bernoulli_mask(probability, 1, source=given(*digits[:agreed], digit - 1)).tolist() == [True]
        if digit < 255:
            assert bernoulli_mask(probability, 1, source=given(*digits[:agreed], digit + 1)).tolist() == [False]


def test_only_the_undecided_draw_is_continued():
    digit, rest = divmod(SHARE * 256, 1)
    further = math.floor(rest * 256)
    source = given(0, digit, 255, digit, further - 1, further + 1)
    assert bernoulli_mask(SHARE, 4, source=source).tolist() == [True, True, False, False]


@pytest.mark.parametrize("probability", [24 / 44, Fraction(45, 44), -1])
def test_what_is_no_exact_probability_is_refused(probability):
    with pytest.raises(ValueError, match="Fraction from 0 to 1"):
        bernoulli_mask(probability, 3)
