"""The task of docs/tasks.md, installed as a package: trained, accounted for, evaluated and tabulated."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

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

PAGE = Path(__file__).parents[3] / "docs/tasks.md"
FEATURES, PATIENTS = 6, 30
TASK = {"name": "rotation", "features": FEATURES}


@pytest.fixture(autouse=True)
def _installed(monkeypatch, tmp_path):
    """Stand for ``pip install``: a folder has the page's module, and what pip writes beside it of the entry point."""
    code, entry = (re.search(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.DOTALL)[1] for kind in ("python", "toml"))
    installed = tmp_path / "installed"
    written = installed / "my_package-1.0.dist-info"
    written.mkdir(parents=True)
    (installed / "my_package.py").write_text(code)
    (written / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1.0\n")
    name, place = re.search(r'(\w+) = "(.+)"', entry).groups()
    (written / "entry_points.txt").write_text(f"[zetadp.tasks]\n{name} = {place}\n")
    monkeypatch.syspath_prepend(installed)
    yield
    sys.modules.pop("my_package", None)


def held(seed: int) -> LabelledItems:
    """Return patients with one to five items each."""
    random = np.random.default_rng(seed)
    owner = np.repeat(np.arange(PATIENTS), random.integers(1, 6, PATIENTS))
    inputs = torch.complex(*torch.from_numpy(random.standard_normal((2, len(owner), FEATURES)).astype(np.float32)))
    factors = torch.polar(torch.ones(FEATURES), torch.arange(FEATURES) / 2)
    items = pd.DataFrame({"patient": [f"P{n:02d}" for n in owner], "item": np.arange(len(owner))})
    return LabelledItems(inputs, inputs @ factors, items=items)


def test_it_accounts_evaluates_and_tabulates(tmp_path):
    sgd = OptimiserSettings(0.2, drop_after=1, name="sgd")
    settings = TrainingSettings(rounds=40, images_per_patient=3, clip=5.0, optimiser=sgd)
    here = NodeConstants("here", PATIENTS, PATIENTS)
    plan = Plan(RunName("own", "central", "8", 0), NetworkSettings("own"), settings, (here,), task=TASK, cohort="toy")
    plan = make_plan(plan)
    assert promise_of(plan, "here").epsilon <= 8
    folder, own, test, task = tmp_path / "run", held(0), held(2), task_of(TASK)
    model = torch.nn.Linear(FEATURES, 1, bias=False, dtype=torch.complex64)
    torch.nn.init.zeros_(model.weight)
    files = RunFiles(folder / "ledger.jsonl", folder / "checkpoint")
    result = train(plan, own, [own.units()], files, model=model)
    (run,) = recorded_runs(files.ledger)
    write_json(folder / "privacy.json", run_statement(run, target_epsilon=8.0))
    measured = task.measure(outputs_of(result.model, test.inputs), test.targets)
    metrics = task.summarise(test.items.assign(**measured))
    about = {"run": vars(plan.run), "task": "rotation", "node_metric": {}}
    write_json(folder / "metrics.json", metrics | about)
    runs = collect([folder])
    row = table1(runs, "a toy").iloc[0]
    assert row["metric"] == "explained"
    assert row["mean"] == pytest.approx(100 * metrics["explained"])
    assert 20 < row["mean"] < 100
    assert row["patients"] == PATIENTS
    assert list(per_node(runs)["node"]) == ["here"]
