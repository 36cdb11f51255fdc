"""Wrong draws, all accounted as independent coins."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mutants.checks_of_records import check_the_statement_is_that_of_all_rounds_seen
from mutants.checks_of_sampling import (
    check_a_repeated_round_is_drawn_anew,
    check_exact_sampling_is_by_independent_coins,
    check_patients_are_drawn_by_independent_coins,
)
from mutants.installing import mutant

if TYPE_CHECKING:
    from fractions import Fraction

    from zetadp.privacy.events import Event
    from zetadp.privacy.mechanism import Draw, NodeMechanism

DRAWN = "zetadp.privacy.mechanism:NodeMechanism._drawn"
DRAW = "zetadp.privacy.mechanism:NodeMechanism.draw"


def _batch(order: np.ndarray, start: int, size: int) -> np.ndarray:
    return np.sort(order[start : start + size])


@mutant(DRAWN, check_patients_are_drawn_by_independent_coins)
def batches_of_fixed_size(original: Any, self: NodeMechanism, event: Event, again: int) -> np.ndarray:
    order = np.random.default_rng((self.seed, self.place, event.round, again)).permutation(event.population)
    return _batch(order, 0, round(event.expected))


@mutant(DRAWN, check_patients_are_drawn_by_independent_coins)
def shuffled_batches(original: Any, self: NodeMechanism, event: Event, again: int) -> np.ndarray:
    size = max(1, round(event.expected))
    epoch, batch = divmod(event.round, math.ceil(event.population / size))
    order = np.random.default_rng((self.seed, self.place, epoch)).permutation(event.population)
    return _batch(order, batch * size, size)


@mutant(DRAW, check_patients_are_drawn_by_independent_coins)
def draw_cut_to_a_pad(original: Any, self: NodeMechanism, round_number: int, *, again: int = 0) -> Draw:
    full: Draw = original(self, round_number, again=again)
    return replace(full, members=full.members[: math.ceil(1.5 * self.event.expected)])


@mutant(DRAW, check_the_statement_is_that_of_all_rounds_seen)
def rate_stated_as_one_over_the_number_of_batches(
    original: Any, self: NodeMechanism, round_number: int, *, again: int = 0
) -> Draw:
    # 24 of 44 make two batches: stated 0.5, drawn 0.545. It bites where R does not divide N.
    full: Draw = original(self, round_number, again=again)
    batches = math.ceil(self.event.population / self.event.expected)
    return replace(full, event=replace(full.event, kind=replace(full.event.kind, sampling_probability=1 / batches)))


@mutant(DRAWN, check_patients_are_drawn_by_independent_coins)
def empty_draw_drawn_anew(original: Any, self: NodeMechanism, event: Event, again: int) -> np.ndarray:
    members: np.ndarray = original(self, event, again)
    further = 1000
    while not len(members):
        members = original(self, event, further)
        further += 1
    return members


@mutant(DRAWN, check_patients_are_drawn_by_independent_coins)
def mask_reused_in_every_round(original: Any, self: Any, event: Any, again: Any) -> Any:
    return original(self, replace(event, round=0), again)


@mutant(DRAWN, check_patients_are_drawn_by_independent_coins)
def mask_shared_by_all_nodes(original: Any, self: NodeMechanism, event: Event, again: int) -> Any:
    first = copy.copy(self)
    first.place = 0
    return original(first, event, again)


@mutant(DRAWN, check_a_repeated_round_is_drawn_anew)
def repeated_round_keeps_its_draw(original: Any, self: Any, event: Any, again: Any) -> Any:
    return original(self, event, 0)


@mutant("zetadp.privacy.mechanism:bernoulli_mask", check_exact_sampling_is_by_independent_coins)
def exact_batches_of_fixed_size(original: Any, probability: Fraction, count: int, *more: Any) -> np.ndarray:
    return np.isin(np.arange(count), _batch(np.random.default_rng().permutation(count), 0, round(probability * count)))
