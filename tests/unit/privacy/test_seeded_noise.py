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


def test_tiny_and_huge_centres_keep_their_direction():
    centre = torch.tensor([1.0, -2.0, 2.0, 0.5], dtype=torch.float64)
    expected = draw_direction(centre, 50.0, draws())
    for scale in (2.0**-1000, 2.0**900):
        assert torch.equal(draw_direction(centre * scale, 50.0, draws()), expected)
