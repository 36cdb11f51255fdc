"""Attack all messages of a run: identify the right candidate among several, as often as possible."""

from pathlib import Path

import pandas as pd

from zetadp.audit.candidates import SEED, attack_candidates, gradients, inner_products, of_candidates, sheet
from zetadp.audit.settings import Candidates
from zetadp.base.workflow import run
from zetadp.brain.backbone import load_backbone
from zetadp.report.attackfigure import candidates_figure
from zetadp.report.figurestyle import save_svg
from zetadp.report.provenance import origin
from zetadp.report.rendering import write_table
from zetadp.training.plan import Plan

COHORT = f"public patients of seed {SEED}, simulated for the attack"
SEEDS = str(SEED)


def main(
    *,
    backbone: list[Path],
    csv: Path,
    md: Path,
    picture: Path,
    settings: Candidates,
    plans: list[Plan],
    size: int,
    delta: float,
) -> None:
    """Train each network on newly simulated patients, attack its messages, and write table and picture."""
    public = load_backbone(backbone[0]) if backbone else None
    tables = []
    for plan in plans:
        inner = inner_products(gradients(of_candidates(plan, settings.patients), public, size))
        tables.append(attack_candidates(plan.run.network, inner, settings.epsilons, settings.candidates, delta))
    attacks = pd.concat(tables)
    write_table((csv, md), attacks, sheet(attacks), origin(COHORT, SEEDS), float_format="%.4g")
    save_svg(candidates_figure(attacks), picture)


if __name__ == "__main__":
    run(main)
