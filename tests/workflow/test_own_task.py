"""The task of docs/tasks.md, a package of its own, goes through the workflow of this repository."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from own_package import TASK as PACKAGE

pytestmark = pytest.mark.slow


def test_an_installed_task_goes_through_the_pipeline(fresh, tmp_path):
    installed = PACKAGE.install(tmp_path / "installed")
    called = {"configfile": fresh.overlay(PACKAGE.blocks("yaml")[0]), "PYTHONPATH": str(installed)}
    fresh.snakemake(**called)
    results = fresh.root / "results/rotation"
    row = pd.read_csv(results / "tables/table1.csv", comment="#", dtype={"epsilon": str}).iloc[0]
    run = results / "runs/dense/central/eps-8/seed-0"
    metrics = json.loads((run / "metrics.json").read_text())
    assert (row["metric"], row["patients"]) == ("explained", 40)
    assert row["mean"] == pytest.approx(100 * metrics["explained"])
    assert metrics["notes"][0] in (results / "tables/table1.md").read_text()
    assert (run / "MODEL_CARD.md").read_text().startswith("# Lengths of rotated sums: dense")
    assert {path.name for path in (results / "figures").iterdir()} == {"accuracy.svg", "curves.svg"}

    assert fresh.would_run(**called) == set()
    stages = installed / "my_package/stages.py"
    stages.write_text(stages.read_text() + "\nADDED = True\n")
    assert "simulate_items" in fresh.would_run(**called)
