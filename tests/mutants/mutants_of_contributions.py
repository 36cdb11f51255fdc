"""Wrong gradients, wrong clipping, and patients that show in what others add."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mutants.checks_of_contributions import (
    check_a_contribution_does_not_depend_on_others,
    check_a_contribution_is_the_slope_of_the_patients_loss,
    check_a_patient_that_is_not_finite_adds_zero,
    check_no_patient_adds_more_than_the_clip,
    check_nothing_longer_than_the_clip_gets_onto_the_grid,
    check_preparation_keeps_patients_apart,
)
from mutants.installing import mutant, replacement
from zetadp.core.records import Node
from zetadp.privacy import clipping
from zetadp.privacy.clipping import ClippedSums
from zetadp.privacy.contributions import Contribution, Contributors
from zetadp.privacy.mechanism import Draw

if TYPE_CHECKING:
    from torch import Tensor

SUMS = "zetadp.privacy.clipping:clipped_sums"
FACTORS = "zetadp.privacy.clipping:clip_factors"


def _by_image(original: Any, divide: bool) -> Any:
    """Return `clipped_sums` with every image treated as a patient."""

    def clipped_sums(contribution: Contribution, drawn: Contributors, **more: Any) -> Any:
        each = drawn.items.shape[1]
        alone = replace(drawn, items=drawn.items.view(-1, 1), groups=drawn.groups.repeat_interleave(each))
        found = original(contribution, alone, **more)
        return ClippedSums(found.sums / each if divide else found.sums, found.not_finite)

    return clipped_sums


@replacement(SUMS, check_no_patient_adds_more_than_the_clip)
def clipping_by_image_and_adding_up(original: Any) -> Any:
    return _by_image(original, divide=False)


@replacement(SUMS, check_a_contribution_is_the_slope_of_the_patients_loss)
def clipping_by_image_and_averaging(original: Any) -> Any:
    return _by_image(original, divide=True)


@mutant(SUMS, check_no_patient_adds_more_than_the_clip)
def clipping_by_layer_without_the_root(
    original: Any, contribution: Contribution, drawn: Contributors, *, bound: Any, **more: Any
) -> Any:
    if bound is None or more["grid"] is not None or not len(drawn.items):
        return original(contribution, drawn, bound=bound, **more)
    gradients = contribution.rows(drawn.inputs[drawn.items], drawn.targets[drawn.items], factors=False)
    factors = [clipping.clip_factors([g], bound)[0] for g in gradients]
    rows = torch.cat([f[:, None] * g.nan_to_num(0, 0, 0) for f, g in zip(factors, gradients, strict=True)], dim=1)
    return ClippedSums(torch.zeros(drawn.count, rows.shape[1]).index_add_(0, drawn.groups, rows), 0)


@mutant(SUMS, check_a_contribution_does_not_depend_on_others)
def clipping_of_the_sum(original: Any, *arguments: Any, bound: Any, **more: Any) -> Any:
    if bound is None or more["grid"] is not None:
        return original(*arguments, bound=bound, **more)
    sums = original(*arguments, bound=None, **more).sums
    return ClippedSums(sums * clipping.clip_factors([sums], bound)[0][:, None], 0)


@mutant(SUMS, check_a_contribution_does_not_depend_on_others)
def only_the_first_pass_is_summed(original: Any, contribution: Contribution, drawn: Contributors, **more: Any) -> Any:
    # A batch of fixed shape: who does not fit is left out.
    return original(contribution, replace(drawn, items=drawn.items[:2], groups=drawn.groups[:2]), **more)


@mutant(FACTORS, check_no_patient_adds_more_than_the_clip)
def norm_of_the_real_part_only(original: Any, gradients: Any, bound: Any) -> Any:
    return original([g[:, 0::2] for g in gradients], bound)


@replacement(FACTORS, check_no_patient_adds_more_than_the_clip)
def norm_from_squares_without_modulus(original: Any) -> Any:
    def square_root(g: Tensor) -> Tensor:
        # abs(sum of z^2), whose root takes the place of the norm.
        if g.shape[1] % 2:
            return g
        z = torch.view_as_complex(g.reshape(len(g), -1, 2).double())
        return z.square().sum(dim=1).abs().sqrt()[:, None]

    return lambda gradients, bound: original([square_root(g) for g in gradients], bound)


@mutant(FACTORS, check_no_patient_adds_more_than_the_clip)
def norm_in_bfloat16(original: Any, gradients: list[Tensor], bound: float | None) -> Any:
    norms = torch.cat(gradients, dim=1).norm(dim=1, keepdim=True).bfloat16().float()
    return original([norms], bound)


@mutant(FACTORS, check_no_patient_adds_more_than_the_clip)
def norm_of_the_longest_layer(original: Any, gradients: list[Tensor], bound: float | None) -> Any:
    return original([torch.stack([g.norm(dim=1) for g in gradients]).amax(dim=0)[:, None]], bound)


@mutant(FACTORS, check_no_patient_adds_more_than_the_clip)
def factor_rounded_to_nearest(original: Any, gradients: list[Tensor], bound: float | None) -> tuple[Tensor, Tensor]:
    found, finite = original(gradients, bound)
    return (found.double() / clipping.ROUNDED_DOWN).clamp_max(1.0).float(), finite


@mutant(FACTORS, check_a_patient_that_is_not_finite_adds_zero)
def patient_that_is_not_finite_goes_through(
    original: Any, gradients: list[Tensor], bound: float | None
) -> tuple[Tensor, Tensor]:
    found, finite = original(gradients, bound)
    return torch.where(finite, found, 1.0), torch.ones_like(finite)


@mutant(FACTORS, check_a_patient_that_is_not_finite_adds_zero)
def patient_that_is_not_finite_breaks_the_round_off(
    original: Any, gradients: list[Tensor], bound: float | None
) -> tuple[Tensor, Tensor]:
    found, finite = original(gradients, bound)
    if not finite.all():
        msg = "found gradients that are not finite"
        raise FloatingPointError(msg)
    return found, finite


@mutant("zetadp.privacy.grid:norms_within", check_nothing_longer_than_the_clip_gets_onto_the_grid)
def integer_norm_overflows(original: Any, values: Any, grid: Any) -> Any:
    return (values * values).sum(dim=1) <= min(4**grid.bits, 2**63 - 1)


@mutant("zetadp.privacy.factored:fold_gradient", check_a_contribution_is_the_slope_of_the_patients_loss)
def gradient_without_conjugate(original: Any, block: Tensor) -> Tensor:
    # sum of g x in place of sum of g conj(x)
    upper, lower = block.chunk(2, dim=1)
    (w11, w12), (w21, w22) = upper.chunk(2, dim=2), lower.chunk(2, dim=2)
    return torch.complex(w11 - w22, w21 + w12)


@mutant("zetadp.core.records:choose_items", check_a_contribution_does_not_depend_on_others)
def images_chosen_for_those_drawn_in_turn(original: Any, node: Node, draw: Draw, strata: np.ndarray, count: int) -> Any:
    # The first drawn gets what the stream gives first, whoever it is.
    in_turn = Draw(event=draw.event, members=np.arange(len(draw.members)))
    drawn = Node(node.mechanism, [node.units[member] for member in draw.members])
    return original(drawn, in_turn, strata, count) if len(draw.members) else original(node, draw, strata, count)


@mutant("zetadp.nn.normalisation:ComplexGroupNorm.forward", check_a_contribution_does_not_depend_on_others)
def normalisation_across_images(original: Any, self: Any, x: Tensor) -> Any:
    # Batch normalisation: every image has the mean of all.
    return original(self, x - x.mean(dim=0, keepdim=True))


@mutant("zetadp.mri.kspace:whiten", check_preparation_keeps_patients_apart)
def whitening_across_patients(original: Any, values: np.ndarray, epsilon: float = 1e-05) -> Any:
    # One mean and one covariance for the stack, which is laid out as a single image.
    return original(values.reshape(1, -1), epsilon).reshape(values.shape)


@mutant("zetadp.tasks.brain_sequences.task:standardise", check_preparation_keeps_patients_apart)
def standardising_across_patients(original: Any, images: Any) -> Any:
    return original(images.reshape(1, -1)).reshape(images.shape)


@mutant("zetadp.core.records:choose_items", check_a_contribution_is_the_slope_of_the_patients_loss)
def last_item_of_the_next_unit(original: Any, node: Node, draw: Draw, strata: np.ndarray, count: int) -> Any:
    # Ends of units are taken for included: one off in the map from items to their owners.
    found, weights = original(node, draw, strata, count)
    found = found.copy()
    found[:, -1] = (found[:, -1] + 1) % len(strata)
    return found, weights


@mutant("zetadp.core.records:choose_items", check_a_contribution_does_not_depend_on_others)
def first_unit_drawn_takes_the_place_of_the_last(
    original: Any, node: Node, draw: Draw, strata: np.ndarray, count: int
) -> Any:
    # A row of a batch that is counted twice, in place of another.
    found, weights = original(node, draw, strata, count)
    found = found.copy()
    found[-1:] = found[:1]
    return found, weights
