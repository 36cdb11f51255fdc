"""Pages that copy tables of docs/results hold what is kept there."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

DOCS = Path(__file__).parents[2] / "docs"


def rows(page: str) -> list[str]:
    return [line for line in (DOCS / page).read_text().splitlines() if line.startswith("|")]


def test_the_page_says_what_heads_on_a_study_reach():
    table = pd.read_csv(DOCS / "results/study/table1.csv", comment="#", dtype={"epsilon": str})
    kept = {(row["network"], row["epsilon"]): row for row in table.to_dict("records")}
    lines = [line for line in rows("pretraining.md") if re.match(r"\| (study|head)_\d+, ", line)]
    assert len(lines) == 4
    for line in lines:
        _, name, public, *cells = (cell.strip(" *") for cell in line.split("|")[:-1])
        network = re.search(r"(study|head)_\d+", name)[0]
        assert public == f"{kept[network, '1']['public_start']:.1f}"
        for epsilon, cell in zip(("1", "8", "inf"), cells, strict=True):
            row = kept[network, epsilon]
            shown = f"{row['mean']:.1f} ± {row['std']:.1f}" if epsilon != "inf" else f"{row['mean']:.1f}"
            assert cell == shown, line
