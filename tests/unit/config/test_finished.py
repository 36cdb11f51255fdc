"""Finished runs, and configurations that would train them again on other hospitals."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from zetadp.account.ledger import Ledger
from zetadp.base.runfolder import RunFolder
from zetadp.base.validation import UserError
from zetadp.config.experiment import Config
from zetadp.config.finished import check_partition, check_trainings
from zetadp.config.load import load_config, overlay

ROOT = Path(__file__).parents[3]


def config_of(nodes: int, epsilons: Sequence[int] = (8,), **others: Any) -> Config:
    content = yaml.safe_load((ROOT / "config.yaml").read_text())
    runs = [{"networks": ["head"], "arms": ["federated"], "epsilons": [*epsilons], "seeds": [0]}]
    overlay(content, {"privacy": {"noise": "os"}, "partition": {"nodes": nodes}})
    overlay(content, others)
    return load_config(content | {"runs": runs})


def record(config: Config, ledgers: Path, *, released: bool = True) -> None:
    """Write the ledger of each run of a configuration, with its first round."""
    for name in config.run_names:
        plan = config.plan(name).with_noise(2.0)
        with Ledger(ledgers / f"{config.name}-{name.label}.jsonl") as ledger:
            ledger.start(plan.declaration())
            if released:
                ledger.record([plan.event(node.name, 0) for node in plan.nodes])


@pytest.mark.parametrize(("noise", "refused"), [(2.0, True), (0.0, False)])
def test_hospitals_of_a_finished_run_change_only_with_permission(noise, refused, tmp_path):
    results, ledgers, trained, other = tmp_path / "results", tmp_path / "ledgers", config_of(11), config_of(4)
    (name,) = trained.run_names
    plan = trained.plan(name).with_noise(noise)
    run = RunFolder(results / name.folder)
    run.path.mkdir(parents=True)
    plan.write(run.plan)
    with Ledger(ledgers / f"{trained.name}-{name.label}.jsonl") as ledger:
        ledger.start(plan.declaration())
        ledger.record([plan.event(node.name, 0) for node in plan.nodes])
    check_partition(trained, results, ledgers)
    if refused:
        with pytest.raises(UserError, match=r"partition\.nodes \(then 11, now 4\).* undo that.*zetadp permit "):
            check_partition(other, results, ledgers)
        with Ledger(ledger.path) as ledger:
            ledger.permit()
    check_partition(other, results, ledgers)


REAL = {"cohort": {"name": "mine", "source": "folder", "folder": "brains", "one_record_per_patient": True}}


def test_runs_after_training_count_as_further_runs(tmp_path):
    first, other = config_of(11, **REAL), config_of(11, [1], **REAL)
    check_trainings(first, tmp_path)
    record(first, tmp_path)
    check_trainings(first, tmp_path)
    renamed = config_of(11, name="again", **REAL)
    for refused in (other, renamed):
        with pytest.raises(UserError, match=r"found 1 new run .* and 1 recorded.*write privacy\.trainings: 2"):
            check_trainings(refused, tmp_path)
    both = config_of(11, [1, 8], **REAL, privacy={"trainings": 2})
    check_trainings(both, tmp_path)
    record(other, tmp_path)
    check_trainings(first, tmp_path)  # nothing new
    with pytest.raises(UserError, match=r"and 2 recorded.*trainings: 3"):
        check_trainings(renamed, tmp_path)


def test_only_recorded_releases_about_real_patients_count(tmp_path):
    record(config_of(11, **REAL), tmp_path / "unused", released=False)
    check_trainings(config_of(11, [1], **REAL), tmp_path / "unused")
    record(config_of(11), tmp_path / "simulated")
    check_trainings(config_of(11, [1]), tmp_path / "simulated")


@pytest.mark.parametrize("content", ["{}", "[]", "{", '{"format": 3}'])
def test_a_damaged_plan_of_a_finished_run_is_named(content, tmp_path):
    config = config_of(11)
    (name,) = config.run_names
    run = RunFolder(tmp_path / "results" / name.folder)
    run.path.mkdir(parents=True)
    run.plan.write_text(content)
    with Ledger(tmp_path / "ledgers" / f"{config.name}-{name.label}.jsonl") as ledger:
        ledger.start(config.plan(name).with_noise(2.0).declaration())
    with pytest.raises(UserError, match=re.escape(str(run.plan))):
        check_partition(config, tmp_path / "results", tmp_path / "ledgers")
