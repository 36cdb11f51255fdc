"""Rebuild images from single messages of k-space training, and compare them with the true images."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from zetadp.audit.inversion import ATTACKS, SEED, Message, Rebuilt, frame, rebuild, sheet
from zetadp.audit.suite import run_jobs
from zetadp.base.epsilon import Target
from zetadp.base.workflow import run
from zetadp.nn.settings import NetworkSettings
from zetadp.report.attackfigure import rebuilt_figure
from zetadp.report.figurestyle import save_svg
from zetadp.report.provenance import origin
from zetadp.report.rendering import write_table

COHORT = f"public patients of seed {SEED}, simulated for the attack"
SEEDS = str(SEED)


def main(
    *,
    csv: Path,
    md: Path,
    picture: Path,
    settings: dict[str, Any],
    networks: dict[str, dict[str, Any]],
    clips: dict[str, float],
    size: int,
    delta: float,
    threads: int,
) -> None:
    """Attack every kind of message that the configuration lists, and write table and picture."""
    kinds = [
        Message(
            kind["network"],
            NetworkSettings(**networks[kind["network"]]),
            size=size,
            clip=clips[kind["network"]],
            patients=kind["patients"],
            images=kind["images"],
            epsilon=Target(**epsilon).epsilon,
            delta=delta,
            objective=objective,
            steps=settings["steps"],
        )
        for kind in settings["kinds"]
        for objective, epsilon in product(kind["objectives"], kind["epsilons"])
    ]
    # The first attack guesses the images without a message.
    kinds.insert(0, replace(kinds[0], objective=None))
    numbers = range(settings["messages"])
    rebuilt = run_jobs(
        rebuild, [replace(kind, number=number) for kind in kinds for number in numbers], threads, describe_message
    )
    groups = [rebuilt[first : first + len(numbers)] for first in range(0, len(rebuilt), len(numbers))]
    scores = frame(rebuilt)
    write_table((csv, md), scores, sheet(scores), origin(COHORT, SEEDS), float_format="%.4g")
    named_groups = [(describe_message(group[0]), group) for group in groups]
    save_svg(rebuilt_figure(named_groups, "What one message of k-space training gives away"), picture)


def describe_message(rebuilt: Rebuilt) -> str:
    """Return the name of a kind of message, for picture and log."""
    message = rebuilt.message
    if message.objective is None:
        return message.name
    return f"{message.network}, {message.name}, {ATTACKS[message.objective]}, {Target(message.epsilon).title}"


if __name__ == "__main__":
    run(main)
