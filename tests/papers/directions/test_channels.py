"""Capacities are those of channels, and follow the paper's lemmas: what comes before the noise cannot raise them."""

from __future__ import annotations

import numpy as np
import pytest

from papers.directions.capacity import direction_capacity, gaussian_capacity, log_growth

NOISE, RADIUS = 0.7, 1.3


def capacity(channel: np.ndarray) -> float:
    """Return Bayes' capacity of a channel, a row for each input: the sum of the largest chance of each output."""
    return float(channel.max(axis=0).sum())


def noisy(inputs: np.ndarray) -> np.ndarray:
    """Return the channel of Gaussian noise in the plane, whose outputs are the cells of a fine grid."""
    side = np.linspace(-6, 6, 201)
    outputs = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    distances = np.square(inputs[:, None] - outputs).sum(axis=2)
    return np.exp(-distances / (2 * NOISE**2)) / (2 * np.pi * NOISE**2) * (side[1] - side[0]) ** 2


def disc(step: float) -> np.ndarray:
    """Return points of a disc, and many on its edge."""
    side = np.arange(-RADIUS, RADIUS + step, step)
    inside = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    angles = np.arange(0, 2 * np.pi, step / RADIUS)
    edge = RADIUS * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return np.concatenate([inside[np.linalg.norm(inside, axis=1) < RADIUS], edge])


def means(images: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the means of clipped pairs of images, and the channel that leads from each pair to its mean."""
    clipped = images / np.maximum(np.linalg.norm(images, axis=1, keepdims=True) / RADIUS, 1)
    first, second = np.divmod(np.arange(count**2), count)
    values, place = np.unique(((clipped[first] + clipped[second]) / 2).round(12), axis=0, return_inverse=True)
    return values, np.eye(len(values))[place.ravel()]


def test_the_capacity_of_gaussian_noise_is_that_of_the_channel_from_its_whole_ball():
    assert capacity(noisy(disc(0.1))) == pytest.approx(np.exp(gaussian_capacity(NOISE, RADIUS, 2)), rel=2e-3)


def test_the_capacity_of_directions_is_that_of_the_channel_from_the_whole_circle():
    angles = np.arange(400) * 2 * np.pi / 400
    density = np.exp(2.0 * np.cos(angles[:, None] - angles))
    channel = density / density.sum(axis=1, keepdims=True)
    assert capacity(channel) == pytest.approx(np.exp(direction_capacity(2.0, 2)), rel=1e-6)


def test_a_step_before_the_noise_counts_by_its_range_alone():
    """Lemmas 1 to 3, the corollary and Theorem 4, of a batch of two that is clipped and averaged."""
    images = np.random.default_rng(3).standard_normal((9, 2)) * 2
    values, step = means(images, 9)
    noise = noisy(values)
    whole = capacity(step @ noise)
    assert whole == pytest.approx(capacity(noise)), "no column of the step is empty (Lemma 1, Theorem 4)"
    assert 1 <= whole <= min(capacity(step), capacity(noise), np.exp(gaussian_capacity(NOISE, RADIUS, 2))) + 1e-9
    fewer = means(images, 4)[1] @ noisy(means(images, 4)[0])
    assert capacity(fewer) < whole, "a larger domain leaks more (the corollary of Lemma 2)"
    assert capacity(np.ones((3, 1))) == 1
    assert capacity(np.eye(3)) == 3


@pytest.mark.parametrize(
    ("order", "x", "growth"),
    [
        (24, 25, 5.664396977450607),
        (99, 75, 13.22787439455447),
        (6849, 500, 9.118022671005738),
        (6849, 50000, 33813.74134885979),
        (499999, 5000, 12.49984375552056),
    ],
)
def test_growth_has_known_values_where_no_bessel_function_is_a_double(order, x, growth):
    assert float(log_growth(order, x)) == pytest.approx(growth, rel=1e-9)
