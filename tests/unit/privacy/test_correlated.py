"""Correlated noise: the sensitivity is that of the worst patient, and the noise is what is accounted."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from zetadp.privacy import gaussian
from zetadp.privacy.correlated import BandedNoise, CorrelatedDraws, averaged_iterate, best_banded, prefix_sums

RANDOM = np.random.default_rng(7)
SOME = [
    BandedNoise(6, (1.0,)),
    BandedNoise(7, (1.0, 0.6)),
    BandedNoise(8, (1.0, -0.7, 0.4)),
    BandedNoise(8, (1.0, 1.3, 0.2, 0.9)),
    BandedNoise(5, (1.0, 0.5, 0.4, 0.3, 0.2)),
]


def change(banded: BandedNoise, contributions: np.ndarray) -> float:
    """Return the norm of C times a patient's contributions, shape (round, dimension)."""
    return float(np.linalg.norm(banded.matrix @ contributions))


@pytest.mark.parametrize("banded", SOME)
def test_the_sensitivity_is_that_of_the_worst_patient(banded):
    """By brute force over all patients, all subsets of their rounds and all signs, and random vectors."""
    worst = 0.0
    for patient in range(2 * banded.bands):
        rounds = [number for number in range(banded.rounds) if banded.taking_part(patient, number)]
        for signs in itertools.product((-1.0, 0.0, 1.0), repeat=len(rounds)):
            contributions = np.zeros((banded.rounds, 1))
            contributions[rounds, 0] = signs
            worst = max(worst, change(banded, contributions))
        for _ in range(50):
            directions = RANDOM.standard_normal((len(rounds), 3))
            contributions = np.zeros((banded.rounds, 3))
            contributions[rounds] = directions / np.linalg.norm(directions, axis=1, keepdims=True)
            assert change(banded, contributions) <= banded.sensitivity * (1 + 1e-12)
    assert worst == pytest.approx(banded.sensitivity, rel=1e-12)


def test_every_patient_has_rounds_that_are_a_whole_number_of_bands_apart():
    banded = SOME[2]
    taking = np.array([[banded.taking_part(patient, number) for number in range(8)] for patient in range(9)])
    assert (taking.sum(axis=0) == 3).all()
    for row in taking:
        assert (np.diff(np.flatnonzero(row)) == banded.bands).all()


@pytest.mark.parametrize("banded", SOME)
def test_the_noise_of_a_training_is_the_inverse_of_the_matrix_times_the_draws(banded):
    draws = RANDOM.standard_normal((banded.rounds, 4, 2))
    stream = CorrelatedDraws(banded)
    made = np.stack([stream.following(draw) for draw in draws])
    expected = np.linalg.solve(banded.matrix, draws.reshape(banded.rounds, -1)).reshape(draws.shape)
    np.testing.assert_allclose(made, expected, rtol=1e-10, atol=1e-10)
    assert len(stream.earlier) == banded.bands - 1


def test_a_draw_is_not_changed_and_noise_goes_on_where_it_stopped():
    banded = SOME[2]
    draws = RANDOM.standard_normal((8, 5))
    kept = draws.copy()
    whole = CorrelatedDraws(banded)
    expected = [whole.following(draw) for draw in draws]
    first = CorrelatedDraws(banded)
    begun = [first.following(draw) for draw in draws[:4]]
    second = CorrelatedDraws(banded, list(first.earlier))
    np.testing.assert_array_equal([*begun, *(second.following(draw) for draw in draws[4:])], expected)
    np.testing.assert_array_equal(draws, kept)


def test_without_further_bands_it_is_the_composition_of_gaussians():
    banded = BandedNoise(20, (1.0,))
    assert banded.mu(5.0) == pytest.approx(math.sqrt(20) / 5)
    independent = BandedNoise(20, (1.0, 0.0, 0.0, 0.0))
    assert independent.mu(5.0) == pytest.approx(math.sqrt(5) / 5)


@pytest.mark.parametrize("banded", SOME)
@pytest.mark.parametrize("target", [1.0, 8.0])
def test_calibration_meets_its_target_from_below(banded, target):
    sigma = banded.noise_for_epsilon(target, 1e-3)
    assert target * (1 - 1e-9) < banded.epsilon(sigma, 1e-3) <= target
    assert banded.epsilon(sigma, 1e-3) == gaussian.epsilon(1e-3, banded.sensitivity / sigma)


def test_what_two_neighbours_release_differs_by_mu_in_the_best_direction():
    """The privacy of what leaves the node, x + inverse(C) z, worked out from the covariance of its noise."""
    for banded in SOME:
        sigma = 1.7
        inverse = np.linalg.inv(banded.matrix)
        covariance = sigma**2 * inverse @ inverse.T
        found = []
        for patient in range(banded.bands):
            shift = np.array([float(banded.taking_part(patient, number)) for number in range(banded.rounds)])
            found.append(math.sqrt(shift @ np.linalg.solve(covariance, shift)))
        assert max(found) == pytest.approx(banded.mu(sigma), rel=1e-10)


@pytest.mark.parametrize(
    "workload",
    [prefix_sums(8), averaged_iterate(8, 0.5), np.eye(8)[:1]],
    ids=["prefix", "averaged", "first"],
)
def test_the_error_is_the_spread_of_what_is_used_at_the_end(workload):
    banded = SOME[2]
    noise = np.stack(
        [stream.following(draw) for stream in [CorrelatedDraws(banded)] for draw in RANDOM.standard_normal((8, 40_000))]
    )
    measured = banded.sensitivity * math.sqrt(float(((workload @ noise) ** 2).mean()))
    # 40 000 draws of correlated sums: the standard error is below 1 %.
    assert measured == pytest.approx(banded.error(workload), rel=0.03)


@pytest.mark.parametrize("averaged", [0.0, 0.3, 0.5, 1.0])
def test_the_averaged_iterate_is_that_of_descent(averaged):
    steps = RANDOM.standard_normal(10)
    iterates = np.cumsum(steps)
    last = max(1, round(averaged * 10))
    assert float(averaged_iterate(10, averaged)[0] @ steps) == pytest.approx(iterates[-last:].mean())


@pytest.mark.parametrize("workload", [prefix_sums(24), averaged_iterate(24, 0.5)], ids=["prefix", "averaged"])
@pytest.mark.parametrize("bands", [1, 2, 4, 8])
def test_the_best_correlation_is_no_worse_than_its_neighbours(workload, bands):
    best = best_banded(24, bands, workload)
    assert best.bands == bands
    least = best.error(workload)
    assert least <= BandedNoise(24, (1.0, *[0.0] * (bands - 1))).error(workload) * (1 + 1e-12)
    for place, step in itertools.product(range(1, bands), (-0.05, 0.05)):
        moved = list(best.coefficients)
        moved[place] += step
        assert BandedNoise(24, tuple(moved)).error(workload) >= least * (1 - 1e-6)


def test_correlation_helps_prefix_sums_where_patients_skip_rounds():
    workload = prefix_sums(24)
    independent, best = BandedNoise(24, (1.0, 0.0, 0.0, 0.0)), best_banded(24, 4, workload)
    assert best.error(workload) < 0.85 * independent.error(workload)


@pytest.mark.parametrize("coefficients", [(), (2.0,), (1.0, math.nan), (1.0, 0.5, 0.5, 0.5)])
def test_what_is_no_correlation_is_refused(coefficients):
    with pytest.raises(ValueError, match="coefficients"):
        BandedNoise(3, coefficients)
