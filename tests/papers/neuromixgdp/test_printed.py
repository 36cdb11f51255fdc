"""What the paper prints, and what is true: figures from an independent calculation, and identities between formulas."""

from __future__ import annotations

import math

import pytest
from scipy.special import ndtr

from papers.neuromixgdp.printed import (
    PrintedRelease,
    renyi_epsilon,
    split_noise,
    uniform_mu,
)
from zetadp.accounting import composition, gaussian
from zetadp.accounting.kinds import NoisySum
from zetadp.own.rows import BEST_RATIO, best_mixed

N, DELTA = 50_000, 1e-5


def release(class_rate: float = 1.0, mixed: float = 64) -> PrintedRelease:
    return PrintedRelease(N, mixed, N, class_rate)


def true_epsilon(sizes: PrintedRelease, noise: float, tolerance: float = 1e-2) -> float:
    """Return an upper bound that a coarse grid gets to within a fifth of a per cent."""
    return composition.epsilon(sizes.mechanisms(noise), DELTA, tolerance)


def test_the_papers_own_example():
    """It prints mu = 0.5016 and sigma = 0.8441 for epsilon 2, which shows that m is 64 and sigma the combined noise."""
    assert gaussian.epsilon(DELTA, 0.5016) == pytest.approx(2.0002, abs=6e-5)
    assert release().nominal_noise(0.5016) == pytest.approx(0.84396, abs=6e-6)
    assert release().nominal_noise(0.5016) == pytest.approx(0.8441, abs=2e-4)
    assert release().nominal_mu(0.84396) == pytest.approx(0.5016, abs=5e-6)


def test_theorem_e5_as_corrected_and_as_printed():
    settings = (64 / N, 0.8441, N, DELTA)
    assert renyi_epsilon(*settings) == pytest.approx(2.715, abs=6e-4)
    assert renyi_epsilon(*settings, misprint=True) == pytest.approx(6.419, abs=6e-4)
    # It is valid, and the accountant's own Renyi figure converts the same divergence better.
    assert renyi_epsilon(*settings) > composition.epsilon_rdp({NoisySum(*settings[:2]): N}, DELTA) > 2.06


def test_the_noise_of_a_row_has_a_floor():
    mu = gaussian.mu(1, DELTA)
    assert 1 / (mu * math.sqrt(N)) == pytest.approx(0.016684, abs=6e-7)
    assert split_noise(release(mixed=4096).nominal_noise(mu))[0] / 4096 == pytest.approx(0.02359, abs=1e-5)


@pytest.mark.parametrize("balance", [0.2, 1.0, 4.0])
def test_the_split_of_the_noise_adds_up(balance):
    features, labels = split_noise(0.8440, balance)
    assert labels / features == pytest.approx(balance)
    assert features**-2 + labels**-2 == pytest.approx(0.8440**-2)


def test_the_mechanisms_differ_in_what_amplifies():
    sizes = PrintedRelease(1000, 10, 200, class_rate=0.05)
    ((kind, rounds),) = sizes.mechanisms(2.0).items()
    assert (kind.sampling_probability, kind.noise_multiplier, rounds) == (pytest.approx(0.2), 2.0, 10)
    assert sizes.nominal_mu(sizes.nominal_noise(0.7)) == pytest.approx(0.7)
    assert sizes.safe_mu(sizes.safe_noise(0.7)) == pytest.approx(0.7)


def test_a_row_cannot_mix_more_than_the_active_classes_hold():
    with pytest.raises(ValueError, match="at most 50 records a row"):
        PrintedRelease(1000, 51, 200, class_rate=0.05)


def test_the_best_ratio_is_a_maximum():
    def signal(ratio: float) -> float:
        return ratio * math.log1p(ratio**-2)

    assert pytest.approx(0.5049762122, abs=1e-10) == BEST_RATIO
    assert signal(BEST_RATIO) == pytest.approx(0.8047423, abs=5e-8)
    assert max(signal(0.99 * BEST_RATIO), signal(1.01 * BEST_RATIO)) < signal(BEST_RATIO)
    for mu, records, rounds in ((0.3, N, N), (2.0, 300, 900)):
        best = PrintedRelease(records, best_mixed(mu, records, rounds), rounds)
        assert best.nominal_noise(mu) == pytest.approx(0.7921493, abs=5e-8)


@pytest.mark.parametrize(
    ("epsilon", "class_rate", "mixed", "true"), [(1, 1.0, 30.3, 1.045), (1, 0.03, 5.2, 1.34), (8, 0.03, 32.6, 8.82)]
)
def test_at_the_best_degree_epsilon_is_above_the_nominal_one(epsilon, class_rate, mixed, true):
    mu = gaussian.mu(epsilon, DELTA)
    sizes = release(class_rate, best_mixed(mu, N, N, class_rate))
    assert sizes.mixed == pytest.approx(mixed, abs=0.06)
    assert true_epsilon(sizes, sizes.safe_noise(mu)) == pytest.approx(true, rel=4e-3)


def test_samples_of_fixed_size_need_more_noise():
    assert uniform_mu(0.01, 2.0, 100) > composition.central_limit_mu(0.01, 2.0, 100)
    x = 1 / 2.0
    expected = 2 * (math.exp(x**2) * ndtr(1.5 * x) + 3 * ndtr(-0.5 * x) - 2)
    assert uniform_mu(0.01, 2.0, 100) == pytest.approx(0.1 * math.sqrt(expected))
