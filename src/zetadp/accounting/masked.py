r"""The kind of release in which nobody sees more than the sum of all nodes' messages.

Each of n nodes adds its share of noise, of standard deviation :math:`s` in steps of the grid, to its clipped sum, then
masks that cancel in the sum of all members of a try (`zetadp.hospitals.masks`). At most c of the nodes collude with
the server, and at most m are missing. Each of the other ``n - c - m`` nodes adds independent noise, and only the sum of
it hides a unit. The masks are pseudorandom, so the claim is computational. It needs keys that are authentic, and it
holds against a server that deviates in any way.

**The law of the sum.** Let h honest nodes each add an integer, a standard normal number times s that is rounded. Let V
be the sum of h - 1 independent uniform numbers on [-1/2, 1/2], independent of a standard normal Z, and S the sum of the
nodes' clipped sums. The noisy sum has the law of

.. math:: \lfloor S + \sqrt h \, s Z + V + 1/2 \rfloor

up to a total variation of the order :math:`h \exp(-\pi^2 s^2)` a coordinate. The right side is post-processing of a
normal number of variance :math:`h s^2` that is added to S, because V and the rounding know nothing of a person. So the
sum costs what a `NoisySum` with the noise of all honest shares costs.

*Proof.* A rounded normal number has the mass :math:`(\varphi_s * u)(k)` at k: the normal density, smoothed by the
uniform one. Let :math:`g(t) = \exp(-s^2 t^2 / 2) \, \sin(t / 2) / (t / 2)` be the transform of this function, and
:math:`g_j(t) = g(t + 2 \pi j)`. By Poisson's summation formula the mass function has the transform
:math:`\sum_j g_j`, so the sum of h shares has :math:`(\sum_j g_j)^h`. The number on the right has the mass
:math:`(\varphi_{\sqrt h s} * u^{*h})(k)`, whose transform is :math:`\sum_j g_j^h`. The two differ by products in which
not all factors have one j. For :math:`|t| \le \pi` the largest is :math:`h \, |g_0^{h-1} g_{-1}|`, at most
:math:`h \exp(-s^2 ((h - 1) t^2 + (2 \pi - t)^2) / 2)`. Its largest value, at :math:`t = 2 \pi / h`, is
:math:`h \exp(-2 \pi^2 s^2 (h - 1) / h)`, and h is at least 2.

Shares below `LEAST_STEPS` steps are refused. Above, the difference, tails included, is under :math:`2^{-1000}`. It
enters delta times the number of coordinates, the number of releases and :math:`1 + e^\epsilon`, which is not shown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from zetadp.accounting.kinds import GaussianSum, NoisySum
from zetadp.accounting.threat import LEAST_SHARES
from zetadp.base.validation import UserError, whole

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

LEAST_STEPS = 1 << 10
"""Smallest standard deviation of a share, in steps of the grid, for which the law of the sum is used."""


@dataclass(frozen=True)
class MaskedSum(GaussianSum):
    """One node's part of a sum of which nobody sees the single parts.

    Attributes
    ----------
    sampling_probability
        Probability that a unit is drawn, as in `NoisySum`.
    share
        Standard deviation of the node's own noise in each part, in units of the clipping norm, above zero.
    shares
        Number of nodes that are relied on to add such noise, the node itself among them; at least `LEAST_SHARES`.
    units
        Units of one person, each drawn independently. All are at one node.
    """

    law: ClassVar[str] = "masked sum"

    sampling_probability: float
    share: float
    shares: int
    units: int = 1

    def __post_init__(self) -> None:
        """Refuse values from which no epsilon can be computed."""
        whole(LEAST_SHARES, 10**6, shares=self.shares)
        if not self.share > 0:
            raise UserError(f"Expected noise in a masked sum, found a share of {self.share}.")
        for shares in (1, self.shares):
            self.with_shares(shares)

    def with_shares(self, shares: int) -> NoisySum:
        """Return the sum to an observer who faces the noise of this number of nodes; of one node, it is its message."""
        return NoisySum(self.sampling_probability, self.share * math.sqrt(shares), self.units)

    @property
    def noise_multiplier(self) -> float:
        """Noise multiplier of all shares together."""
        return self.share * math.sqrt(self.shares)

    @property
    def order(self) -> tuple[float, ...]:
        """Sampling probability, noise, units and shares."""
        return *super().order, self.shares

    def with_noise_times(self, factor: float) -> MaskedSum:
        """Return the sum with other shares."""
        return replace(self, share=self.share * factor)

    def sample(self, clipped_sum: Tensor, clip: float, expected: float, generator: np.random.Generator) -> Tensor:
        """Refuse: a node's part of a sum is made of integers on a grid, and divided after it was summed."""
        raise UserError("Expected a release that is a mean of its own, found one node's part of a masked sum.")
