r"""The law of noise ``von_mises_fisher``: a node releases a random unit vector around the direction of a sum.

The centre of a release is the direction of a sum of clipped contributions, or a fixed public one if the sum is zero.
The output has the von Mises-Fisher law around it. One person can turn the centre into its opposite, so opposite centres
are the worst pair. This holds for the whole trade-off curve, not only for Renyi divergences (dimension >= 3), as the
paper's page proves. The clipping norm and the number of people do not matter.

For a centre x and its opposite, the privacy loss of an output y is :math:`2 \kappa t` with the cosine
:math:`t = x^T y`. Its density is :math:`\propto e^{\kappa t} (1-t^2)^{(p-3)/2}` under the centre x, and
:math:`\propto e^{-\kappa t} (1-t^2)^{(p-3)/2}` under -x. The distribution of the loss is rounded up to a grid
("connect the dots", Doroshenko et al. 2022, arXiv:2207.04380).

Each person is drawn independently. All values are for the ideal mechanism: a sampler that uses floating-point numbers
does not attain them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from zetadp.accounting.kinds import (
    Kind,
    NoisySum,
    any_drawn,
    check_probability,
    gaussian_event,
    sampled_loss,
    sum_variance,
)
from zetadp.base.validation import UserError, positive

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
    from torch import Tensor

CONCENTRATIONS = (1e-9, 1e4)
"""Range of concentrations. A single release with more would have an epsilon in the thousands."""
DIMENSIONS = (3, 10**10)
"""Range of real dimensions. In lower dimensions, opposite centres are not the worst pair."""

_WINDOW = 12.0
_CELLS = 20_000
_CELLS_PER_LOSS = 50
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(3)


@dataclass(frozen=True)
class Direction(Kind):
    """A random unit vector around the direction of a sum of clipped contributions.

    Several units of a person cannot do more than reverse a direction. They therefore count as one unit, which is drawn
    if any of them is drawn.

    Attributes
    ----------
    sampling_probability
        Probability that a unit is drawn.
    concentration
        Kappa of the von Mises-Fisher law, in the range `CONCENTRATIONS`.
    dimension
        Real dimension p, in the range `DIMENSIONS`. A complex coordinate counts twice.
    """

    law: ClassVar[str] = "von_mises_fisher"
    summary: ClassVar[str] = (
        "Each node sends a random unit vector in place of a noisy sum. It follows the von Mises-Fisher law around the "
        "direction of the sum, or around a fixed direction if the sum is zero. The length of the sum stays at the node."
    )
    proof: ClassVar[str] = "Opposite centres are the worst pair of centres (papers/directions/README.md)."

    sampling_probability: float
    concentration: float
    dimension: int

    def __post_init__(self) -> None:
        """Refuse values from which no epsilon can be computed."""
        check_probability(self.sampling_probability)
        check_law(self.concentration, self.dimension)

    @classmethod
    def hiding(cls, noisy_sum: NoisySum, dimension: int) -> Direction:
        """Return the direction that is concentrated so that it hides no less than a noisy sum (`gaussian_bound`)."""
        kappa = gaussian_bound(noisy_sum.noise_multiplier, dimension)
        return cls(noisy_sum.sampling_probability, kappa, dimension)

    @property
    def noise_multiplier(self) -> float:
        """Noise multiplier of Gaussian noise that hides no more. In three dimensions no such noise is known."""
        return gaussian_bound(self.concentration, self.dimension) if self.dimension > DIMENSIONS[0] else 0.0

    @property
    def private(self) -> bool:
        """Always: a direction has a concentration."""
        return True

    @property
    def length(self) -> int:
        """The dimension."""
        return self.dimension

    @property
    def order(self) -> tuple[float, ...]:
        """Sampling probability, concentration, one unit, and dimension."""
        return self.sampling_probability, self.concentration, 1, self.dimension

    @property
    def loss_variance(self) -> float:
        """Rough variance of the privacy loss: that of Gaussian noise of about equal cost."""
        return sum_variance(self.sampling_probability, math.sqrt(self.dimension) / (2 * self.concentration))

    @property
    def largest_loss(self) -> float:
        """The loss where the output is the centre itself."""
        return 2 * self.concentration

    def losses(self, interval: float) -> PrivacyLossDistribution:
        """Return the distributions of the privacy loss for opposite centres."""
        from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

        probability, law = self.sampling_probability, cosine_law(self.concentration, self.dimension)
        at_nodes, at_edges = (sampled_loss(2 * self.concentration * t, probability) for t in (law.nodes, law.edges))
        without = np.exp(law.away)
        present = (1 - probability) * without + probability * np.exp(law.towards)
        removed = _on_grid(present, at_nodes, at_edges, interval)
        added = _on_grid(without[::-1], -at_nodes[::-1], -at_edges[::-1], interval)
        make = PrivacyLossDistribution.create_from_rounded_probability
        return make(removed, law.outside, interval, True, added, law.outside, symmetric=False)

    def dp_event(self) -> DpEvent:
        """Return Gaussian noise that hides no more, because dp-accounting knows no directions."""
        return gaussian_event(self.sampling_probability, self.noise_multiplier)

    def of_person(self, units: int) -> Direction:
        """Return the direction that is drawn for if any of the person's units is drawn."""
        return replace(self, sampling_probability=any_drawn(self.sampling_probability, units))

    def with_noise_times(self, factor: float) -> Direction:
        """Return the direction with another concentration."""
        return replace(self, concentration=self.concentration / factor)

    def sample(self, clipped_sum: Tensor, clip: float, expected: float, generator: np.random.Generator) -> Tensor:
        """Return a random direction around that of the sum. Clipping norm and divisor do not matter."""
        from papers.directions.sampler import draw_direction

        return draw_direction(clipped_sum, self.concentration, generator)


def gaussian_bound(level: float, dimension: int) -> float:
    r"""Convert a direction's concentration to the noise multiplier of Gaussian noise that hides no more, or back.

    .. math:: z = \sqrt{p - 3} / (2 \kappa), \quad \kappa = \sqrt{p - 3} / (2 z)

    This is a bound, not an approximation. The cosine t of opposite centres has the density
    :math:`\propto e^{\theta t} (1 - t^2)^{(p-3)/2}` with :math:`\theta = \pm\kappa`, which is log-concave with
    :math:`-(\log f)'' \ge p - 3`. Its increasing map from a standard normal number therefore has a slope of at most
    :math:`1 / \sqrt{p - 3}` (Caffarelli 2000, doi:10.1007/s002200000257). So s in :math:`P_\theta(t > c) = \Phi(s)` has
    the slope :math:`\mathrm{Cov}_\theta(1_{t > c}, t) / \varphi(s) \le 1 / \sqrt{p - 3}` in theta, and grows by at most
    :math:`2 \kappa / \sqrt{p - 3}` from one centre to the other. The tests of highest power have the form t > c, so the
    pair is Gaussian differentially private with that mu.

    Parameters
    ----------
    level
        Concentration, or noise multiplier.
    dimension
        Real dimension p, more than 3.
    """
    if dimension <= 3:
        raise ValueError(f"Expected a dimension above 3, found {dimension}.")
    positive(level=level)
    return math.sqrt(dimension - 3) / (2 * level)


@dataclass(frozen=True, eq=False)
class CosineLaw:
    """The distributions of the cosine under both centres, in narrow cells.

    Attributes
    ----------
    edges
        Cosines at the edges of the cells, shape (cell + 1,).
    nodes
        Cosines of the quadrature nodes, shape (cell, node).
    towards, away
        Logarithms of the probabilities of the nodes under the centre and under its opposite, shape (cell, node).
    outside
        Upper bound on the probability outside all cells, for both distributions.
    """

    edges: np.ndarray
    nodes: np.ndarray
    towards: np.ndarray
    away: np.ndarray
    outside: float


@lru_cache(maxsize=2)
def cosine_law(concentration: float, dimension: int) -> CosineLaw:
    r"""Return the distributions of the cosine under a centre and its opposite.

    The logarithm of the density has a second derivative of at most :math:`-(p-3)`. Both distributions are therefore
    sub-Gaussian around their means :math:`\pm A(\kappa)` with variance :math:`1/(p-3)`. This bounds the probability
    outside the cells.

    Parameters
    ----------
    concentration
        Kappa, in the range `CONCENTRATIONS`.
    dimension
        Real dimension p of the vector, at least 3. In lower dimensions, opposite centres are not the worst pair.

    Raises
    ------
    UserError
        If the concentration or the dimension is out of range.
    """
    from scipy.special import logsumexp

    check_law(concentration, dimension)
    mean = float(mean_cosine(dimension / 2 - 1, concentration))
    reach = min(1.0, mean + _WINDOW / math.sqrt(max(dimension - 3, 1e-9)))
    cells = max(_CELLS, math.ceil(4 * concentration * reach * _CELLS_PER_LOSS))
    edges = np.linspace(-reach, reach, cells + 1)
    half = reach / cells
    nodes = (edges[:-1] + half)[:, None] + half * _NODES
    shape = (dimension - 3) / 2 * np.log1p(-nodes * nodes) + np.log(_WEIGHTS)
    total = logsumexp(shape + concentration * nodes)
    outside = 2 * math.exp(-(_WINDOW**2) / 2) if reach < 1 else 0.0
    tilt = concentration * nodes - total
    return CosineLaw(edges, nodes, shape + tilt, shape - tilt - 2 * total, outside)


def mean_cosine(order: float, x: ArrayLike) -> np.ndarray:
    r"""Return :math:`A(x) = I_{\nu+1}(x) / I_\nu(x)`, the mean cosine between centre and output at concentration x.

    The order is :math:`\nu = p/2 - 1` for a real dimension p, up to millions, where the modified Bessel functions
    themselves are far below the smallest double. Their continued fraction is evaluated backwards. All of its terms are
    positive, so no digits are lost.
    """
    values = np.asarray(x, dtype=np.float64)
    terms = 200 + math.ceil(2 * float(values.max(initial=0)))
    ratio = np.zeros_like(values)
    for k in range(terms, 0, -1):
        ratio = values / (2 * (order + k) + values * ratio)
    return np.asarray(ratio)


def check_law(concentration: float, dimension: int) -> None:
    """Refuse a law whose privacy cannot be computed.

    Raises
    ------
    UserError
        If the concentration or the dimension is out of range.
    """
    least, most = CONCENTRATIONS
    if not least <= concentration <= most:
        raise UserError(f"Expected a concentration from {least:g} to {most:g}, found {concentration}.")
    if not DIMENSIONS[0] <= dimension <= DIMENSIONS[1] or dimension != int(dimension):
        raise UserError(f"Expected a whole dimension from {DIMENSIONS[0]} to {DIMENSIONS[1]:,}, found {dimension}.")


def _on_grid(masses: np.ndarray, at_nodes: np.ndarray, at_edges: np.ndarray, interval: float) -> dict[int, float]:
    """Return the probability of each multiple of the interval, for a pair that is easier to distinguish.

    The mass in a cell moves to the edges of the cell, and from there to the grid. Each move keeps the total probability
    under both distributions, so merging outcomes of the result gives back the true pair.
    """
    low, high = at_edges[:-1], at_edges[1:]
    up = (masses * _upward(low[:, None], at_nodes, high[:, None])).sum(axis=1)
    edges = np.zeros(len(at_edges))
    edges[1:] += up
    edges[:-1] += np.maximum(masses.sum(axis=1) - up, 0)
    below = np.floor(at_edges / interval)
    share = _upward(below * interval, at_edges, (below + 1) * interval)
    cells = (below - below[0]).astype(np.int64)
    size = cells[-1] + 2
    probabilities = np.bincount(cells, edges * (1 - share), size) + np.bincount(cells + 1, edges * share, size)
    first = int(below[0])
    return {first + int(cell): float(probabilities[cell]) for cell in np.flatnonzero(probabilities)}


def _upward(low: np.ndarray, loss: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return the share of a mass that moves up, so that both distributions keep their total probability."""
    with np.errstate(invalid="ignore"):
        share = np.expm1(low - loss) / np.expm1(low - high)
    return np.where(high > low, np.clip(share, 0, 1), 1.0)
