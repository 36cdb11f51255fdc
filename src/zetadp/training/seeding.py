"""The seed of a plan's seeded draws, which follow from its constants alone and protect no one."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

from zetadp.training.plan import Plan
from zetadp.training.settings import GAUSSIAN

VERSION = 1
"""Version of the list of values that determine seeded draws."""
SALT = 4
"""Constant in that list. It means nothing; another number would change every seeded draw."""


def seeding_of(plan: Plan) -> str:
    """Return the hash of a fixed list of values, of version `VERSION`, that distinguishes seeded runs.

    Every seeded result follows from it, so the list of a run never changes: a new setting is left out of `_values` and
    joins the end of the list for the runs that use it. The list holds nothing that is computed from data, such as
    weights or features, because its last bits would differ between processors.
    """
    net, settings, optimiser = plan.network, plan.training, plan.training.optimiser
    run = [*plan.run.to_json().values(), plan.cohort]
    network = [*_values(net, "taper"), SALT]
    training: list[Any] = [settings.rounds, settings.images_per_patient, float(settings.clip)]
    training += [settings.estimator, float(settings.feature_norm)]
    training += [optimiser.name, *map(float, _values(optimiser, "name", "recipe"))]
    nodes = [[n.name, n.population, float(n.expected), float(n.noise_multiplier)] for n in plan.nodes]
    sums = None if plan.sums is None else asdict(plan.sums)
    rest = [plan.unit, plan.units_of_a_person, plan.threat, sums]
    partition = json.dumps(plan.partition, sort_keys=True)
    further: list[Any] = [] if settings.mechanism == GAUSSIAN else [settings.mechanism]
    further += [] if settings.mixing is None else [settings.mixing.described()]
    further += [{"taper": net.taper}] if net.taper else []
    further += [] if optimiser.recipe is None else [optimiser.recipe]
    content = json.dumps([VERSION, run, network, training, nodes, rest, partition, *further])
    return hashlib.sha256(content.encode()).hexdigest()


def entropy_of(plan: Plan, repeat: int = 0) -> int:
    """Return the seed of seeded sampling and noise.

    Parameters
    ----------
    plan
        The plan.
    repeat
        Number that distinguishes runs of one plan whose releases count as independent.
    """
    return int(hashlib.sha256(f"{seeding_of(plan)} {repeat}".encode()).hexdigest()[:32], 16)


def _values(settings: Any, *left_out: str) -> list[Any]:  # noqa: ANN401  (any frozen dataclass)
    """Return the values of settings in the order of their declaration, without some."""
    return [value for name, value in asdict(settings).items() if name not in left_out]
