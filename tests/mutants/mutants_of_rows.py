"""Wrong releases of mixed rows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mutants.checks_of_rows import (
    check_rows_have_the_noise_that_is_stated,
    check_rows_hold_units_as_often_as_stated,
    check_rows_move_by_the_clip_at_most,
)
from mutants.installing import mutant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from zetadp.core.records import LabelledItems, Node
    from zetadp.core.round import Phase
    from zetadp.privacy.clipping import ClippedSums
    from zetadp.privacy.mechanism import Draw, NodeMechanism

SUMS = "zetadp.core.round:_clipped_sums"


@mutant("zetadp.privacy.mechanism:NodeMechanism.draw", check_rows_hold_units_as_often_as_stated)
def open_rows_accounted_as_if_all_were(
    original: Any, self: NodeMechanism, round_number: int, *, again: int = 0
) -> Draw:
    full: Draw = original(self, round_number, again=again)
    rate = self.event.expected / self.event.population
    return replace(
        full, event=replace(full.event, kind=replace(full.event.kind, sampling_probability=rate), count=self.rows)
    )


@mutant(SUMS, check_rows_hold_units_as_often_as_stated)
def rows_open_to_every_class(original: Any, phase: Phase, *more: Any) -> ClippedSums:
    found: ClippedSums = original(replace(phase, schedule=None), *more)
    return found


@mutant(SUMS, check_rows_hold_units_as_often_as_stated)
def rows_divided_by_the_number_drawn(
    original: Any, phase: Phase, nodes: Sequence[Node], data: LabelledItems, draws: Sequence[Draw]
) -> ClippedSums:
    found: ClippedSums = original(phase, nodes, data, draws)
    rows = found.sums.view(len(draws) * phase.rows, -1)
    sizes = rows.new_tensor([[max(1, int((draw.rows == row).sum()))] for draw in draws for row in range(phase.rows)])
    return replace(found, sums=(rows * draws[0].event.expected / sizes).view_as(found.sums))


@mutant("zetadp.privacy.clipping:clip_factors", check_rows_move_by_the_clip_at_most)
def half_of_a_spectrum_counted_and_all_released(
    original: Any, gradients: Sequence[Tensor], bound: float | None
) -> tuple[Tensor, Tensor]:
    whole = all(hasattr(g, "shape") for g in gradients)
    half = [g[:, : g.shape[1] // 2] for g in gradients] if whole else gradients
    found: tuple[Tensor, Tensor] = original(half, bound)
    return found


@mutant("zetadp.privacy.seeded_noise:noisy_mean", check_rows_have_the_noise_that_is_stated)
def half_the_variance_on_rows(
    original: Any, clipped_sum: Tensor, deviation: float, expected: float, generator: Any
) -> Tensor:
    found: Tensor = original(clipped_sum, deviation / 2**0.5, expected, generator)
    return found
