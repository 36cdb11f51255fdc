"""Finished runs, and configurations that would train them again on other hospitals."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from zetadp.account.ledger import Ledger
from zetadp.base.runfolder import RunFolder
from zetadp.base.validation import UserError
from zetadp.config.experiment import Config
from zetadp.config.finished import check_partition
from zetadp.config.load import load_config, overlay

ROOT = Path(__file__).parents[3]


def config_of(nodes: int) -> Config:
    content = yaml.safe_load((ROOT / "config.yaml").read_text())
    runs = [{"networks": ["head"], "arms": ["federated"], "epsilons": [8], "seeds": [0]}]
    overlay(content, {"privacy": {"noise": "os"}, "partition": {"nodes": nodes}})
    return load_config(content | {"runs": runs})


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
