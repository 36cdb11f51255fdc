"""The one maker of plans with noise, and the promise that a plan makes to the people behind one node."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from zetadp.account.exposure import in_sums
from zetadp.accounting import composition
from zetadp.accounting.calibration import noise_for_epsilon, noise_for_sum
from zetadp.accounting.threat import IF_HIDDEN
from zetadp.base.epsilon import USELESS, rounded_up
from zetadp.base.storage import read_json, write_json
from zetadp.base.validation import UserError
from zetadp.training.plan import Plan

OWN_DELTA = 1e-3
"""The largest delta at which a hospital judges a plan, unless the hospital itself writes another."""
TOLERANCE = 1.0005
"""A value may exceed the plan's label by this factor, because accountants differ by about as much."""
HEAD_EPSILON, HEAD_DELTA, HEAD_ROUNDS, HEAD_WEIGHTS = 8.0, 1e-3, 20, 520
"""Target, rounds and trained real numbers of the default head of ``config.yaml``: 64 complex components of four
classes, and biases. All patients take part in every round."""
LOUD = 0.5
"""Length of a round's noise, in units of the longest mean gradient, from which a loss of accuracy is expected."""


def noise_of_plan(plan: Plan) -> float:
    """Return the noise multiplier of every node's own message at which a plan costs at most the epsilon in its name."""
    target = plan.target
    # A patient is on one node, so costs do not add up: the node that draws its patients most often decides.
    probability = max(float(plan.probability(node.name)) for node in plan.nodes)
    if plan.sums is None:
        return noise_for_epsilon(target.epsilon, plan.delta, probability, plan.tries * plan.open_rows)
    return noise_for_sum(target.epsilon, plan.delta, probability, plan.tries, plan.sums.shares(len(plan.nodes)))


def make_plan(draft: Plan, noise_files: Iterable[Path] = ()) -> Plan:
    """Return a complete plan: at every node it has the noise that the epsilon in its name needs.

    Parameters
    ----------
    draft
        The plan before its noise is known. Noise that it has is replaced.
    noise_files
        Files of `write_noise`. If one of them is about this plan, its noise is taken and not computed again.
    """
    known = {content["found_for"]: content["noise_multiplier"] for content in map(read_json, noise_files)}
    multiplier = known.get(draft.for_calibration().digest) if known else None
    return draft.with_noise(noise_of_plan(draft) if multiplier is None else multiplier)


def write_noise(*, noise: Path, plan: dict[str, Any]) -> None:
    """Write the noise multiplier of a plan (`Plan.for_calibration`), before any training, with the plan's hash."""
    draft = Plan.from_json(plan)
    multiplier = make_plan(draft).nodes[0].noise_multiplier
    logging.getLogger(__name__).info("noise multiplier %g", multiplier)
    write_json(noise, {"noise_multiplier": multiplier, "found_for": draft.digest})


def check_noise(plan: Plan) -> None:
    """Raise `UserError` for a plan whose name is a finite epsilon, and whose noise is not enough for it.

    Every run computes this again, no matter who calibrated its plan: nothing is trained on a number that this process
    has not computed. It takes some hundredths of a second, and a quarter of a second where single images are drawn.
    """
    if not plan.target.private:
        return
    distinct = {(node.population, node.expected, node.noise_multiplier): node.name for node in plan.nodes}
    for name in distinct.values():
        _check_cost(
            plan, promise_of(plan, name), "Make it with zetadp.training.promise.make_plan, or name the run inf."
        )


def _check_cost(plan: Plan, promise: Promise, advice: str) -> None:
    if promise.epsilon > plan.target.epsilon * TOLERANCE:
        raise UserError(
            f"Expected a plan that costs the patients of {promise.node} at most epsilon {plan.target}, as its name "
            f"says, found {rounded_up(promise.epsilon)} at delta {promise.delta:g}. {advice}"
        )


class Noise(NamedTuple):
    """Noise of a training relative to its signal: a round's mean gradient has at most length 1 in units of the clip.

    Attributes
    ----------
    of_round
        Expected length of the noise in the mean gradient of a round, in units of the clip.
    of_all
        The same of the mean over all rounds, which limits what the training can learn.
    """

    of_round: float
    of_all: float

    @classmethod
    def of(cls, plan: Plan, weights: int) -> Noise:
        """Return the noise of a plan, for a network with this number of trained real numbers."""
        single = plan.noise_of_mean() * math.sqrt(weights)
        return cls(single, single / math.sqrt(plan.training.rounds))

    @classmethod
    def of_head(cls, patients: int) -> Noise:
        """Return the noise of the workflow's default head, for one hospital with this number of training patients."""
        multiplier = noise_for_epsilon(HEAD_EPSILON, HEAD_DELTA, 1.0, HEAD_ROUNDS)
        single = multiplier / patients * math.sqrt(HEAD_WEIGHTS)
        return cls(single, single / math.sqrt(HEAD_ROUNDS))

    @property
    def outlook(self) -> str:
        """What such noise can be expected to leave, in one sentence; empty if it leaves nearly everything.

        The bounds are those of docs/choosing.md.
        """
        if self.of_all >= 1:
            return (
                f"Expect nothing from this training: even over all rounds, the noise is {self.of_all:.2g} times the "
                "longest possible signal, so the model will hardly be better than its starting weights, and may be "
                "worse. Take more patients, a larger epsilon or fewer trained weights."
            )
        if self.of_round >= 1:
            return (
                "Expect a small gain over the starting weights, or none: a round is mostly noise. More patients, a "
                "larger epsilon or fewer trained weights would help."
            )
        return "Expect the noise to cost some accuracy." if self.of_round >= LOUD else ""

    def __str__(self) -> str:
        text = (
            "In units of the clip, the mean gradient of a round has a length of at most 1. Its noise has a length "
            f"of {self.of_round:.2g}, which falls to {self.of_all:.2g} in the mean over all rounds."
        )
        return f"{text} {self.outlook}".rstrip()


@dataclass(frozen=True)
class Promise:
    """Epsilon of one node's releases against everyone who receives them, computed from the plan alone.

    Attributes
    ----------
    node
        Name of the node.
    unit
        Unit of the guarantee (`Plan.protects`).
    epsilon
        Epsilon for one unit, of one run to its declared end. It is infinite without noise, and where a single round
        costs more than any guarantee of use: the exact value could take minutes.
    delta
        The delta at which it holds.
    images
        Number of images of one patient if the unit is an image, else one.
    person
        Epsilon for a patient with all images.
    alone
        Of masked sums: epsilon for a patient with all images against anyone who could undo the masks. None without.
    """

    node: str
    unit: str
    epsilon: float
    delta: float
    images: int
    person: float
    alone: float | None = None

    @property
    def terms(self) -> str:
        """The promise in words, for texts that name the node already."""
        if self.epsilon == math.inf:
            return "no guarantee, because the plan adds no noise, or far too little"
        text = f"epsilon {rounded_up(self.epsilon)} for each {self.unit}, at delta {self.delta:g}"
        if self.images > 1:
            text += f"; for a patient with all {self.images} images {rounded_up(self.person)}"
        if self.alone is not None:
            text += f"; {IF_HIDDEN}, without them {rounded_up(self.alone)}"
        return text

    def __str__(self) -> str:
        return f"{self.node}: {self.terms}"


def promise_of(plan: Plan, name: str, delta: float | None = None) -> Promise:
    """Return the cost of one attempt by a plan for the patients of a node, as the server sees its releases.

    Other nodes' noise counts in masked sums only.

    Parameters
    ----------
    plan, name
        The plan, and the node's name in it.
    delta
        The delta at which the cost is computed; None for the plan's.
    """
    delta = plan.delta if delta is None else delta
    releases = plan.mechanisms(name)
    images = plan.units_of_a_person
    if composition.epsilon(Counter(dict.fromkeys(releases, 1)), delta) > USELESS:
        return Promise(name, plan.protects, math.inf, delta, images, math.inf)
    epsilon = composition.epsilon(releases, delta)
    person = epsilon if images == 1 else composition.epsilon_group(releases, delta, images)
    alone = None
    if plan.masked:
        alone = composition.epsilon(composition.grouped(in_sums(releases), images), delta)
    return Promise(name, plan.protects, epsilon, delta, images, person, alone)


def check_promise(plan: Plan, name: str, delta: float = OWN_DELTA) -> Promise:
    """Return the cost of one attempt. Refuse a plan that costs more than its name says.

    Parameters
    ----------
    plan, name
        The plan, and the node's name in it.
    delta
        The node's own delta. The plan is judged at this delta, or at the plan's where that is smaller. A larger delta
        makes every plan look cheap, so the coordinator's is not believed.

    Raises
    ------
    UserError
        If epsilon of the plan is above the one in the run's name, if the name of a plan with noise sets no limit, or if
        delta is so large that it would hide that a patient is drawn at all.
    """
    delta = min(plan.delta, delta)
    _check_delta(plan, name, delta)
    promise = promise_of(plan, name, delta=delta)
    if not plan.target.private and promise.epsilon < math.inf:
        raise UserError(
            f"Expected a plan that names the epsilon of its noise, found the name {plan.target}, which limits "
            f"nothing, and a cost of epsilon {rounded_up(promise.epsilon)} for the patients of {name} at delta "
            f"{delta:g}. Do not take part; ask for another plan."
        )
    _check_cost(plan, promise, "Do not take part; ask for another plan.")
    return promise


def _check_delta(plan: Plan, name: str, delta: float) -> None:
    """Refuse a delta as large as the chance that a patient is drawn at all: any release would cost nothing there."""
    never = math.prod((1 - kind.sampling_probability) ** count for kind, count in plan.mechanisms(name).items())
    if delta >= 1 - never:
        raise UserError(
            f"Expected a delta below {1 - never:.2g}, the chance that a patient of {name} is drawn at all, found "
            f"{delta:g}: at such a delta every plan would be free. Ask for a plan with a smaller delta."
        )
