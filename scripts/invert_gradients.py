"""Rebuild images from single messages of k-space training, and compare them with the true images."""

from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from zetadp.audit.inversion import ATTACKS, SEED, Message, Rebuilt, frame, guessed, rebuild, sheet
from zetadp.audit.suite import spread
from zetadp.base.epsilon import epsilon_label, epsilon_shown, epsilon_value
from zetadp.base.storage import write_text
from zetadp.base.workflow import run
from zetadp.nn.settings import NetworkSettings
from zetadp.report.attackfigure import rebuilt_figure
from zetadp.report.figurestyle import save_svg
from zetadp.report.provenance import origin
from zetadp.report.rendering import to_csv, to_markdown

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
            epsilon=epsilon_value(epsilon),
            delta=delta,
            objective=objective,
        )
        for kind in settings["kinds"]
        for objective, epsilon in product(kind["objectives"], kind["epsilons"])
    ]
    numbers = range(settings["messages"])
    jobs = [replace(kind, number=number) for kind in kinds for number in numbers]
    found = spread(partial(rebuild, steps=settings["steps"]), jobs, threads, name_of)
    without = [guessed(replace(kinds[0], number=number)) for number in numbers]
    groups = [[*found[place : place + len(numbers)]] for place in range(0, len(found), len(numbers))]
    scores, made = frame([*without, *found]), origin(COHORT, SEEDS)
    write_text(csv, to_csv(scores, made, float_format="%.4g"))
    table = sheet(scores)
    write_text(md, to_markdown(replace(table, notes=(*table.notes, *made))))
    shown = [("no message: mean of public images", without), *((name_of(group[0]), group) for group in groups)]
    save_svg(rebuilt_figure(shown, "What one message of k-space training gives away"), picture)


def name_of(found: Rebuilt) -> str:
    """Return the name of a kind of message, for picture and log."""
    of = found.message
    assert of is not None
    return f"{of.network}, {of.name}, {ATTACKS[of.objective]}, ε = {epsilon_shown(epsilon_label(of.epsilon))}"


if __name__ == "__main__":
    run(main)
