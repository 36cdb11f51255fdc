"""The scattering transform of images and of sounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from papers.complex_dp.scattering import (
    CHANNELS,
    HIGHEST,
    MODULATIONS,
    PER_OCTAVE,
    RATE,
    WINDOWS,
    _first_filters,
    normalised,
    scattering_of_images,
    scattering_of_sounds,
)

KYMATIO = {
    (0, 0, 0): 0.9336941242218018,
    (1, 3, 3): 0.19030536711215973,
    (9, 2, 4): 0.3536207973957062,
    (17, 1, 3): 0.004228659905493259,
    (50, 5, 1): 0.0027135489508509636,
}
"""By channel, row and column, what Kymatio 0.3.0 gives of `pattern`: ``Scattering2D(J=2, shape=(28, 28), L=8)``."""


def pattern():
    y, x = np.mgrid[:28, :28]
    return torch.from_numpy((np.sin(0.3 * y * y / 28 + 0.9 * x) + (y > x))[None]).float()


def test_coefficients_are_those_of_kymatio():
    found = scattering_of_images(pattern())[0]
    assert found.shape == (CHANNELS, 7, 7) == (81, 7, 7)
    for place, expected in KYMATIO.items():
        # Kymatio takes 3.1415 for pi, and float32 for its filters.
        assert found[place].item() == pytest.approx(expected, rel=1e-4)


def test_each_group_of_channels_has_mean_zero_and_variance_at_most_one():
    coefficients = scattering_of_images(torch.rand(4, 28, 28, generator=torch.Generator().manual_seed(0)))
    groups = normalised(coefficients).reshape(4, 27, 3 * 49)
    assert torch.allclose(groups.mean(dim=2), torch.zeros(()), atol=1e-4)
    # A floor keeps what is almost constant from being blown up.
    variance = coefficients.reshape(4, 27, -1).var(dim=2, correction=0)
    assert torch.allclose(groups.square().mean(dim=2), variance / (variance + 1e-5), rtol=1e-3)


def tone(frequency: float, modulation: float = 0.0) -> np.ndarray:
    time = np.arange(RATE) / RATE
    wave = (1 + np.cos(2 * np.pi * modulation * time) * (modulation > 0)) * np.cos(2 * np.pi * frequency * time)
    return (8000 * wave).astype(np.int16)[None]


def orders(waves: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the coefficients of one clip: (frequency, place), and (frequency, modulation, place)."""
    found = scattering_of_sounds(torch.from_numpy(waves))[0]
    count = len(_first_filters()[0])
    first = found[: count * WINDOWS[0]].reshape(count, WINDOWS[0])
    return first, found[count * WINDOWS[0] :].reshape(count, len(MODULATIONS), WINDOWS[1])


@pytest.mark.parametrize("frequency", [250.0, 1000.0, 4000.0])
def test_the_filter_at_a_tone_answers_most(frequency):
    first, _ = orders(tone(frequency))
    centre = HIGHEST * 2 ** (-int(first[:, 4:12].mean(dim=1).argmax()) / PER_OCTAVE)
    assert abs(np.log2(centre / frequency)) <= 0.51 / PER_OCTAVE


@pytest.mark.parametrize("modulation", MODULATIONS)
def test_the_second_order_hears_how_fast_a_tone_swells(modulation):
    first, second = orders(tone(1000.0, modulation))
    loudest = int(first[:, 4:12].mean(dim=1).argmax())
    assert int(second[loudest, :, 2:6].mean(dim=1).argmax()) == MODULATIONS.index(modulation)
