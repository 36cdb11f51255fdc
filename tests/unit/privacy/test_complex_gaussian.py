"""The complex Gaussian mechanism as a whole: its noise, its best test and its bounds agree with each other."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import kstest, multivariate_normal, norm

from zetadp.privacy import gaussian
from zetadp.privacy.complex_gaussian import ComplexGaussian

ROOT2 = math.sqrt(2)
RHOS = (0.0, 0.5, -0.5, 0.9)
DRAWS = 400_000


def unit_vector(size: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    vector = rng.standard_normal(size) + 1j * rng.standard_normal(size)
    return vector / np.linalg.norm(vector)


# Sampling


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_noise_has_the_declared_variance_in_each_part_and_the_declared_correlation(rho, dtype):
    count, sigma = 1_000_000, 1.7
    noise = ComplexGaussian(sigma, rho).noise(count, np.random.default_rng(1), dtype)
    assert noise.dtype == dtype
    x, y = noise.real / sigma, noise.imag / sigma
    # Standard errors: of a mean 1 / sqrt(n), of a variance sqrt(2 / n), of a covariance sqrt((1 + rho^2) / n).
    for part in (x, y):
        assert abs(part.mean(dtype=float)) < 5 / math.sqrt(count)
        assert abs(np.square(part, dtype=float).mean() - 1) < 5 * math.sqrt(2 / count)
    assert abs((x * y).mean(dtype=float) - rho) < 5 * math.sqrt((1 + rho**2) / count)


@pytest.mark.parametrize("rho", RHOS)
def test_covariance_and_relation_are_those_of_the_definition(rho):
    """Gamma = E[psi psi^H] = 2 sigma^2 and C = E[psi psi^T] = 2 i rho sigma^2, none between coordinates."""
    sigma = 0.6
    noise = ComplexGaussian(sigma, rho).noise((DRAWS, 3), np.random.default_rng(2))
    # The variance of such a mean is at most 8 sigma^4 / n.
    bound = 5 * sigma**2 * math.sqrt(8 / DRAWS)
    assert np.abs(noise.T @ noise.conj() / DRAWS - 2 * sigma**2 * np.eye(3)).max() < bound
    assert np.abs(noise.T @ noise / DRAWS - 2j * rho * sigma**2 * np.eye(3)).max() < bound


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_correlation_buys_no_accuracy(rho):
    mechanism = ComplexGaussian(1.0, rho)
    noise = mechanism.noise(1_000_000, np.random.default_rng(3))
    assert mechanism.mean_squared_error == 2
    assert (abs(noise) ** 2).mean() == pytest.approx(2, abs=0.015)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_release_is_the_result_and_the_noise_of_its_generator(dtype):
    mechanism = ComplexGaussian(2.0, 0.3)
    result = unit_vector(12).reshape(3, 4).astype(dtype)
    kept = result.copy()
    released = mechanism.release(result, np.random.default_rng(5))
    assert (released.dtype, released.shape) == (dtype, (3, 4))
    assert np.array_equal(released, kept + mechanism.noise((3, 4), np.random.default_rng(5), dtype))
    assert np.array_equal(result, kept)
    assert not np.array_equal(released, mechanism.release(result, np.random.default_rng(6)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_real_noise_is_refused(dtype):
    with pytest.raises(ValueError, match="complex64 or complex128"):
        ComplexGaussian(1.0).noise(3, np.random.default_rng(0), dtype)
    with pytest.raises(ValueError, match="complex64 or complex128"):
        ComplexGaussian(1.0).release(np.ones(3, dtype), np.random.default_rng(0))


# The most powerful test


@pytest.mark.parametrize("rho", [0.0, 0.6, -0.8])
def test_likelihood_ratio_is_that_of_the_real_normal_distribution(rho):
    """An independent route: the densities of (Re, Im) with the covariance of the sampling recipe."""
    sigma, size = 1.3, 3
    first, second = unit_vector(size, 1), 2 * unit_vector(size, 2)
    mixing = sigma * np.array([[1, 0], [rho, math.sqrt(1 - rho**2)]])
    covariance = np.kron(mixing @ mixing.T, np.eye(size))
    mechanism = ComplexGaussian(sigma, rho)
    outputs = mechanism.release(np.tile(first, (2, 4, 1)), np.random.default_rng(4))

    def log_density(mean: np.ndarray) -> np.ndarray:
        parts = np.concatenate([outputs.real, outputs.imag], axis=-1)
        return multivariate_normal(np.concatenate([mean.real, mean.imag]), covariance).logpdf(parts)

    found = mechanism.log_likelihood_ratio(outputs, first, second)
    assert found.shape == (2, 4)
    np.testing.assert_allclose(found, log_density(second) - log_density(first), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("rho", [0.0, 0.6, -0.6])
def test_likelihood_ratio_agrees_with_the_augmented_covariance(rho):
    """The paper's own form: d^H [[Gamma, C], [conj C, conj Gamma]]^-1 d over stacked (d, conj d)."""
    sigma, difference = 0.9, unit_vector(2, 3)
    one = 2 * sigma**2 * np.eye(2)
    relation = 1j * rho * one
    augmented = np.block([[one, relation], [relation.conj(), one]])
    stacked = np.concatenate([difference, difference.conj()])
    quadratic = (stacked.conj() @ np.linalg.solve(augmented, stacked)).real
    mechanism = ComplexGaussian(sigma, rho)
    assert mechanism.difference_mu(np.zeros(2), difference) ** 2 == pytest.approx(quadratic)
    # At the second result itself the ratio is half of that.
    assert mechanism.log_likelihood_ratio(difference, np.zeros(2), difference) == pytest.approx(quadratic / 2)


@pytest.mark.parametrize("rho", [0.0, 0.6, -0.6])
def test_likelihood_ratio_is_normal_with_the_exact_mu(rho):
    """N(-d/2, d) where the first result is true, N(d/2, d) where the second is, d = difference_mu squared."""
    mechanism = ComplexGaussian(1.1, rho)
    first, second = unit_vector(3, 5), unit_vector(3, 6)
    mu = mechanism.difference_mu(first, second)
    for result, mean in ((first, -(mu**2) / 2), (second, mu**2 / 2)):
        outputs = mechanism.release(np.tile(result, (DRAWS, 1)), np.random.default_rng(7))
        ratio = mechanism.log_likelihood_ratio(outputs, first, second)
        assert ratio.mean() == pytest.approx(mean, abs=5 * mu / math.sqrt(DRAWS))
        assert ratio.var() == pytest.approx(mu**2, rel=5 * math.sqrt(2 / DRAWS))
        assert kstest((ratio - mean) / mu, "norm").pvalue > 1e-6


@pytest.mark.parametrize(
    ("part", "mu", "misses", "deltas"),
    [
        (1.0, 1.0, (0.9076, 0.7405, 0.6109), (0.1269, 0.0209, 0.0015)),
        (1 / ROOT2, ROOT2, (0.8192, 0.5912, 0.4472), (0.2862, 0.1145, 0.0317)),
    ],
    ids=["full variance in each part", "half the variance in each part"],
)
def test_simulated_attacks_have_the_published_errors(part, mu, misses, deltas):
    """Five coordinates, a change of norm one. Half the variance is the mistake of the earlier mechanism."""
    mechanism, change = ComplexGaussian(part), unit_vector(5)
    without, with_patient = (
        mechanism.log_likelihood_ratio(
            mechanism.release(np.tile(result, (DRAWS, 1)), np.random.default_rng(seed)), 0 * change, change
        )
        for seed, result in enumerate((0 * change, change))
    )
    assert mechanism.mu == pytest.approx(mu)
    assert without.var() == pytest.approx(mu**2, rel=5 * math.sqrt(2 / DRAWS))
    rates = (0.01, 0.05, 0.1)
    thresholds = np.quantile(without, [1 - rate for rate in rates])
    # Two binomial errors: of the misses, and of the threshold by way of the false alarms.
    assert [(with_patient <= threshold).mean() for threshold in thresholds] == pytest.approx(misses, abs=0.008)
    assert mechanism.trade_off(rates) == pytest.approx(misses, abs=6e-5)
    for epsilon, published in zip((1, 2, 3), deltas, strict=True):
        excess = np.maximum(0, -np.expm1(epsilon - with_patient))
        assert excess.mean() == pytest.approx(published, abs=5 * excess.std() / math.sqrt(DRAWS) + 6e-5)
        assert mechanism.delta(epsilon) == pytest.approx(published, abs=6e-5)


def test_shapes_that_do_not_fit_are_refused():
    mechanism = ComplexGaussian(1.0)
    assert mechanism.log_likelihood_ratio(1 + 1j, 0, 1j).shape == ()
    assert mechanism.log_likelihood_ratio(np.ones((5, 2, 3)), np.ones((2, 3)), np.ones((2, 3))).tolist() == [0] * 5
    with pytest.raises(ValueError, match="one shape"):
        mechanism.log_likelihood_ratio(np.ones((5, 3)), np.ones(3), np.ones(2))
    with pytest.raises(ValueError, match="end in it"):
        mechanism.log_likelihood_ratio(np.ones((3, 5)), np.ones(3), np.ones(3))


# What it costs


@pytest.mark.parametrize(
    ("rho", "by_theorem", "by_eigenvalue"),
    [(0, 1.0, 1.0), (0.3, 1.3260, 1.1952), (0.5, 1.632993, 1.414214), (0.6, 1.8540, 1.5811), (0.9, 3.8389, 3.1623)],
)
def test_bounds_have_their_published_values(rho, by_theorem, by_eigenvalue):
    for sign in (1, -1):
        mechanism = ComplexGaussian(1.0, sign * rho)
        assert mechanism.mu_by_theorem == pytest.approx(by_theorem, abs=6e-5)
        assert mechanism.mu_by_eigenvalue == mechanism.mu == pytest.approx(by_eigenvalue, abs=6e-5)


def test_the_theorem_is_taken_where_it_is_smaller():
    mechanism = ComplexGaussian(2.0, 0.5, sensitivity=1.0, sensitivity_real=0.8, sensitivity_imaginary=0.6)
    assert mechanism.mu == mechanism.mu_by_theorem == pytest.approx(0.702377, abs=6e-7)
    assert mechanism.mu_by_eigenvalue == pytest.approx(0.7071, abs=6e-5)
    assert mechanism.difference_mu(0, 0.8 + 0.6j) == pytest.approx(0.416333, abs=6e-7)
    assert mechanism.difference_mu(0.8 + 0.6j, 0) == pytest.approx(0.416333, abs=6e-7)


@given(
    rho=st.floats(-0.95, 0.95),
    real=st.floats(0.05, 1),
    angles=st.lists(st.floats(0, 2 * math.pi), min_size=2, max_size=2),
)
def test_no_change_within_the_sensitivities_exceeds_mu(rho, real, angles):
    """A search over changes of two coordinates, whose parts and whose whole are as long as they may be."""
    imaginary = math.sqrt(1 - real**2)
    x, y = (length * np.array([math.cos(a), math.sin(a)]) for length, a in zip((real, imaginary), angles, strict=True))
    mechanism = ComplexGaussian(0.7, rho, 1.0, real, imaginary)
    assert mechanism.difference_mu(np.zeros(2), x + 1j * y) <= mechanism.mu * (1 + 1e-12)


def test_circular_noise_has_mu_of_sensitivity_over_sigma_and_all_that_follows():
    mechanism = ComplexGaussian(4.0, sensitivity=2.0)
    assert mechanism.mu == pytest.approx(0.5)
    assert [mechanism.delta(epsilon) for epsilon in (0.5, 1, 2, 4)] == pytest.approx(
        (5.244032e-02, 6.829595e-03, 9.439169e-06, 2.706034e-16), rel=5e-7
    )
    assert mechanism.delta(mechanism.epsilon(1e-5)) == pytest.approx(1e-5)
    assert ComplexGaussian(1.0).epsilon(1e-5) == pytest.approx(4.3772, abs=6e-5)
    assert ComplexGaussian(1 / ROOT2).epsilon(1e-5) == pytest.approx(6.5730, abs=6e-5)
    assert mechanism.trade_off([0.0, 0.3, 1.0]) == [gaussian.beta(alpha, 0.5) for alpha in (0.0, 0.3, 1.0)]


@pytest.mark.parametrize("order", [2, 4, 8, 2.5])
@pytest.mark.parametrize("part", [1.0, 1 / ROOT2])
def test_renyi_divergence_is_that_of_integration(order, part):
    """Orders 2, 4 and 8 give 1, 2 and 4 at full variance, and twice that at half of it."""
    log_terms = [norm(loc, part).logpdf for loc in (1.0, 0.0)]

    def integrand(x: float) -> float:
        return math.exp(order * log_terms[0](x) + (1 - order) * log_terms[1](x))

    integral = quad(integrand, order - 12, order + 12, epsabs=0, epsrel=1e-10, limit=200)[0]
    mechanism = ComplexGaussian(part)
    assert mechanism.renyi(order) == pytest.approx(math.log(integral) / (order - 1), rel=1e-7)
    assert mechanism.renyi(order) == pytest.approx(order / 2 / part**2)


@pytest.mark.parametrize("order", [1, 0.5, -2, math.nan])
def test_orders_without_a_guarantee_are_refused(order):
    with pytest.raises(ValueError, match="order above one"):
        ComplexGaussian(1.0).renyi(order)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sigma": 0.0}, "sigma"),
        ({"sigma": -1.0}, "sigma"),
        ({"sigma": 1.0, "rho": 1.0}, "rho"),
        ({"sigma": 1.0, "rho": -1.0}, "rho"),
        ({"sigma": 1.0, "rho": math.nan}, "rho"),
        ({"sigma": 1.0, "sensitivity": 0.0}, "sensitivity"),
        ({"sigma": 1.0, "sensitivity_real": 1.1}, "sensitivity_real <= sensitivity"),
        ({"sigma": 1.0, "sensitivity_imaginary": -0.1}, "0 <= sensitivity_imaginary"),
        ({"sigma": 1.0, "sensitivity_imaginary": math.nan}, "sensitivity_imaginary"),
    ],
)
def test_impossible_settings_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        ComplexGaussian(**settings)
