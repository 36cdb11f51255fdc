"""The Gaussian mechanism: published values, inverses, and independent integration."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from zetadp.accounting import gaussian

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


@pytest.mark.parametrize("delta", [0.9, 1e-3, 1e-10])
@pytest.mark.parametrize("mu", [9.9e4, 1.1e5, 1e9, 1e30])
def test_epsilon_of_next_to_no_noise_is_a_quantile_of_the_privacy_loss(mu, delta):
    """The loss is N(mu^2 / 2, mu^2), and epsilon its upper delta-quantile but for a term of order one."""
    quantile = mu * (mu / 2 + norm.isf(delta))
    assert gaussian.epsilon(delta, mu) == pytest.approx(quantile, rel=1e-9)


@pytest.mark.parametrize(
    "call", [lambda: gaussian.delta(1, -1), lambda: gaussian.epsilon(2, 1), lambda: gaussian.mu(-1, 0.1)]
)
def test_nonsense_is_refused(call):
    with pytest.raises(ValueError, match="Expected"):
        call()
