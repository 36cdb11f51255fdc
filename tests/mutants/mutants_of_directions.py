"""Wrong directions: of another law, round another centre, or counted as less than they cost."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mutants.checks_of_directions import (
    check_a_direction_is_that_of_the_clipped_sum,
    check_empty_rounds_send_directions_as_stated,
    check_the_statement_of_directions_is_that_of_all_rounds,
)
from mutants.installing import mutant, replacement
from zetadp.privacy.directions import Direction

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from zetadp.privacy.events import NodeHistory

DRAW = "zetadp.privacy.seeded_noise:draw_direction"
CLIPPING = "zetadp.privacy.clipping:clip_factors"


@mutant("zetadp.privacy.seeded_noise:_orthogonal", check_empty_rounds_send_directions_as_stated)
def whole_complex_projection_taken_out(original: Any, w: np.ndarray, x: np.ndarray) -> np.ndarray:
    turned = np.stack([-x[1::2], x[0::2]], axis=1).ravel()
    return np.asarray(original(original(w, x), turned))


@mutant(DRAW, check_empty_rounds_send_directions_as_stated)
def sum_with_normal_noise_scaled_to_one(
    original: Any, centre: Tensor, concentration: float, draws: np.random.Generator
) -> Tensor:
    noise = torch.from_numpy(draws.standard_normal(len(centre))).float()
    largest = centre.norm().clamp_min(1e-12)
    return torch.nn.functional.normalize(concentration * centre / largest + noise, dim=0)


@mutant(DRAW, check_empty_rounds_send_directions_as_stated)
def sum_of_zero_sent_as_it_is(original: Any, centre: Tensor, *more: Any) -> Tensor:
    return torch.as_tensor(original(centre, *more)) if centre.any() else centre


@mutant(CLIPPING, check_a_direction_is_that_of_the_clipped_sum)
def direction_of_the_sum_before_clipping(original: Any, gradients: Any, bound: float | None) -> Any:
    return original(gradients, None)


@mutant(CLIPPING, check_a_direction_is_that_of_the_clipped_sum)
def direction_of_the_sum_of_directions(original: Any, gradients: Any, bound: float | None) -> Any:
    if bound is None:
        return original(gradients, bound)
    tiny = 1e-6
    scale, finite = original(gradients, tiny)
    return scale * (bound / tiny), finite


@mutant("zetadp.privacy.exposure:declared", check_the_statement_of_directions_is_that_of_all_rounds)
def directions_of_an_epoch_counted_as_one(original: Any, history: NodeHistory, declared_rounds: int) -> Counter[Any]:
    found = original(history, declared_rounds)
    return Counter({kind: math.ceil(kind.sampling_probability * count) for kind, count in found.items()})


@replacement("zetadp.privacy.accounting:epsilon_pld", check_the_statement_of_directions_is_that_of_all_rounds)
def centres_taken_to_be_at_right_angles(original: Any) -> Any:
    def nearer(kind: Any) -> Any:
        if not isinstance(kind, Direction):
            return kind
        return replace(kind, concentration=kind.concentration * math.sin(math.pi / 4))

    def epsilon(mechanisms: Mapping[Any, int], *more: float) -> float:
        return float(original({nearer(kind): count for kind, count in mechanisms.items()}, *more))

    return epsilon
