"""From sections of a configuration to the plan of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zetadp.federation.flower.plan import Plan, PlannedNode
from zetadp.federation.partition import node_name
from zetadp.nn.models import NetworkSettings
from zetadp.training import RunName, TrainingSettings

if TYPE_CHECKING:
    from collections.abc import Mapping


def draft(
    run: RunName,
    *,
    settings: Mapping[str, Any],
    training: Mapping[str, Any],
    plan: Mapping[str, Any],
    noise_multiplier: float,
    noise_source: str,
    cohort: str,
    division: Mapping[str, Any],
    slice_count: int,
    size: int,
    update: str,
) -> Plan:
    """Return the plan of a run.

    Parameters
    ----------
    run
        Name of the run.
    settings, training
        The network's and the training's sections of the configuration.
    plan
        What `config.plan_of` returned: ``sizes`` and ``expected`` patients of the nodes, ``rounds``.
    noise_multiplier
        sigma, the same at every node.
    noise_source
        ``seeded`` or ``os``.
    cohort, division
        What stands for the patients, and what decided who is where.
    slice_count, size
        Slices of each sequence, and their side.
    update
        How updates travel.
    """
    return Plan(
        run=run,
        cohort=cohort,
        network=NetworkSettings(**{**settings, "widths": tuple(settings["widths"])}),
        training=TrainingSettings.from_section(training, rounds=plan["rounds"], noise=noise_source),
        slices=slice_count,
        size=size,
        nodes=tuple(
            PlannedNode(node_name(number), population, expected, noise_multiplier)
            for number, (population, expected) in enumerate(zip(plan["sizes"], plan["expected"], strict=True))
        ),
        update=update,
        partition=dict(division),
    )
