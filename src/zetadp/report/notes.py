"""Notes below every table: the cohort behind the numbers, and the meaning of epsilon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from zetadp.accounting.threat import MASKED_SUMS, NoiseSource
from zetadp.base.epsilon import describe_guarantee, rounded_up
from zetadp.base.validation import counted
from zetadp.report.provenance import Cohort
from zetadp.report.tables import EPSILON_TOLERANCE, holders, metric_shown, private_rows

INFINITY_NOTE = "ε = ∞: gradients are clipped but get no noise. These runs carry no privacy guarantee."
WORSE_NOTE = "- Training made it worse than these public weights. Use them instead: they cost no privacy."
UNCLIPPED_NOTE = "Unclipped: gradients are neither clipped nor get noise. These runs carry no privacy guarantee."
SIMULATION_NOTE = "The cohort is simulated: these are results on a simulation, not on patients."
SEEDED_NOTE = "Noise: seeded. ε is that of the ideal mechanism, simulated: reproducible noise protects nobody."


def notes(
    runs: pd.DataFrame, cohort: Cohort, total: Mapping[str, Any] | None = None, planned: int | None = None
) -> tuple[str, ...]:
    """Return the notes that belong below every table of these runs.

    Parameters
    ----------
    runs
        Result of `tables.collect`.
    cohort
        The cohort.
    total
        Content of the cohort's ``privacy_total.json``, whose ``statement`` gives the total epsilon of all runs.
    planned
        Number of runs of the whole experiment, if ``runs`` may be only a part of it.
    """
    private = private_rows(runs)
    free = {target.clipped for target in runs["epsilon"] if not target.private}
    held_out = f"{len(set().union(*runs['per_patient']))} held-out test {holders(runs)}"
    units = " and ".join(sorted({f"per {unit}" for unit in runs["unit"]}))
    deltas = ", ".join(f"{delta:g}" for delta in sorted(runs["delta"].astype(float).unique()))
    sources = set(private["noise_source"])
    lines = [
        f"Cohort: {cohort}. {_measured(runs)} {held_out}, in %.",
        *dict.fromkeys(note for notes_of_task in runs["notes"] for note in notes_of_task),
        *([SIMULATION_NOTE] if cohort.simulated else []),
        f"ε is {units}, at δ = {deltas}.",
        *([SEEDED_NOTE] if NoiseSource.SEEDED in sources else []),
        *(["Noise: exact, from the operating system’s generator."] if NoiseSource.OS in sources else []),
        *_sums(private),
        *_images(private),
        *([INFINITY_NOTE] if True in free else []),
        *([UNCLIPPED_NOTE] if False in free else []),
        *_excesses(runs),
        *worse_than_start(runs),
        *_others(len(runs), planned),
        *([str(total["statement"])] if total else []),
    ]
    return tuple(lines)


def _measured(runs: pd.DataFrame) -> str:
    """Return the beginning of the note that defines the metric."""
    metric = runs["metric"].iloc[0]
    return (
        "Accuracy is the share of correct images of"
        if metric == "accuracy"
        else f"{metric_shown(metric)} is measured on"
    )


def _others(finished: int, planned: int | None) -> list[str]:
    """Return a note if the experiment declares more runs than have finished."""
    if planned is None or finished >= planned:
        return []
    return [f"{finished} of the experiment's {planned} runs. The others follow, and the total grows with them."]


def is_worse(reached: float, start: float) -> bool:
    """Return whether a share is below that of public weights by more than the rounding of 32-bit numbers."""
    return reached < start - 1e-6


def worse_than_start(runs: pd.DataFrame) -> list[str]:
    """Return a note for each network and target whose result is worse than its public starting weights.

    Runs that differ only in the seed count together, by the mean of their metric.
    """
    lines = []
    cells = runs.dropna(subset="public_start").groupby(["network", "arm", "epsilon"], sort=False)
    for (network, arm, _), group in cells:
        start, reached = (float(group[column].mean()) for column in ("public_start", "value"))
        if is_worse(reached, start):
            lines.append(
                f"{network}, {arm}, {group['epsilon'].iloc[0].title}: training made it worse, {100 * reached:.1f} % "
                f"after {100 * start:.1f} % of the public weights that it started from. Use these instead: they cost "
                "no privacy."
            )
    return lines


def _sums(private: pd.DataFrame) -> list[str]:
    """Return, for each arm with masked sums, the assumption of its epsilon, and epsilon without it."""
    lines = []
    for arm, group in private[private["threat"] == MASKED_SUMS].groupby("arm"):
        figures = _at_epsilons(group, "epsilon_single_messages")
        colluding = counted(int(group["colluding"].max()), "node")
        lines.append(
            f"Arm {arm}: masked sums. ε holds as long as masks hide single messages, against a server that may deviate "
            f"and colludes with at most {colluding}. Against anyone who could undo the masks it is {figures}."
        )
    return lines


def _images(private: pd.DataFrame) -> list[str]:
    """Return, for each network whose unit is an image, the guarantee for a whole patient."""
    lines = []
    for network, group in private[private["unit"] == "image"].groupby("network"):
        figures = _at_epsilons(group, "epsilon_per_patient")
        lines.append(
            f"Network {network}: ε is per image, a weaker guarantee that protects no patient. The true ε per patient, "
            f"for all images of a patient together, is {figures}."
        )
    return lines


def _at_epsilons(runs: pd.DataFrame, column: str) -> str:
    """Return the largest value of a column of epsilons at every target, as text."""
    worst = runs.groupby("epsilon")[column].max()
    return ", ".join(f"{describe_guarantee(worst[target])} at {target.title}" for target in sorted(worst.index))


def _excesses(runs: pd.DataFrame) -> list[str]:
    """Return a note on runs whose stated epsilon is above their target."""
    private = private_rows(runs)
    targets = np.array([target.epsilon for target in private["epsilon"]])
    above = private[private["epsilon_stated"] > targets * (1 + EPSILON_TOLERANCE)]
    return [
        f"{row['network']}, {row['arm']}, {row['epsilon'].title}, seed {row['seed']}: the stated ε is "
        f"{rounded_up(row['epsilon_stated'])}, because more was released than planned "
        "(rounds repeated after an interruption)."
        for _, row in above.iterrows()
    ]
