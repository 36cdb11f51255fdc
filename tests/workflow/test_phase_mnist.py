"""Another task through the workflow: its own data, rules, metrics, tables, figures and cards."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
import yaml

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DIGITS = ROOT.parent / "shared/data/mnist"


@pytest.mark.skipif(not DIGITS.is_dir(), reason="needs the files of MNIST in ../shared/data/mnist")
def test_phase_mnist_goes_from_official_files_to_its_table(fresh):
    scenario = yaml.safe_load((ROOT / "papers/complex_dp/scenarios/phase_mnist.yaml").read_text())
    scenario["cohort"] |= {"source": "folder", "folder": str(DIGITS), "train_patients": 600, "test_patients": 200}
    scenario["task"]["settings"]["encoder"] = {"digits": 1600, "axes_from": 400, "scattering": 20, "learned": 10}
    scenario["partition"] = {"nodes": 3, "validation_patients": 10}
    scenario["arms"] = {"central": {"expected_patients": 60, "rounds": 3}}
    scenario["networks"]["mlp"]["training"] |= {"rounds": 3, "expected_patients": 60}
    scenario["networks"]["head"]["training"] |= {"rounds": 8, "learning_rate": 30.0}
    scenario["runs"] = [
        {"networks": ["head"], "arms": ["central"], "epsilons": [8, "inf"], "seeds": [0]},
        {"networks": ["mlp"], "arms": ["central"], "epsilons": [8], "seeds": [0]},
    ]
    fresh.snakemake(configfile=fresh.overlay(yaml.safe_dump(scenario)))
    results = fresh.root / "results/phase_mnist"
    table = pd.read_csv(results / "tables/table1.csv", comment="#", dtype={"epsilon": str})
    assert set(zip(table["network"], table["epsilon"], strict=True)) == {
        ("head", "8"),
        ("head", "inf"),
        ("mlp", "8"),
    }
    assert set(table["metric"]) == {"accuracy"}
    assert table.set_index(["network", "epsilon"]).loc[("head", "inf"), "mean"] > 30  # a guess reaches ten
    per_class = pd.read_csv(results / "tables/per_class.csv", comment="#", dtype={"class": str})
    assert set(per_class["class"]) == set("0123456789")
    run = results / "runs/head/central/eps-8/seed-0"
    plan = json.loads((run / "plan.json").read_text())
    assert plan["task"]["name"] == "phase_mnist"
    assert len(plan["public"]["encoder"]) == 64
    assert "for each training record" in (run / "privacy.txt").read_text()
    card = (run / "MODEL_CARD.md").read_text()
    assert card.startswith("# PhaseMNIST classifier: head")
    assert "brain" not in card.lower()
    assert "NIfTI" not in card
    for name in ("accuracy", "confusion", "per_class", "curves"):
        assert (results / f"figures/{name}.svg").read_text().startswith("<?xml")


def test_a_network_of_a_domain_that_the_task_does_not_make_is_named(fresh):
    scenario = yaml.safe_load((ROOT / "papers/complex_dp/scenarios/phase_mnist.yaml").read_text())
    scenario["runs"] = [{"networks": ["linear"], "arms": ["central"], "epsilons": ["inf"], "seeds": [0]}]
    said = fresh.snakemake("--dry-run", configfile=fresh.overlay(yaml.safe_dump(scenario)), code=1)
    assert "networks.linear.domain: expected one of complex, features for task phase_mnist; found kspace." in said
