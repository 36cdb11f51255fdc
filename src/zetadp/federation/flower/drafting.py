"""From sections of a configuration to the plan of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zetadp.federation.flower.plan import Plan, PlannedNode
from zetadp.federation.partition import node_name
from zetadp.federation.server import OptimiserSettings
from zetadp.nn.models import NetworkSettings
from zetadp.training import RunName, TrainingSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

OPTIMISER = ("learning_rate", "drop_after", "drop_factor")


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
        Declared constants of the arm: ``sizes`` of the nodes, ``expected`` patients, ``rounds``.
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
    optimiser = OptimiserSettings(**{key: training[key] for key in OPTIMISER})
    rest = {key: value for key, value in training.items() if key not in OPTIMISER}
    return Plan(
        run=run,
        cohort=cohort,
        network=NetworkSettings(**{**settings, "widths": tuple(settings["widths"])}),
        training=TrainingSettings(rounds=plan["rounds"], optimiser=optimiser, noise=noise_source, **rest),
        slices=slice_count,
        size=size,
        nodes=tuple(
            PlannedNode(node_name(number), population, plan["expected"], noise_multiplier)
            for number, population in enumerate(plan["sizes"])
        ),
        update=update,
        partition=dict(division),
    )
