"""The reconstruction task through the workflow: simulated volumes, public networks, metrics of images, cards."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pandas as pd
import pytest
import yaml

ROOT = Path(__file__).parents[4]
pytestmark = pytest.mark.slow


def tiny() -> dict:
    """Return the scenario at the smallest size."""
    scenario = yaml.safe_load((ROOT / "papers/complex_dp/scenarios/reconstruction.yaml").read_text())
    scenario["cohort"] |= {"train_patients": 6, "test_patients": 4}
    settings = scenario["task"]["settings"]
    settings["size"] = 32
    settings["examinations"] |= {"population": "procedural", "slices": 2}
    settings["public"] |= {"families": ["unet"], "widths": [4, 8], "patients": 4, "passes": 2}
    settings["public"]["examinations"]["slices"] = 2
    scenario["networks"] = {"tuned": scenario["networks"]["tuned"]}
    scenario["networks"]["tuned"]["widths"] = [4, 8]
    scenario["networks"]["tuned"]["training"]["rounds"] = 3
    scenario["arms"] = {"central": {"expected_patients": 6, "rounds": 3}}
    scenario["runs"] = [{"networks": ["tuned"], "arms": ["central"], "epsilons": [8], "seeds": [0]}]
    return scenario


def test_reconstruction_goes_from_simulated_patients_to_its_table(fresh):
    fresh.snakemake(configfile=fresh.overlay(yaml.safe_dump(tiny())))
    results = fresh.root / "results/reconstruction"
    volumes = fresh.root / "resources/phantom-kspace/volumes"
    assert len(list((volumes / "singlecoil_train").glob("*.h5"))) == 6
    row = pd.read_csv(results / "tables/table1.csv", comment="#", dtype={"epsilon": str}).iloc[0]
    run = results / "runs/tuned/central/eps-8/seed-0"
    metrics = json.loads((run / "metrics.json").read_text())
    assert (row["metric"], row["patients"]) == ("SSIM", 4)
    assert abs(row["mean"] - 100 * metrics["SSIM"]) < 1e-6
    assert row["ci_low"] < row["mean"] < row["ci_high"]
    assert metrics["images"] == metrics["patients"] == 4  # volumes, one a patient
    assert len(pd.read_csv(run / "predictions.csv")) == 8  # slices
    # Three rounds under heavy noise move a network little, and it did start from the public one.
    assert 0 < metrics["public_start"] < 1
    assert metrics["public_start"] != metrics["SSIM"]
    plan = json.loads((run / "plan.json").read_text())
    assert (plan["unit"], plan["nodes"][0]["population"], plan["training"]["images_per_patient"]) == ("patient", 6, 1)
    assert len(plan["public"]["start"]) == 64
    assert "for each training patient" in (run / "privacy.txt").read_text()
    card = (run / "MODEL_CARD.md").read_text()
    assert card.startswith("# Reconstruction of accelerated MRI: tuned")
    assert "- SSIM, public weights alone" in card
    assert "- NMSE:" in card
    assert {path.name for path in (results / "figures").iterdir()} == {"accuracy.svg"}

    # The same volumes as a user's own: one that takes another's place is read, and a folder that is gone is named.
    scenario, own = tiny(), fresh.root / "mine"
    shutil.copytree(volumes, own)
    of_folder = {"source": "folder", "folder": "mine", "real_patients": False, "one_record_per_patient": True}
    scenario["cohort"] |= of_folder | {"name": "own"}
    file, index = fresh.overlay(yaml.safe_dump(scenario)), "resources/own/index.csv"
    fresh.snakemake(index, configfile=file)
    assert fresh.would_run(index, configfile=file) == set()
    os.utime(next((own / "singlecoil_train").glob("*.h5")), (0, 0))
    assert fresh.would_run(index, configfile=file) == {"undersample"}
    shutil.rmtree(own)
    assert "cohort.folder: expected a folder, found none at mine" in fresh.snakemake(index, configfile=file, code=1)
