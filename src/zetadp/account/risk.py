r"""Bounds on what the releases of a run reveal about one person, in numbers that a hospital can weigh.

All bounds follow from the ledger alone. They hold against every attack, with any other knowledge. The bound on
membership is the trade-off curve. A bound on reconstruction follows from it. An attacker knows that a person's data are
one of n equally likely candidates, and names one. Let Q be the law of everything released without the person, f the
trade-off curve, and :math:`A_z` the releases after which z is named. These sets are disjoint, so
:math:`\sum_z Q(A_z) \le 1`. As :math:`1 - f` is concave, the mean of :math:`P_z(A_z) \le 1 - f(Q(A_z))` is at most
:math:`1 - f(1/n)` (Hayes, Mahloujifar and Balle 2023, arXiv:2302.07225, for Gaussians).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from zetadp.account.book import recorded_runs
from zetadp.account.exposure import Run, declared_together, distinct, guarantee_of, over_runs, promised
from zetadp.accounting import composition
from zetadp.accounting.composition import Exposure
from zetadp.accounting.threat import Unit
from zetadp.base.epsilon import FALSE_ALARMS, LARGEST_EXPONENT
from zetadp.base.validation import UserError, in_range

CANDIDATES = (2, 10, 100, 1000)
"""Numbers of equally likely candidates, of which an attacker names one."""
DELTAS = (1e-3, 1e-5, 1e-6)
DRAWN = (0.0, *(10 ** (-3 + 3 * step / 59) for step in range(60)))
"""Rates of false alarms at which the trade-off curve is drawn."""
_SHARES = (0.02, 0.05, 0.1, 0.2, 0.5)
"""Shares of delta at which `Risk.odds` looks for the smallest bound."""


@dataclass(frozen=True)
class Risk:
    """Releases about the people of one run, and the bounds that follow.

    Attributes
    ----------
    name
        Name of the run; by default that of its ledger.
    runs
        The attempts that the ledger records.
    exposures
        Exposures of people at different nodes, if every message is visible. Each value is for the worst of them.
    guarantee
        ``holds``; ``simulated`` if the noise came from a seed, which protects no one; ``none`` without noise.
    """

    name: str
    runs: tuple[Run, ...]
    exposures: tuple[Exposure, ...]
    guarantee: str

    @classmethod
    def of(cls, ledger: Path, *, name: str | None = None) -> Risk:
        """Read a ledger.

        Parameters
        ----------
        ledger
            A run's ledger, or that of a release. Unit and delta are its own. Where a person's node in other runs is not
            known, the worst at this delta is assumed.
        name
            Name of the run; by default that of the ledger.

        Raises
        ------
        UserError
            If the ledger cannot be read or records nothing, or if its folder is not as its register says.
        """
        runs = recorded_runs(ledger)
        if not runs:
            raise UserError(f"Expected releases in {ledger}, found none.")
        if not all(run.private for run in runs):
            return cls(name or runs[-1].name, tuple(runs), (), "none")
        exposures = over_runs(runs, min(run.delta for run in runs), measure=promised).values()
        # Which of several exposures is the weakest, only the accountant of declared releases says.
        relevant = _weakest(exposures) if declared_together(runs) else tuple(distinct(exposures))
        return cls(name or runs[-1].name, tuple(runs), relevant, guarantee_of(runs))

    @property
    def delta(self) -> float:
        """The smallest delta at which a run of the ledger was declared."""
        return min(run.delta for run in self.runs)

    @property
    def unit(self) -> Unit:
        """The unit of the cohort."""
        return self.runs[-1].unit

    def epsilon(self, delta: float) -> float:
        """Return epsilon at a delta."""
        if self.guarantee == "none":
            return math.inf
        return max(promised(exposure, delta, beforehand=self.beforehand) for exposure in self.exposures)

    def odds(self, delta: float) -> float:
        r"""Return a factor by which the odds that a person took part rise at most, except with probability delta.

        The factor is above :math:`e^\epsilon`, because privacy losses above epsilon are more likely than delta. A loss
        L satisfies :math:`\delta(\epsilon) \ge (1 - e^{\epsilon - x}) P(L > x)` for :math:`x > \epsilon`. Therefore
        :math:`L \le \epsilon(s \delta) - \log(1 - s)` for every share s, except with probability delta.
        """
        # An odometer holds for a share that was chosen before, and not for the smallest of several.
        shares = _SHARES if self.beforehand else _SHARES[2:3]
        loss = min(self.epsilon(share * delta) - math.log1p(-share) for share in shares)
        return math.exp(loss) if loss < LARGEST_EXPONENT else math.inf

    def right_guesses(self, candidates: int, delta: float) -> float:
        r"""Return the largest share of attacks that name the right one of ``candidates`` equally likely candidates.

        For people with many images that are drawn independently, and for runs that were chosen after earlier results,
        no curve is computed. The looser bound
        :math:`e^\epsilon / n + \delta` is returned instead.
        """
        in_range(1, math.inf, candidates=candidates)
        if self.guarantee == "none":
            return 1.0
        if self.curved:
            return min(1.0, 1 - self._missed([1 / candidates])[0])
        return min(1.0, math.exp(min(self.epsilon(delta), LARGEST_EXPONENT)) / candidates + delta)

    def misses(self, false_alarms: Sequence[float]) -> list[float] | None:
        """Return the smallest miss rates for rates of false alarms, or None if no curve is computed."""
        if self.guarantee == "none":
            return [0.0] * len(false_alarms)
        return self._missed(false_alarms) if self.curved else None

    def _missed(self, rates: Sequence[float]) -> list[float]:
        """Return points of the trade-off curve. It is computed once for all points that a page shows."""
        if set(rates) <= self._curve.keys():
            return [self._curve[rate] for rate in rates]
        return self._computed(list(rates))

    @cached_property
    def _curve(self) -> dict[float, float]:
        rates = [*DRAWN, *FALSE_ALARMS, *(1 / number for number in CANDIDATES)]
        return dict(zip(rates, self._computed(rates), strict=True))

    def _computed(self, rates: list[float]) -> list[float]:
        curves = [composition.trade_off(exposure, rates) for exposure in self.exposures]
        return [min(misses) for misses in zip(*curves, strict=True)]

    @property
    def beforehand(self) -> bool:
        """Whether all runs were declared before the first; if not, the bounds are those of an odometer."""
        return declared_together(self.runs)

    @property
    def curved(self) -> bool:
        """Whether the trade-off curve can be computed."""
        return self.beforehand and all(kind.units == 1 for exposure in self.exposures for kind in exposure)


def _weakest(exposures: Iterable[Exposure]) -> tuple[Exposure, ...]:
    """Drop exposures that differ from another one only by a smaller sampling probability, as they never cost more."""
    weakest: dict[object, Exposure] = {}
    largest: dict[object, float] = {}
    for exposure in distinct(exposures):
        ((kind, count), *others) = exposure.items()
        alike = composition.ordered(exposure) if others else ((kind.always_drawn(), count),)
        if kind.sampling_probability > largest.get(alike, 0.0):
            weakest[alike], largest[alike] = exposure, kind.sampling_probability
    return tuple(weakest.values())
