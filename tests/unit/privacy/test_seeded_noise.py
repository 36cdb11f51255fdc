"""Draws of directions follow their law, in real and in complex vectors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from zetadp.base.randomness import Purpose, stream
from zetadp.privacy.bessel import mean_cosine, order_of
from zetadp.privacy.directions import cosine_law
from zetadp.privacy.seeded_noise import draw_cosines, draw_direction

SIGMAS = 5
"""Standard errors that a mean may be off: a false alarm in two million."""


def draws(place: int = 0) -> np.random.Generator:
    return stream(0, Purpose.NOISE, place)


@pytest.mark.parametrize(
    ("dimension", "concentration"),
    [(3, 2), (64, 30), (13_700, 25), (13_700, 500), (13_700, 5000), (1_000_000, 500), (10, 0)],
)
def test_moments_of_the_cosine(dimension, concentration):
    count = 100_000
    found = draw_cosines(concentration, dimension, count, draws())
    mean = float(mean_cosine(order_of(dimension), concentration))
    variance = 1 - mean**2 - (dimension - 1) * mean / concentration if concentration else 1 / dimension
    assert abs(found.mean() - mean) < SIGMAS * math.sqrt(variance / count)
    # The fourth moment is at most that of a normal distribution, up to a skew that is small here.
    assert abs(found.var() / variance - 1) < SIGMAS * math.sqrt(2.5 / count)


def test_the_cosine_has_the_law_that_is_accounted_for():
    law = cosine_law(30, 64)
    below = np.concatenate([[0], np.exp(law.towards).sum(axis=1).cumsum()])
    found = draw_cosines(30, 64, 50_000, draws())
    assert kstest(found, lambda t: np.interp(t, law.edges, below)).pvalue > 1e-6


def quadrature(centre: torch.Tensor, concentration: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return real and imaginary parts of the products of a unit centre with draws around it."""
    drawn = torch.stack([draw_direction(centre, concentration, draws(i)) for i in range(count)])
    products = (drawn * centre.conj()).sum(dim=1).numpy()
    return products.real, products.imag


def check_parts(centre: torch.Tensor, concentration: float, count: int) -> None:
    dimension = 2 * len(centre)
    real, imaginary = quadrature(centre, concentration, count)
    mean = float(mean_cosine(order_of(dimension), concentration))
    along = 1 - mean**2 - (dimension - 1) * mean / concentration
    across = (dimension - 1) * mean / concentration / (dimension - 1)
    assert abs(real.mean() - mean) < SIGMAS * math.sqrt(along / count)
    assert abs(imaginary.mean()) < SIGMAS * math.sqrt(across / count)
    assert abs(imaginary.var() / across - 1) < SIGMAS * math.sqrt(2 / count)


def complex_centre(size: int) -> torch.Tensor:
    centre = torch.randn(size, dtype=torch.complex128, generator=torch.Generator().manual_seed(1))
    return centre / torch.linalg.vector_norm(centre)


@pytest.mark.parametrize(("size", "concentration", "count"), [(8, 20.0, 2000), (6850, 500.0, 1000)])
def test_real_and_imaginary_part_of_complex_products(size, concentration, count):
    check_parts(complex_centre(size), concentration, count)


def test_all_directions_across_the_centre_are_alike():
    centre = torch.tensor([3.0, -4.0, 12.0, 0.0], dtype=torch.float64)
    drawn = torch.stack([draw_direction(centre, 3.0, draws(i)) for i in range(4000)]).numpy()
    x = centre.numpy() / 13
    mean = float(mean_cosine(order_of(4), 3.0))
    across = mean / 3.0
    second = drawn.T @ drawn / len(drawn)
    expected = across * np.eye(4) + (1 - 4 * across) * np.outer(x, x)
    assert np.abs(drawn.mean(axis=0) - mean * x).max() < SIGMAS * math.sqrt(0.5 / len(drawn))
    assert np.abs(second - expected).max() < SIGMAS * math.sqrt(0.5 / len(drawn))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
def test_shape_type_and_length(dtype):
    centre = torch.randn(20, 30, dtype=dtype, generator=torch.Generator().manual_seed(1))
    drawn = draw_direction(centre, 40.0, draws())
    assert (drawn.shape, drawn.dtype) == (centre.shape, dtype)
    assert float(torch.linalg.vector_norm(drawn)) == pytest.approx(1, abs=1e-6)
    # Only the direction counts, and the same draws give the same output.
    assert torch.equal(drawn, draw_direction(4 * centre, 40.0, draws()))
    assert not torch.equal(drawn, draw_direction(centre, 40.0, draws(1)))


def test_a_conjugate_view_is_read_as_its_values():
    centre = torch.tensor([1 + 2j, 3 - 1j, 0.5j])
    conjugate = centre.conj()
    assert torch.equal(draw_direction(conjugate, 5.0, draws()), draw_direction(conjugate.resolve_conj(), 5.0, draws()))


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf])
def test_without_a_direction_a_fixed_public_one_is_taken(value):
    first = torch.zeros(50, dtype=torch.complex64)
    first[0] = 1
    nothing = torch.full((50,), value, dtype=torch.complex64)
    assert torch.equal(draw_direction(nothing, 1e3, draws()), draw_direction(first, 1e3, draws()))


def test_tiny_and_huge_centres_keep_their_direction():
    centre = torch.tensor([1.0, -2.0, 2.0, 0.5], dtype=torch.float64)
    expected = draw_direction(centre, 50.0, draws())
    for scale in (2.0**-1000, 2.0**900):
        assert torch.equal(draw_direction(centre * scale, 50.0, draws()), expected)


@pytest.mark.parametrize(("size", "concentration"), [(2, 1.0), (5, -1.0), (5, math.inf)])
def test_impossible_arguments_are_refused(size, concentration):
    with pytest.raises(ValueError, match="dimension >= 3 and a finite concentration"):
        draw_direction(torch.ones(size), concentration, draws())
