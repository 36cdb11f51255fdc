r"""Privacy formulas of the paper behind the feature release. Nothing in this module is a guarantee.

Li, Cao and Yao, *NeuroMixGDP: A Neural Collapse-Inspired Random Mixup for Private Data Release* (arXiv:2202.06467v2),
release `rounds` rows. Each row is the sum of about `mixed` of `records` records, divided by `mixed`, plus Gaussian
noise on the features (multiplier :math:`\sigma_x`) and on the label (:math:`\sigma_y`). The paper's epsilons
have two faults. First, the noise is calibrated with the central limit of many rounds, which understates epsilon at
small delta. Second, Proposition E.3 on Hierarchical Sampling assumes that a record is drawn independently of the other
records of its class, which is false.

The functions here repeat the paper's formulas, so that tables can compare printed epsilons with true ones
(`PrintedRelease.true_epsilon`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from papers.moments import sampled_moment
from zetadp.accounting import composition
from zetadp.accounting.composition import Exposure, central_limit_mu, central_limit_noise
from zetadp.accounting.kinds import NoisySum
from zetadp.base.validation import in_range, positive

ORDERS = range(2, 257)
"""Orders of the Renyi bound. The paper does not state its orders."""
CLOSE = 2e-3
"""Tolerance of true epsilons, which tables show with few digits."""


@dataclass(frozen=True)
class PrintedRelease:
    """The public sizes of one release.

    Attributes
    ----------
    records
        Number n of private records.
    mixed
        Expected number m of records in a row. It is also the constant divisor of every row.
    rounds
        Number T of released rows.
    class_rate
        Chance p that a class is active in a row, equal for all classes. One means Poisson sampling. Less than one means
        Hierarchical Sampling: the records of an active class are drawn with chance :math:`q = m / (n p)`.

    Raises
    ------
    ValueError
        If the sizes are not positive, or if a row would need more records than the active classes have.
    """

    records: int
    mixed: float
    rounds: int
    class_rate: float = 1.0

    def __post_init__(self) -> None:
        """Refuse impossible sizes."""
        positive(mixed=self.mixed, rounds=self.rounds)
        in_range(0, 1, class_rate=self.class_rate)
        if not self.mixed <= self.records * self.class_rate:
            raise ValueError(
                f"Expected at most {self.records * self.class_rate:g} records a row, those of the active classes, "
                f"found {self.mixed:g}."
            )

    @property
    def marginal_rate(self) -> float:
        """The chance m/n that a record is in a row."""
        return self.mixed / self.records

    @property
    def rate_in_class(self) -> float:
        """The chance q that a record is in a row in which its class is active."""
        return self.marginal_rate / self.class_rate

    @property
    def active_rounds(self) -> int:
        """The number of rows in which a class is active under a fixed schedule, T p."""
        return round(self.class_rate * self.rounds)

    def mechanisms(self, noise_multiplier: float) -> Exposure:
        """Return the rounds that must be accounted for: T p rounds at the rate q.

        An attacker may know which classes are active, so only the draw within a class hides a record.
        """
        return {NoisySum(self.rate_in_class, noise_multiplier): self.active_rounds}

    def true_epsilon(self, noise_multiplier: float, delta: float) -> float:
        """Return the true epsilon of the release, by the privacy-loss distribution."""
        return composition.epsilon(self.mechanisms(noise_multiplier), delta, CLOSE)

    def nominal_mu(self, noise_multiplier: float) -> float:
        r"""Return the printed mu, :math:`(m \sqrt{T} / n) \sqrt{e^{1/\sigma_c^2} - 1}`. It ignores the class rate."""
        return central_limit_mu(self.marginal_rate, noise_multiplier, self.rounds)

    def safe_mu(self, noise_multiplier: float) -> float:
        r"""Return the central limit of the rounds in `mechanisms`: `nominal_mu` divided by :math:`\sqrt{p}`."""
        return central_limit_mu(self.rate_in_class, noise_multiplier, self.active_rounds)

    def nominal_noise(self, mu: float) -> float:
        r"""Return the combined multiplier :math:`\sigma_c` of Theorem 3.1, which ignores the class rate."""
        return central_limit_noise(mu, self.marginal_rate, self.rounds)

    def safe_noise(self, mu: float) -> float:
        r"""Return the combined multiplier at which `safe_mu` is mu. Calibrate real releases with the accountant."""
        return central_limit_noise(mu, self.rate_in_class, self.active_rounds)


def split_noise(noise_multiplier: float, balance: float = 1.0) -> tuple[float, float]:
    r"""Split a combined multiplier into :math:`\sigma_x` and :math:`\sigma_y = \lambda \sigma_x` (Theorem 3.1).

    Parameters
    ----------
    noise_multiplier
        The combined multiplier, :math:`1/\sigma_c^2 = 1/\sigma_x^2 + 1/\sigma_y^2`.
    balance
        Noise :math:`\lambda` on labels relative to that on features.

    Examples
    --------
    >>> split_noise(3.0, balance=0.75)
    (5.0, 3.75)
    """
    positive(noise_multiplier=noise_multiplier, balance=balance)
    features = math.hypot(balance, 1) / balance * noise_multiplier
    return features, balance * features


def uniform_mu(sampling_probability: float, noise_multiplier: float, rounds: int) -> float:
    r"""Return the central limit of mu for samples of fixed size: an approximation, NOT a bound.

    .. math:: \sqrt{2} p \sqrt{T} \sqrt{e^{1/\sigma^2} \Phi(1.5/\sigma) + 3 \Phi(-0.5/\sigma) - 2}

    The formula is from Dong, Roth and Su 2022 (doi:10.1111/rssb.12454). Neighbours differ in the value of one record.
    The paper behind the feature release mentions it for comparison only.
    """
    positive(sampling_probability=sampling_probability, noise_multiplier=noise_multiplier, rounds=rounds)
    inverse = 1 / noise_multiplier
    variance = math.exp(inverse**2) * float(ndtr(1.5 * inverse)) + 3 * float(ndtr(-0.5 * inverse)) - 2
    return sampling_probability * math.sqrt(2 * rounds * variance)


def renyi_epsilon(
    sampling_probability: float, noise_multiplier: float, rounds: int, delta: float, *, misprint: bool = False
) -> float:
    r"""Return epsilon by the Renyi bound of Theorem E.5, over `ORDERS`.

    With :math:`\epsilon(l) = l / (2 \sigma_c^2)`, the bound at order :math:`\alpha` is the sum of
    :math:`\log(1/\delta) / (\alpha - 1)` and

    .. math:: \frac{T}{\alpha - 1} \log \Big( (1-p)^{\alpha-1} (\alpha p - p + 1)
              + \sum_{l=2}^{\alpha} \binom{\alpha}{l} (1-p)^{\alpha-l} p^l e^{(l-1) \epsilon(l)} \Big).

    `composition.epsilon_rdp` uses the same Renyi divergence, with more orders and a tighter conversion.

    Parameters
    ----------
    sampling_probability, noise_multiplier, rounds, delta
        Rate m/n, combined multiplier, number of rows, and delta.
    misprint
        Whether to use :math:`\epsilon(\alpha)` instead of :math:`\epsilon(l)`, as printed. The paper also prints
        :math:`1 - \alpha` as the denominator of :math:`\log(1/\delta)`, which would make epsilon negative. That error
        is always corrected here.
    """
    positive(sampling_probability=sampling_probability, noise_multiplier=noise_multiplier, rounds=rounds, delta=delta)
    positive(chance_to_be_left_out=1 - sampling_probability)
    return min(
        (rounds * _log_moment(order, sampling_probability, noise_multiplier, misprint=misprint) - math.log(delta))
        / (order - 1)
        for order in ORDERS
    )


def _log_moment(order: int, rate: float, noise_multiplier: float, *, misprint: bool) -> float:
    """Return the logarithm in the formula of Theorem E.5."""
    orders = np.arange(2, order + 1)
    shift = order if misprint else orders
    return sampled_moment(order, rate, (orders - 1) * shift / (2 * noise_multiplier**2))
