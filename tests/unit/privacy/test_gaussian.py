"""The Gaussian mechanism: published values, inverses, and independent integration."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from zetadp.privacy import gaussian

ROOT2 = math.sqrt(2)


@pytest.mark.parametrize(
    ("mu", "deltas"),
    [
        (0.5, (5.244032e-02, 6.829595e-03, 9.439169e-06, 2.706034e-16)),
        (1.0, (2.384217e-01, 1.269367e-01, 2.092364e-02, 4.712241e-05)),
        (ROOT2, (4.000513e-01, 2.862082e-01, 1.145246e-01, 5.838013e-03)),
        (2.0, (5.991856e-01, 5.098617e-01, 3.318980e-01, 8.495332e-02)),
    ],
)
def test_delta_has_its_published_values(mu, deltas):
    found = [gaussian.delta(epsilon, mu) for epsilon in (0.5, 1, 2, 4)]
    assert found == pytest.approx(deltas, rel=5e-7)  # seven digits printed


def test_mu_has_its_published_values():
    found = [gaussian.mu(epsilon, 1e-3) for epsilon in (1, 3, 5, 8, 10)]
    assert found == pytest.approx((0.3884, 0.9641, 1.4496, 2.0833, 2.4627), abs=6e-5)
    assert 1 / gaussian.mu(1, 1e-5) == pytest.approx(3.73063, abs=6e-6)


@pytest.mark.parametrize(
    ("epsilon", "sigma", "true_epsilon", "true_delta"),
    [(0.5, 7.032, 0.730, 5.4e-4), (1, 3.731, 1.465, 8.0e-4), (3, 1.391, 4.463, 1.9e-3), (8, 0.600, 12.256, 6.1e-3)],
)
def test_half_the_variance_in_each_part_costs_a_factor_root_two_in_mu(epsilon, sigma, true_epsilon, true_delta):
    """The mistake of an earlier complex mechanism: calibrated as if each part had the full variance."""
    calibrated = 1 / gaussian.mu(epsilon, 1e-5)
    assert calibrated == pytest.approx(sigma, abs=6e-4)
    assert gaussian.epsilon(1e-5, ROOT2 / calibrated) == pytest.approx(true_epsilon, abs=1.5e-3)
    assert gaussian.delta(epsilon, ROOT2 / calibrated) == pytest.approx(true_delta, abs=5e-5)  # two digits printed


@pytest.mark.parametrize("mu", [1.0, ROOT2])
def test_trade_off_has_its_published_values(mu):
    published = {1.0: (0.9076, 0.7405, 0.6109), ROOT2: (0.8192, 0.5912, 0.4472)}[mu]
    assert [gaussian.beta(alpha, mu) for alpha in (0.01, 0.05, 0.1)] == pytest.approx(published, abs=6e-5)


@given(epsilon=st.floats(0, 30), mu=st.floats(0.05, 6))
def test_delta_is_the_integral_of_the_excess_density(epsilon, mu):
    """Hockey-stick divergence by quadrature: an independent route to the closed form."""
    x = np.linspace(-12, 12 + mu, 40_001)
    excess = np.maximum(norm.pdf(x, loc=mu) - math.exp(epsilon) * norm.pdf(x), 0)
    assert gaussian.delta(epsilon, mu) == pytest.approx(np.trapezoid(excess, x), rel=1e-4, abs=1e-12)


@pytest.mark.parametrize(("mu", "t"), [(1e-5, 30.0), (0.5, 20.0), (3.0, 36.0)])
def test_delta_keeps_its_digits_in_the_tail(mu, t):
    """The divergence as one integral without a difference: phi(t) int exp(-tu - u^2/2) (1 - exp(-mu u)) du."""
    integral = quad(lambda u: math.exp(-t * u - u * u / 2) * -math.expm1(-mu * u), 0, 40 / t, epsabs=0, epsrel=1e-12)[0]
    assert gaussian.delta(mu * (t + mu / 2), mu) == pytest.approx(norm.pdf(t) * integral, rel=2e-9, abs=0)


@given(log_delta=st.floats(-600, -0.7), mu=st.floats(1e-3, 30))
def test_epsilon_and_mu_invert_delta_however_small(log_delta, mu):
    delta = math.exp(log_delta)
    epsilon = gaussian.epsilon(delta, mu)
    if epsilon > 0:
        assert gaussian.delta(epsilon, mu) == pytest.approx(delta, rel=1e-7)
        assert gaussian.mu(epsilon, delta) == pytest.approx(mu, rel=1e-7)
    else:
        assert gaussian.delta(0, mu) <= delta


@given(alpha=st.floats(1e-6, 1 - 1e-6), epsilon=st.floats(0, 10), mu=st.floats(0.01, 5))
def test_no_point_of_the_trade_off_breaks_a_privacy_pair(alpha, epsilon, mu):
    bound = 1 - gaussian.delta(epsilon, mu) - math.exp(epsilon) * alpha
    assert gaussian.beta(alpha, mu) >= bound - 1e-12


@pytest.mark.parametrize("delta", [0.9, 1e-3, 1e-10])
@pytest.mark.parametrize("mu", [9.9e4, 1.1e5, 1e9, 1e30])
def test_epsilon_of_next_to_no_noise_is_a_quantile_of_the_privacy_loss(mu, delta):
    """The loss is N(mu^2 / 2, mu^2), and epsilon its upper delta-quantile but for a term of order one."""
    quantile = mu * (mu / 2 + norm.isf(delta))
    assert gaussian.epsilon(delta, mu) == pytest.approx(quantile, rel=1e-9)


def test_epsilon_does_not_jump_where_its_form_changes():
    below, above = (gaussian.epsilon(1e-3, 1e5 * factor) for factor in (1 - 1e-12, 1 + 1e-12))
    assert below < above == pytest.approx(below, rel=1e-9)
    assert gaussian.epsilon(1e-3, 1e160) == math.inf


def test_limits():
    assert gaussian.delta(1, 0) == 0
    assert gaussian.delta(1, math.inf) == 1
    assert gaussian.epsilon(1e-3, 0) == 0
    assert gaussian.epsilon(1e-3, math.inf) == gaussian.epsilon(0, 1) == math.inf
    assert gaussian.beta(0.3, 0) == pytest.approx(0.7)
    assert gaussian.beta(0.3, math.inf) == 0
    assert gaussian.mu(math.inf, 1e-3) == math.inf


@pytest.mark.parametrize(
    "call", [lambda: gaussian.delta(1, -1), lambda: gaussian.epsilon(2, 1), lambda: gaussian.mu(-1, 0.1)]
)
def test_nonsense_is_refused(call):
    with pytest.raises(ValueError, match="Expected"):
        call()
