"""A task that an installed package brings trains, accounts, evaluates and tabulates, and nothing here knows it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from zetadp.base.storage import write_json
from zetadp.core.checkpoint import RunFiles
from zetadp.core.evaluation import outputs_of
from zetadp.core.plan import NodeConstants, Plan, RunName
from zetadp.core.promise import make_plan, promise_of
from zetadp.core.records import LabelledItems
from zetadp.core.settings import OptimiserSettings, TrainingSettings
from zetadp.core.task import task_of
from zetadp.core.training import train
from zetadp.nn.settings import NetworkSettings
from zetadp.privacy.book import recorded_runs
from zetadp.privacy.statement import run_statement
from zetadp.report.tables import collect, per_node, table1

PLUGIN = Path(__file__).parents[2] / "plugin"
FEATURES, PATIENTS = 6, 30
TASK = {"name": "rotation", "features": FEATURES}


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    """Stand for ``pip install``: the folder has the package and what pip writes beside it."""
    monkeypatch.syspath_prepend(PLUGIN)
    yield
    sys.modules.pop("toy_task", None)


class Affine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(FEATURES, 1, bias=False, dtype=torch.complex64)
        nn.init.zeros_(self.map.weight)

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        return self.map(items)


def held(seed: int, patients: int = PATIENTS) -> LabelledItems:
    """Return patients with one to five items each."""
    random = np.random.default_rng(seed)
    owner = np.repeat(np.arange(patients), random.integers(1, 6, patients))
    inputs = torch.from_numpy(random.standard_normal((2, len(owner), FEATURES)).astype(np.float32))
    inputs = torch.complex(*inputs)
    factors = torch.polar(torch.ones(FEATURES), torch.arange(FEATURES) / 2)
    items = pd.DataFrame({"patient": [f"P{n:02d}" for n in owner], "item": np.arange(len(owner))})
    return LabelledItems(inputs, inputs @ factors, items=items)


def plan(**changes: object) -> Plan:
    settings = TrainingSettings(
        rounds=40, images_per_patient=3, clip=5.0, optimiser=OptimiserSettings(0.2, drop_after=1, name="sgd")
    )
    here = NodeConstants("here", PATIENTS, PATIENTS)
    given = {"task": TASK, "cohort": "toy", **changes}
    return Plan(RunName("own", "central", "inf", 0), NetworkSettings("own"), settings, (here,), **given)


def trained(folder: Path, of: Plan, watched: LabelledItems | None = None, model: nn.Module | None = None):
    own = held(0)
    files = RunFiles(folder / "ledger.jsonl", folder / "checkpoint")
    return train(of, own, [own.units()], files, validation=watched, model=model or Affine())


def test_it_accounts_evaluates_and_tabulates(tmp_path):
    private = replace(plan(delta=1e-3), run=replace(plan().run, epsilon="8"))
    private = make_plan(private)
    assert promise_of(private, "here").epsilon <= 8
    folder = tmp_path / "run"
    result = trained(folder, private)
    (run,) = recorded_runs(folder / "ledger.jsonl")
    statement = run_statement(run, target_epsilon=8.0)
    write_json(folder / "privacy.json", statement)
    test, task = held(2), task_of(TASK)
    predictions = test.items.assign(**task.measure(outputs_of(result.model, test.inputs), test.targets))
    assert list(predictions.columns) == ["patient", "item", "square", "error"]
    name = {"network": "own", "arm": "central", "epsilon": "8", "seed": 0}
    metrics = task.summarise(predictions) | {"run": name, "task": "rotation", "node_metric": {}}
    write_json(folder / "metrics.json", metrics)
    runs = collect([folder])
    row = table1(runs, "a toy").iloc[0]
    assert row["metric"] == "explained"
    assert row["mean"] == pytest.approx(100 * metrics["explained"])
    assert 20 < row["mean"] < 100
    assert row["patients"] == PATIENTS
    assert list(per_node(runs)["node"]) == ["here"]
