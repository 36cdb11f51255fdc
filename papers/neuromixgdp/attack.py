r"""An attack on Hierarchical Sampling that refutes the privacy claimed for it.

The data set is the worst case of Li, Cao and Yao (arXiv:2202.06467v2, Proposition E.3). The target has the feature
vector -u, and all other records of its class have the same label and the feature vector u. Features and labels get
equal noise. Records of other classes are orthogonal to both and carry no information. The attacker reduces each row to
two numbers, each with noise of variance one:

* The sum of the label and the feature along u counts the other records of the class that were drawn. It shows whether
  the class was active.
* The difference of the two shifts by :math:`1 / \sigma_c` if the target was drawn.

The target can only be in rows in which its class is active, so the attacker ignores all other rows. In the remaining
rows the target is drawn with chance q, not with the smaller chance p q of the proposition. The score of a release is
its log-likelihood ratio, summed over all rows. The threshold is fixed at zero beforehand: this choice minimises the sum
of both error rates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logsumexp
from scipy.stats import binom

from papers.neuromixgdp.printed import PrintedRelease
from zetadp.audit.detection import FALSE_ALARM, Errors, count_errors
from zetadp.base.randomness import Purpose, stream
from zetadp.base.validation import positive

THRESHOLD = 0.0
_HIDDEN = -14.0
"""Rows whose log-odds of an active class are below this value are skipped: they do not visibly change a score."""
_CERTAIN = 1e3


@dataclass(frozen=True)
class HierarchicalAttack:
    r"""An attack on a release of the worst-case data set.

    Attributes
    ----------
    release
        Public sizes of the release.
    noise_multiplier
        The combined multiplier :math:`\sigma_c`.
    others
        Number of records in the target's class, without the target.

    Raises
    ------
    ValueError
        If the noise multiplier or the number of other records is not positive.
    """

    release: PrintedRelease
    noise_multiplier: float
    others: int

    def __post_init__(self) -> None:
        """Refuse a release without noise or without other records."""
        positive(noise_multiplier=self.noise_multiplier, others=self.others)

    def scores(self, releases: int, seed: int, *, present: bool) -> np.ndarray:
        """Return the attacker's scores of simulated releases.

        Active classes, records and noise are drawn independently for every row, as in the paper.

        Parameters
        ----------
        releases
            Number of independent releases.
        seed
            Seed of all draws.
        present
            Whether the target is among the records.

        Returns
        -------
        Log-likelihood ratios in nats, shape (release,). Larger scores point to the target's presence.
        """
        grid, odds = self._activity()
        lowest = grid[0] if odds[0] > _HIDDEN else np.interp(_HIDDEN, odds, grid)
        q, p, step = self.release.rate_in_class, self.release.class_rate, 1 / self.noise_multiplier
        ratios = np.empty(releases)
        for number in range(releases):
            random = stream(seed, Purpose.SAMPLING, number, int(present))
            # Rows are independent, so those with the class may come first.
            active = random.binomial(self.release.rounds, p)
            count = random.standard_normal(self.release.rounds)
            count[:active] += step * random.binomial(self.others, q, active)
            seen = np.flatnonzero(count > lowest)
            shift = random.standard_normal(len(seen))
            if present:
                shift += step * ((seen < active) & (random.random(len(seen)) < q))
            weight = expit(np.interp(count[seen], grid, odds))
            ratios[number] = np.log1p(weight * q * np.expm1(step * shift - step**2 / 2)).sum()
        return ratios

    def errors(self, releases: int, seed: int = 0, *, false_alarm: float = FALSE_ALARM) -> Errors:
        """Attack releases with and without the target, and count the errors.

        Parameters
        ----------
        releases
            Number of releases of each kind.
        seed
            Seed of all draws.
        false_alarm
            Chance that the bounds on the error rates do not hold.

        Returns
        -------
        The errors at the fixed threshold of zero.
        """
        without, inside = (self.scores(releases, seed, present=present) for present in (False, True))
        return count_errors(without, inside, THRESHOLD, confidence=1 - false_alarm)

    def _activity(self) -> tuple[np.ndarray, np.ndarray]:
        """Return a grid of noisy counts, and the log-odds of an active class at each count, in rising order.

        The attacker interpolates the log-odds between these counts.
        """
        p = self.release.class_rate
        counts = np.arange(self.others + 1)
        chances = binom.logpmf(counts, self.others, self.release.rate_in_class)
        counts, chances = counts[chances > -40], chances[chances > -40]
        means = counts / self.noise_multiplier
        grid = np.linspace(-8, means[-1] + 8, 2000)
        prior = math.log(p / (1 - p)) if p < 1 else _CERTAIN
        return grid, prior + logsumexp(chances + grid[:, None] * means - means**2 / 2, axis=1)
