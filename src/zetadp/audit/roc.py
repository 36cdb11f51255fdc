r"""The lower confidence band of an attack's ROC, and the region that a privacy claim leaves to every attack.

An attack gives each trial a score and raises an alarm above a threshold. A claim bounds the power (true-positive rate)
of every attack by a function of its false-positive rate; an attack whose power is above that function, beyond chance,
refutes the claim.

The false-positive rates are fixed before the trials. For a rate :math:`r` the threshold is the score of that trial
without the patient which :math:`\lfloor r n \rfloor` others exceed. Its true false-positive rate is then an order
statistic of uniform numbers, Beta-distributed whatever the distribution of the scores (ties only lower it), and its
upper limit is that of Clopper and Pearson (1934, doi:10.1093/biomet/26.4.404) for the alarms seen. Given the threshold,
the alarms among the independent trials with the patient are Binomial, and their limits are Clopper and Pearson's too.
Every limit is taken at the false alarm divided by the number of all limits (Bonferroni): points, arms and the two axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from zetadp.audit.detection import FALSE_ALARM, upper_limit
from zetadp.privacy import accounting
from zetadp.privacy.accounting import Mechanisms
from zetadp.validation import in_range

RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
"""False-positive rates at which every attack is judged; fixed before any trial."""


@dataclass(frozen=True)
class Claim:
    """What one audience is promised about one patient.

    Attributes
    ----------
    mechanisms
        All that the audience has seen of the patient's node, as the accountant takes it.
    delta
        The delta of the quoted epsilon.
    """

    mechanisms: Mechanisms
    delta: float

    @cached_property
    def epsilon(self) -> float:
        """The quoted epsilon."""
        return accounting.epsilon(self.mechanisms, self.delta)

    def power(self, rates: Sequence[float] | np.ndarray) -> np.ndarray:
        """Return the largest power at each false-positive rate, by the trade-off curve: all that is claimed."""
        return 1 - np.array(accounting.trade_off(self.mechanisms, list(map(float, rates))))

    def power_by_epsilon(self, rates: Sequence[float] | np.ndarray) -> np.ndarray:
        r"""Return what epsilon and delta alone allow, which is more: two lines that touch the trade-off curve.

        :math:`\min(1,\; e^\epsilon r + \delta,\; 1 - e^{-\epsilon} (1 - \delta - r))` (Kairouz, Oh and Viswanath 2015,
        arXiv:1311.0776).
        """
        rate = np.asarray(rates, dtype=float)
        if math.isinf(self.epsilon):
            return np.ones_like(rate)
        steep = math.exp(self.epsilon) * rate + self.delta
        flat = 1 - math.exp(-self.epsilon) * (1 - self.delta - rate)
        return np.minimum(1, np.minimum(steep, flat))


def roc_band(
    scores_out: np.ndarray,
    scores_in: np.ndarray,
    *,
    arms: int,
    rates: Sequence[float] = RATES,
    false_alarm: float = FALSE_ALARM,
) -> pd.DataFrame:
    """Return an attack's ROC at fixed false-positive rates, with its confidence band.

    Parameters
    ----------
    scores_out, scores_in
        Scores of independent trials without and with the patient; an alarm is a high score.
    arms
        Attacks that are judged together, this one included.
    rates
        False-positive rates, fixed before the trials.
    false_alarm
        Chance that any limit of any of the ``arms`` is wrong.

    Returns
    -------
    Table with one row a rate: ``fpr`` and ``tpr`` as measured; ``fpr_upper``, below which the true false-positive rate
    lies; ``lower``, above which the true power lies: the ROC passes above every point (``fpr_upper``, ``lower``); and
    ``upper``, below which the true power at this threshold lies.
    """
    outs, ins = np.sort(np.asarray(scores_out, dtype=float))[::-1], np.asarray(scores_in, dtype=float)
    if not (len(outs) and len(ins) and np.isfinite(outs).all() and np.isfinite(ins).all()):
        raise ValueError(
            f"Expected finite scores of both kinds, found {len(outs)} without and {len(ins)} with the patient."
        )
    in_range(0, 1, false_alarm=false_alarm, least_rate=min(rates), largest_rate=max(rates))
    level = false_alarm / (2 * len(rates) * arms)
    rows = []
    for rate in rates:
        # A rate given in decimals must not lose an alarm to rounding: 0.29 * 100 is below 29.
        alarms = min(math.floor(rate * len(outs) + 1e-9), len(outs) - 1)
        hits = int((ins > outs[alarms]).sum())
        rows.append(
            {
                "fpr": alarms / len(outs),
                "fpr_upper": upper_limit(alarms, len(outs), level),
                "tpr": hits / len(ins),
                "lower": 1 - upper_limit(len(ins) - hits, len(ins), level),
                "upper": upper_limit(hits, len(ins), level),
            }
        )
    return pd.DataFrame(rows)


def against(band: pd.DataFrame, audience: str, claim: Claim) -> pd.DataFrame:
    """Return the band with what the claim allows at each point of its lower edge, and whether the edge is above it."""
    allowed = claim.power(band["fpr_upper"].to_numpy())
    return band.assign(
        **{
            f"allowed_{audience}": allowed,
            f"allowed_{audience}_epsilon": claim.power_by_epsilon(band["fpr_upper"].to_numpy()),
            f"leaves_{audience}": band["lower"].to_numpy() > allowed,
        }
    )
