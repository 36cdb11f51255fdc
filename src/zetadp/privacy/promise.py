"""What a plan costs a node's patients, computed by whoever is asked to release before anything is released."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zetadp.epsilon import epsilon_value, rounded_up
from zetadp.privacy import accounting
from zetadp.validation import UserError

if TYPE_CHECKING:
    from zetadp.core.plan import Plan

TOLERANCE = 1.0005
"""A figure may exceed the plan's label by this factor, which is what accountants differ by."""


@dataclass(frozen=True)
class Promise:
    """Epsilon of one node's releases against whoever receives them, by the plan alone.

    Attributes
    ----------
    node
        Name of the node.
    unit
        What is hidden: ``patient`` or ``image``.
    epsilon
        For one unit, of one training to its declared end; infinite without noise.
    delta
        At which it holds.
    images
        Images of one patient where the unit is an image, else one.
    person
        The same for a patient with all images.
    """

    node: str
    unit: str
    epsilon: float
    delta: float
    images: int
    person: float

    def __str__(self) -> str:
        if self.epsilon == math.inf:
            return f"{self.node}: no guarantee, because the plan adds no noise"
        text = f"{self.node}: epsilon {rounded_up(self.epsilon)} for each {self.unit}, at delta {self.delta:g}"
        if self.images > 1:
            text += f"; for a patient with all {self.images} images {rounded_up(self.person)}"
        return text


def promise_of(plan: Plan, name: str, attempts: int = 1) -> Promise:
    """Return what so many trainings by a plan cost the patients of a node, other nodes' noise not counted on."""
    releases = Counter({kind: attempts * count for kind, count in plan.mechanisms(name).items()})
    epsilon = accounting.epsilon(releases, plan.delta)
    images = plan.units_of_a_person
    person = epsilon if images == 1 else accounting.epsilon_group(releases, plan.delta, images)
    return Promise(name, plan.unit, epsilon, plan.delta, images, person)


def check_promise(plan: Plan, name: str, *, most_epsilon: float | None = None, attempts: int = 1) -> Promise:
    """Return what one training costs, and refuse a plan that costs more than it says or than a node allows.

    Parameters
    ----------
    plan, name
        The plan, and the node's name in it.
    most_epsilon
        The most that all permitted trainings together may cost a patient; None for no limit but the plan's label.
    attempts
        How many trainings are permitted.

    Raises
    ------
    UserError
        If epsilon of the plan is above the one in the run's name, or above the node's own limit.
    """
    found = promise_of(plan, name)
    label = epsilon_value(plan.run.epsilon)
    if found.epsilon > label * TOLERANCE:
        raise UserError(
            f"Expected a plan that costs the patients of {name} at most epsilon {plan.run.epsilon}, as it is called, "
            f"found {rounded_up(found.epsilon)} at delta {plan.delta:g}. Do not take part; ask for another plan."
        )
    if most_epsilon is not None:
        total = promise_of(plan, name, attempts).person
        if total > most_epsilon:
            times = "one training" if attempts == 1 else f"{attempts} trainings"
            raise UserError(
                f"Expected a plan that costs a patient of {name} at most epsilon {most_epsilon:g} in {times}, as "
                f"most_epsilon says, found {rounded_up(total)} at delta {plan.delta:g}."
            )
    return found
