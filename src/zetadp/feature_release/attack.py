r"""An attack on Hierarchical Sampling, which refutes the privacy that the paper claims for it.

The data set is the worst case of Li, Cao and Yao's Hierarchical Sampling (arXiv:2202.06467v2, Proposition E.3): all
records of the class have the feature vector u, the target has -u and the same label, and features and labels get equal
noise. The records of other classes are orthogonal to both and say nothing. Of each row the attacker needs two numbers,
each with noise of variance one:

* the sum of the label and the feature along u shows how many other records of the class were drawn, and so whether the
  class was active;
* their difference moves by :math:`1 / \sigma_c` if the target was drawn.

In rows without the class the target cannot be. The attacker leaves them out, and the chance that hides the target in
the remaining rows is q, not the smaller p q of the proposition. The score of a release is the logarithm of the
likelihood ratio over all rows, so a threshold of zero, fixed beforehand, makes the fewest errors in all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logsumexp
from scipy.stats import binom

from zetadp.audit.detection import FALSE_ALARM, Errors, count_errors
from zetadp.feature_release.printed import PrintedRelease
from zetadp.randomness import Purpose, stream
from zetadp.validation import positive

THRESHOLD = 0.0
_HIDDEN = -14.0
"""Rows in which the class was active with log-odds below this are not looked at: they could not change a score."""
_CERTAIN = 1e3


@dataclass(frozen=True)
class HierarchicalAttack:
    r"""A release of the worst-case data set, to be attacked.

    Attributes
    ----------
    release
        Its public sizes.
    noise_multiplier
        The combined multiplier :math:`\sigma_c`.
    others
        Records of the target's class besides the target.
    """

    release: PrintedRelease
    noise_multiplier: float
    others: int

    def __post_init__(self) -> None:
        """Refuse a release without noise or without other records."""
        positive(noise_multiplier=self.noise_multiplier, others=self.others)

    def scores(self, releases: int, seed: int, *, present: bool) -> np.ndarray:
        """Return the attacker's score of independent releases, with or without the target among the records.

        Activity, records and noise are drawn row by row as the paper draws them.
        """
        grid, odds = self._activity()
        lowest = grid[0] if odds[0] > _HIDDEN else np.interp(_HIDDEN, odds, grid)
        q, p, step = self.release.rate_in_class, self.release.class_rate, 1 / self.noise_multiplier
        found = np.empty(releases)
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
            found[number] = np.log1p(weight * q * np.expm1(step * shift - step**2 / 2)).sum()
        return found

    def errors(self, releases: int, seed: int = 0, *, false_alarm: float = FALSE_ALARM) -> Errors:
        """Attack so many releases without the target and as many with it, and count the errors."""
        without, inside = (self.scores(releases, seed, present=present) for present in (False, True))
        return count_errors(without, inside, THRESHOLD, confidence=1 - false_alarm)

    def _activity(self) -> tuple[np.ndarray, np.ndarray]:
        """Return points of the noisy count, and the log-odds there that the class is active; they grow with the count.

        Between the points the odds are interpolated. The score is that of an attacker who does the same.
        """
        p = self.release.class_rate
        counts = np.arange(self.others + 1)
        chances = binom.logpmf(counts, self.others, self.release.rate_in_class)
        counts, chances = counts[chances > -40], chances[chances > -40]
        means = counts / self.noise_multiplier
        grid = np.linspace(-8, means[-1] + 8, 2000)
        prior = math.log(p / (1 - p)) if p < 1 else _CERTAIN
        return grid, prior + logsumexp(chances + grid[:, None] * means - means**2 / 2, axis=1)
