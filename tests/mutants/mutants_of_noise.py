"""Wrong noise: too little, in the wrong place, used twice, or divided by what is private."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mutants.checks_of_audit import (
    check_audit_of_an_imaginary_canary,
    check_audit_of_nodes,
    check_audit_of_rounds,
)
from mutants.checks_of_hospitals import (
    check_hospitals_add_exact_noise_as_stated,
    check_hospitals_share_no_noise,
    check_hospitals_without_patients_send_noise,
)
from mutants.checks_of_noise import (
    check_a_repeated_round_shows_nothing_bare,
    check_exact_messages_are_kept_before_they_are_sent,
    check_exact_noise_is_never_the_same,
    check_noise_hides_the_low_bits,
    check_noise_is_as_stated,
    check_trainings_share_no_noise,
)
from mutants.installing import mutant

if TYPE_CHECKING:
    from collections.abc import Callable
    from fractions import Fraction
    from pathlib import Path

    from torch import Tensor

    from zetadp.privacy.events import Event
    from zetadp.privacy.mechanism import Draw, NodeMechanism

SEEDED = "zetadp.privacy.mechanism:NodeMechanism._privatised"
RELEASE = "zetadp.privacy.mechanism:NodeMechanism.release"
EXACT = "zetadp.privacy.mechanism:rounded_normal"


def _mutant_of_noise(killer: Callable[[Path], None]) -> Any:
    """Register what alters the shipped noise, as it stands after the division by R, and the check that kills it."""

    def register(alter: Callable[[NodeMechanism, Tensor], Tensor]) -> None:
        @wraps(alter)
        def privatised(original: Any, self: NodeMechanism, event: Event, clipped_sum: Tensor, again: int) -> Tensor:
            if self.event.noise_multiplier == 0 or self.seed is None:
                return torch.as_tensor(original(self, event, clipped_sum, again))
            noise = original(self, event, torch.zeros_like(clipped_sum), again)
            return clipped_sum / self.event.expected + alter(self, noise)

        mutant(SEEDED, killer)(privatised)

    return register


@_mutant_of_noise(check_audit_of_an_imaginary_canary)
def noise_in_the_real_part_only(mechanism: NodeMechanism, noise: Tensor) -> Tensor:
    noise[1::2] = 0  # the stubs' complex parameters come first, and their imaginary parts have odd places
    return noise


@_mutant_of_noise(check_noise_is_as_stated)
def complex_normal_of_half_variance(mechanism: NodeMechanism, noise: Tensor) -> Tensor:
    # PyTorch's complex normal of unit variance, at a place of the stream that only this draw has.
    generator = torch.Generator().manual_seed(int(noise.abs().sum().view(torch.int32)))
    pairs = torch.randn(len(noise) // 2 + 1, dtype=torch.complex64, generator=generator)
    scale = mechanism.event.noise_multiplier * mechanism.event.clip / mechanism.event.expected
    return scale * torch.view_as_real(pairs).flatten()[: len(noise)]


@_mutant_of_noise(check_noise_is_as_stated)
def noise_not_scaled_by_the_clip(mechanism: NodeMechanism, noise: Tensor) -> Tensor:
    return noise / mechanism.event.clip


@_mutant_of_noise(check_noise_is_as_stated)
def noise_divided_twice(mechanism: NodeMechanism, noise: Tensor) -> Tensor:
    return noise / mechanism.event.expected


@_mutant_of_noise(check_noise_is_as_stated)
def sigma_taken_for_the_variance(mechanism: NodeMechanism, noise: Tensor) -> Tensor:
    return noise / mechanism.event.noise_multiplier**0.5


@_mutant_of_noise(check_noise_is_as_stated)
def noise_cut_off_at_three_deviations(mechanism: NodeMechanism, noise: Tensor) -> Tensor:
    limit = 3 * mechanism.event.noise_multiplier * mechanism.event.clip / mechanism.event.expected
    return noise.clamp(-limit, limit)


@_mutant_of_noise(check_hospitals_share_no_noise)
def one_noise_for_both_parts(mechanism: NodeMechanism, noise: Tensor) -> Tensor:
    noise[1::2] = noise[0::2][: len(noise[1::2])]
    return noise


@_mutant_of_noise(check_noise_hides_the_low_bits)
def noise_in_half_precision(mechanism: NodeMechanism, noise: Tensor) -> Tensor:
    scale = mechanism.event.noise_multiplier * mechanism.event.clip / mechanism.event.expected
    return (noise / scale).half().float() * scale


@mutant(SEEDED, check_audit_of_rounds)
def noise_reused_between_rounds(
    original: Any, self: NodeMechanism, event: Event, clipped_sum: Tensor, again: int
) -> Any:
    return original(self, replace(event, round=0), clipped_sum, again)


@mutant(SEEDED, check_audit_of_nodes)
def noise_seeded_alike_on_all_nodes(
    original: Any, self: NodeMechanism, event: Event, clipped_sum: Tensor, again: int
) -> Any:
    first = copy.copy(self)
    first.place = 0
    return original(first, event, clipped_sum, again)


@mutant("zetadp.core.assembly:Assembly.mechanism", check_trainings_share_no_noise)
def nodes_built_with_one_stream(original: Any, self: Any, name: str, entropy: int, ledger: Any) -> Any:
    made = original(self, name, entropy, ledger)
    made.place = 0
    return made


@mutant("zetadp.core.plan:Plan.entropy", check_trainings_share_no_noise)
def trainings_seeded_by_their_seed_alone(original: Any, self: Any, repeat: Any = 0) -> Any:
    return self.run.seed


@mutant("zetadp.core.training:_repeat", check_trainings_share_no_noise)
def other_data_of_a_training_forgotten(original: Any, plan: Any, ledger: Any, keyed: Any) -> Any:
    return 0


@mutant(SEEDED, check_a_repeated_round_shows_nothing_bare)
def replay_with_a_fresh_gradient_under_the_same_noise(
    original: Any, self: Any, event: Any, clipped_sum: Any, again: Any
) -> Any:
    return original(self, event, clipped_sum, 0)


@mutant(RELEASE, check_noise_is_as_stated)
def divisor_is_the_realised_batch(
    original: Any, self: NodeMechanism, draw: Draw, clipped_sum: Tensor, *, again: int = 0
) -> Any:
    return original(self, draw, clipped_sum, again=again) * self.event.expected / max(1, len(draw.members))


@mutant(RELEASE, check_hospitals_without_patients_send_noise)
def empty_batch_releases_zeros(
    original: Any, self: NodeMechanism, draw: Draw, clipped_sum: Tensor, *, again: int = 0
) -> Any:
    message = original(self, draw, clipped_sum, again=again)
    return message if len(draw.members) else torch.zeros_like(message)


@mutant(EXACT, check_hospitals_add_exact_noise_as_stated)
def exact_noise_of_half_variance(original: Any, count: Any, scale: Any, *more: Any, **named: Any) -> Any:
    # sqrt(1/2) as a fraction, so that only the scale is wrong.
    return original(count, scale * 5741 / 8119, *more, **named)


@mutant(EXACT, check_hospitals_add_exact_noise_as_stated)
def exact_noise_in_the_real_part_only(
    original: Any, count: int, scale: Fraction, *more: Any, **named: Any
) -> np.ndarray:
    noise: np.ndarray = original(count, scale, *more, **named)
    noise[1::2] = 0
    return noise


@mutant(EXACT, check_exact_noise_is_never_the_same)
def exact_noise_from_a_fixed_seed(original: Any, count: int, scale: Fraction, *more: Any, **named: Any) -> np.ndarray:
    return np.rint(float(scale) * np.random.default_rng(0).standard_normal(count)).astype(np.int64)


@mutant("zetadp.privacy.grid:Grid.noise_scale", check_hospitals_add_exact_noise_as_stated)
def exact_noise_in_units_of_the_step(original: Any, self: Any, noise_multiplier: Any) -> Any:
    return original(self, noise_multiplier) / 2**self.bits


@mutant("zetadp.core.outbox:Outbox.keep", check_exact_messages_are_kept_before_they_are_sent)
def message_sent_before_it_is_kept(original: Any, self: Any, number: int, weights: Tensor, messages: Tensor) -> None:
    folder, self.folder = self.folder, None
    original(self, number, weights, messages)
    self.folder = folder
