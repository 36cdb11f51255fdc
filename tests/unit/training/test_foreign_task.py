"""The task of docs/tasks.md, installed as a package: trained, accounted for, evaluated and tabulated."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from own_package import TASK as PACKAGE

from zetadp.account.book import recorded_runs
from zetadp.account.statement import run_statement
from zetadp.base.epsilon import Target
from zetadp.base.runfolder import RunName
from zetadp.base.storage import write_json
from zetadp.base.validation import UserError
from zetadp.base.workflow import code_of
from zetadp.config.load import load_config, overlay
from zetadp.nn.settings import NetworkSettings
from zetadp.report.provenance import Cohort
from zetadp.report.tables import collect, per_node, table1
from zetadp.training.checkpoint import RunFiles
from zetadp.training.evaluation import outputs_of
from zetadp.training.holders import LocalHolders
from zetadp.training.loop import train
from zetadp.training.plan import NodeConstants, Plan
from zetadp.training.promise import make_plan, promise_of
from zetadp.training.records import LabelledItems
from zetadp.training.settings import OptimiserSettings, TrainingSettings
from zetadp.training.task import module_of, task_of

FEATURES, PATIENTS = 6, 30
TASK = {"name": "rotation", "features": FEATURES}


@pytest.fixture(autouse=True)
def _installed(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(PACKAGE.install(tmp_path / "installed"))
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
    plan = Plan(
        RunName("own", "central", Target(8), 0), NetworkSettings("own"), settings, (here,), task=TASK, cohort="toy"
    )
    plan = make_plan(plan)
    assert promise_of(plan, "here").epsilon <= 8
    folder, own, test, task = tmp_path / "run", held(0), held(2), task_of(TASK)
    model = torch.nn.Linear(FEATURES, 1, bias=False, dtype=torch.complex64)
    torch.nn.init.zeros_(model.weight)
    files = RunFiles(folder / "ledger.jsonl", folder / "checkpoint")
    result = train(LocalHolders(plan, own, [own.units()], model=model), files)
    (run,) = recorded_runs(files.ledger)
    write_json(folder / "privacy.json", run_statement(run, target_epsilon=8.0))
    measured = task.measure(outputs_of(result.model, test.inputs), test.targets)
    metrics = task.summarise(test.items.assign(**measured))
    about = {"run": plan.run.to_json(), "task": "rotation", "node_metric": {}}
    write_json(folder / "metrics.json", metrics | about)
    runs = collect([folder])
    row = table1(runs, Cohort("a toy", simulated=True)).iloc[0]
    assert row["metric"] == "explained"
    assert row["mean"] == pytest.approx(100 * metrics["explained"])
    assert 20 < row["mean"] < 100
    assert row["patients"] == PATIENTS
    assert list(per_node(runs)["node"]) == ["here"]


def test_it_is_found_without_being_imported_and_its_module_and_templates_are_its_code(tmp_path):
    assert module_of("rotation") == "my_package"
    assert "my_package" not in sys.modules
    package = tmp_path / "installed/my_package"
    (package / "stages.py").write_text("from . import draw\n")
    (package / "draw.py").write_text("AXES = 2\n")
    code = code_of("scripts/stage.py", "my_package.stages")
    assert {"my_package/stages.py", "my_package/draw.py", "src/zetadp/base/workflow.py"} <= set(code)
    (package / "draw.py").write_text("AXES = 30\n")
    changed = {
        file for file, digest in code_of("scripts/stage.py", "my_package.stages").items() if code[file] != digest
    }
    assert changed == {"my_package/draw.py"}
    with pytest.raises(UserError, match="Expected the installed package absent, found none"):
        code_of("scripts/stage.py", "absent.stages")


def test_a_task_whose_package_is_incomplete_names_the_package(tmp_path):
    (tmp_path / "installed/my_package/__init__.py").write_text("import absent\n")
    with pytest.raises(UserError, match=r"rotation cannot be imported: No module named 'absent'\. Install my_package"):
        task_of(TASK)


def test_the_installed_package_brings_the_file_of_its_rules():
    assert task_of(TASK).rules.is_file()


SETTING = "    features: int = 6"
FAULTY = {
    "a type that is not imported": ("    features: 'np.ndarray' = None", "task rotation with settings of plain types"),
    "a type that JSON does not have": ("    features: Path = Path('x')", "Path is not JSON serializable"),
    "a function": ("    features: type(print) = print", "task rotation with settings of plain types"),
    "an error of its own": (f"{SETTING}\n    def __post_init__(self): self[0]", r"TypeError: .*in __post_init__"),
    "an error about the cohort": (
        f"{SETTING}\n    def cohort_faults(self, cohort): return cohort[0]",
        r"in the package my_package, found TypeError: .*in cohort_faults",
    ),
}


@pytest.mark.parametrize("what", FAULTY)
def test_a_mistake_in_a_task_is_one_message_on_the_configuration(what, tmp_path):
    new, expected = FAULTY[what]
    file = tmp_path / "installed/my_package/__init__.py"
    assert SETTING in file.read_text()
    file.write_text(file.read_text().replace(SETTING, new))
    config = yaml.safe_load((Path(__file__).parents[3] / "config.yaml").read_text())
    overlay(config, yaml.safe_load(PACKAGE.blocks("yaml")[0]))
    with pytest.raises(UserError, match=expected):
        load_config(config)


def test_two_packages_with_a_task_of_one_name_are_refused(monkeypatch, tmp_path):
    other = PACKAGE.install(tmp_path / "other")
    (other / "my_package-1.0.dist-info").rename(other / "their_package-1.0.dist-info")
    for name, old, new in (("METADATA", "my_package", "their_package"), ("entry_points.txt", ":Rotation", ":Turn")):
        file = other / "their_package-1.0.dist-info" / name
        file.write_text(file.read_text().replace(old, new))
    monkeypatch.syspath_prepend(other)
    with pytest.raises(UserError, match="one installed package with a task rotation, found my_package:Rotation and"):
        task_of(TASK)


def test_without_the_papers_their_tasks_are_refused_with_what_to_install(monkeypatch):
    monkeypatch.setattr("zetadp.base.installed.entry_points", lambda group: ())
    with pytest.raises(UserError, match=r"found 'ecg'.* zetadp-papers: call `make install`"):
        task_of({"name": "ecg"})


def test_what_make_install_installs_finds_what_the_papers_bring_from_any_folder(tmp_path):
    code = "from zetadp.training.task import task_of; print(task_of({'name': 'ecg'}).metric)\n"
    code += "from zetadp.accounting.laws import kind_of; print(kind_of('von_mises_fisher').__name__)"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    call = [sys.executable, "-c", code]
    done = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "ROC-AUC\nDirection\n"
