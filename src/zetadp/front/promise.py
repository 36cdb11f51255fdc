"""What a run will cost each patient, and how loud its noise will be, before anything is released."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from zetadp.base.epsilon import rounded_up
from zetadp.core.plan import Plan
from zetadp.core.promise import promise_of
from zetadp.front.folder import RunFolder
from zetadp.privacy.book import Book
from zetadp.privacy.exposure import declared_run, total


@dataclass(frozen=True)
class RunPromise:
    """What a run costs each patient, before anything is released.

    Attributes
    ----------
    epsilon, delta
        Cost of this run alone.
    together, runs_before
        Cost with the runs recorded before on any of these patients, and their number; None without any.
    simulated
        Whether the noise is seeded and protects nobody.
    noise
        Length of the noise in the mean gradient of a round, whose own length is at most the clip, in units of the clip;
        and in the mean over all rounds.
    """

    epsilon: float
    delta: float
    together: float | None
    runs_before: int
    simulated: bool
    noise: tuple[float, float]

    @classmethod
    def of(cls, plan: Plan, model: nn.Module, folder: RunFolder) -> RunPromise:
        """Compute the promise of a plan for the patients whose account a run's folder names.

        Parameters
        ----------
        plan
            The plan, with its noise.
        model
            The network; only the number of its trained weights is used.
        folder
            The run's folder, whose account has what was spent before.
        """
        together, before = spent_with(plan, folder.ledger)
        worst = max(plan.nodes, key=lambda node: node.noise_multiplier / node.expected)
        single = worst.noise_multiplier / worst.expected * math.sqrt(_dimension(plan, model))
        return cls(
            epsilon=max(promise_of(plan, node.name).epsilon for node in plan.nodes),
            delta=plan.delta,
            together=together,
            runs_before=before,
            simulated=plan.training.noise == "seeded",
            noise=(single, single / math.sqrt(plan.training.rounds)),
        )

    @property
    def cost(self) -> str:
        """Epsilon and delta, as text."""
        return f"epsilon {shown(self.epsilon)} at delta {self.delta:g}"

    def __str__(self) -> str:
        if self.epsilon == math.inf:
            text = "No guarantee: this run adds no noise."
        else:
            text = f"This run costs each patient {self.cost}"
            if self.together is not None:
                text += with_earlier(self.together, self.runs_before)
            text += (
                ". The mean gradient of a round has at most length 1 in units of the clip, its noise "
                f"{self.noise[0]:.2g}; over all rounds {self.noise[1]:.2g}."
            )
        return f"Simulated: the noise is seeded and protects nobody. {text}" if self.simulated else text

    __repr__ = __str__


def spent_with(plan: Plan, ledger: Path) -> tuple[float | None, int]:
    """Return what a plan costs its patients with all that was recorded before, and the number of earlier runs.

    Parameters
    ----------
    plan
        The plan, with its noise.
    ledger
        Its ledger, in the patients' account. The list of patients beside it says which earlier runs count.
    """
    before = Book.read(ledger.parent).without(ledger).runs(about=ledger)
    return (total([*before, declared_run(ledger.stem, plan.header())], plan.delta) if before else None), len(before)


def with_earlier(together: float, before: int) -> str:
    """Return the cost with earlier runs, as the end of a sentence."""
    return f"; with {before} earlier run(s) on the same patients, epsilon {shown(together)}"


def shown(epsilon: float) -> str:
    """Return epsilon as text, never below its value."""
    return "infinity" if epsilon == math.inf else rounded_up(epsilon)


def _dimension(plan: Plan, model: nn.Module) -> int:
    """Return the number of real components of the trained weights: those that the plan's optimiser names."""
    groups = (plan.training.optimiser.recipe or {})["groups"]
    trained = [model.get_parameter(name) for group in groups for name in group["parameters"]]
    return sum(each.numel() * (2 if each.is_complex() else 1) for each in trained)
