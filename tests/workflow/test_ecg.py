"""The ECG task through the workflow: simulated patients, metrics that are no shares of items, cards and figures."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
import yaml

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def tiny() -> dict:
    """Return the scenario at the smallest size."""
    scenario = yaml.safe_load((ROOT / "workflow/scenarios/ecg.yaml").read_text())
    scenario["cohort"] |= {"train_patients": 60, "test_patients": 40}
    scenario["task"]["settings"]["encoder"] = {"patients": 128, "epochs": 3, "components": 4}
    scenario["arms"] = {"central": {"expected_patients": 6, "rounds": 3}}
    scenario["networks"]["head"]["training"] = {**scenario["networks"]["head"]["training"], "rounds": 10}
    del scenario["networks"]["real"]
    own = scenario["networks"]["mlp"]["training"]
    scenario["networks"]["mlp"]["training"] = {**own, "rounds": 3, "expected_patients": 6}
    scenario["runs"] = [
        {"networks": ["head"], "arms": ["central"], "epsilons": ["inf"], "seeds": [0, 1]},
        {"networks": ["head", "mlp"], "arms": ["central"], "epsilons": [8], "seeds": [0]},
    ]
    return scenario


def test_ecg_goes_from_simulated_patients_to_its_table(fresh):
    fresh.snakemake(configfile=fresh.overlay(yaml.safe_dump(tiny())))
    results = fresh.root / "results/ecg"
    table = pd.read_csv(results / "tables/table1.csv", comment="#", dtype={"epsilon": str})
    assert set(table["metric"]) == {"ROC-AUC"}
    assert set(table["network"]) == {"head", "mlp"}
    best = table.set_index(["network", "epsilon"]).loc[("head", "inf")]
    assert best["mean"] > 80  # a guess reaches 50
    # The interval is that of an area: resamples of patients, joined over seeds.
    runs = [json.loads((results / f"runs/head/central/eps-inf/seed-{s}/metrics.json").read_text()) for s in (0, 1)]
    joint = pd.DataFrame([run["replicates"] for run in runs]).mean().quantile([0.025, 0.975])
    for name, end in zip(("ci_low", "ci_high"), joint, strict=True):
        assert abs(best[name] - 100 * end) < 1e-6
    run = results / "runs/head/central/eps-8/seed-0"
    statement = (run / "privacy.txt").read_text()
    assert "for each training patient" in statement
    plan = json.loads((run / "plan.json").read_text())
    assert plan["nodes"][0]["population"] == 60  # patients, not recordings
    assert len(plan["public"]["encoder"]) == 64
    index = pd.read_csv(fresh.root / "resources/phantom-ecg/index.csv")
    assert len(index) > index["patient"].nunique() == 100
    card = (run / "MODEL_CARD.md").read_text()
    assert card.startswith("# Classifier of left bundle branch block: head")
    assert "- ROC-AUC:" in card
    assert "simulated" in card
    notes = (results / "tables/table1.md").read_text()
    assert "ROC-AUC is measured on 40 held-out test patients" in notes
    assert "share of correct images" not in notes
    figure = (results / "figures/accuracy.svg").read_text()
    assert "ROC-AUC against" in figure
    assert "Roc-auc" not in figure
