"""Totals over runs: what was spent, and what of it is a promise.

Sums of privacy losses are printed in many places: statements, ``zetadp budget``, promises before a run, refusals. All
of them come from `Total`, because a sum is a promise in three cases only:

- Everything was declared before the first release: one run, or a whole series. Losses compose as declared.
- A limit was set before the first release and every run recorded it. A privacy filter then keeps the pair (limit,
  delta) whatever is chosen after earlier results (Feldman and Zrnic 2021, arXiv:2008.11193). What was spent so far is
  smaller, and is not a promise: somebody who stops when a model reveals much exceeds it.
- An odometer holds whenever somebody stops (`zetadp.accounting.composition.epsilon_any_time`). Its epsilon is larger.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

from zetadp.account.declaration import Limit
from zetadp.account.exposure import Run, declared_together, promised, spent, total
from zetadp.accounting import composition
from zetadp.accounting.composition import Exposure
from zetadp.accounting.threat import NoiseSource
from zetadp.base.epsilon import rounded_up

Basis: TypeAlias = Literal["declared", "limit", "odometer"]


@dataclass(frozen=True)
class Total:
    """What runs cost the most exposed patient together.

    Attributes
    ----------
    spent
        Sum of what was released, which a limit is compared with. It is a promise only if the basis is ``declared``.
    epsilon, delta
        The promise.
    basis
        What the promise rests on.
    limit
        The limit that every run recorded, if the basis is ``limit``. Its delta may be smaller than the one asked for.
    runs, seeded
        Number of runs, and of those whose noise came from a seed.
    """

    spent: float
    epsilon: float
    delta: float
    basis: Basis
    limit: Limit | None = None
    runs: int = 1
    seeded: int = 0

    @classmethod
    def of(cls, runs: Iterable[Run], delta: float, *, unmasked: bool = False) -> Total:
        """Add up runs; parameters are those of `zetadp.account.exposure.total`."""
        several = list(runs)
        epsilon = total(several, delta, unmasked=unmasked)
        of_runs = partial(cls, runs=len(several), seeded=sum(run.noise == NoiseSource.SEEDED for run in several))
        if declared_together(several):
            return of_runs(epsilon, epsilon, delta, "declared")
        limit = None if unmasked else common_limit(several)  # a limit is on sums as the server sees them
        if limit is not None and limit.delta <= delta:
            return of_runs(epsilon, limit.epsilon, delta, "limit", limit)
        return of_runs(epsilon, total(several, delta, unmasked=unmasked, measure=promised), delta, "odometer")

    @property
    def simulation(self) -> str:
        """A sentence on the runs with seeded noise, whose releases cost real patients more than the sum; or empty."""
        if not self.seeded:
            return ""
        which = "All of these runs" if self.seeded == self.runs else f"{self.seeded} of these {self.runs} runs"
        which = "This run" if self.runs == 1 else which
        return f"{which} used seeded noise, which protects nobody, so the total is that of a simulation."

    def __str__(self) -> str:
        """Return in words what of the sum is a promise; empty if all of it is, or if no noise leaves nothing to say."""
        if math.isinf(self.spent):
            return ""
        if self.limit is not None:
            return (
                f"The promise is epsilon {self.limit.epsilon:g} at delta {self.limit.delta:g}, the limit that was set "
                f"before the first run. Epsilon {rounded_up(self.spent)} describes what was spent of it."
            )
        if self.basis == "odometer":
            return (
                f"The promise is epsilon {rounded_up(self.epsilon)} at delta {self.delta:g}, which holds whenever "
                f"somebody stops. Epsilon {rounded_up(self.spent)} is not a promise: runs or repeated rounds were "
                "chosen after earlier results, and not all under one limit that was set before the first."
            )
        return ""


def common_limit(runs: Sequence[Run]) -> Limit | None:
    """Return the limit that all runs recorded and together keep, or None.

    If they recorded several, nothing shows that the larger was not chosen after earlier results.
    """
    limits = {run.limit for run in runs}
    limit = limits.pop() if len(limits) == 1 else None
    if limit is None:
        return None

    def filtered(exposure: Exposure, delta: float, *, beforehand: bool) -> float:
        if beforehand or composition.exact_mu(exposure) is not None:
            return spent(exposure, delta, beforehand=beforehand)
        return composition.epsilon_within(exposure, limit.epsilon, delta)

    return limit if total(runs, limit.delta, measure=filtered) <= limit.epsilon else None
