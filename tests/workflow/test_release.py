"""Rows that nodes release, from a configuration to the file that others train on."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest
from checkouts import SMOKE

from zetadp.cli.commands import main

pytestmark = pytest.mark.slow

ROWS = """
networks:
  rows:
    family: head
    domain: features
    components: 2
    start: public
    training: {estimator: mixed_rows, images_per_patient: 16}
runs:
  - networks: [rows]
    arms: [federated]
    epsilons: [8]
    seeds: [0]
"""


def test_rows_go_from_a_configuration_to_a_file_with_its_guarantee(copy, capsys):
    scenario = copy.root / SMOKE
    text, _, _ = scenario.read_text().partition("\nruns:")
    networks, runs = ROWS.split("runs:")
    text = text.replace("\nnetworks:", networks.rstrip())
    scenario.write_text(f"{text}\nruns:{runs}")
    run = "results/smoke/runs/rows/federated/eps-8/seed-0"
    copy.snakemake(f"{run}/release.h5", f"{run}/metrics.json")
    plan = json.loads((copy.root / run / "plan.json").read_text())
    with h5py.File(copy.root / run / "release.h5") as file:
        features, labels, classes = (file[name][:] for name in ("features", "labels", "classes"))
    # Three nodes of four patients release four rows each, and every row has the features of all four sequences.
    assert plan["training"]["mixing"]["rows"] == 4
    assert features.shape == (3 * 4 * 4, 2)
    assert (labels == np.tile(np.eye(4), (12, 1))).all()
    assert [name.decode() for name in classes] == ["FLAIR", "T1w", "T1gd", "T2w"]
    statement = json.loads((copy.root / run / "privacy.json").read_text())
    assert 0 < statement["epsilon"] <= 8
    assert statement["nodes"]["node-01"]["mechanisms"][0]["releases"] == 4
    assert json.loads((copy.root / run / "metrics.json").read_text())["accuracy"] > 0
    assert main(["statement", str(copy.root / run / "release.h5")]) == 0
    assert capsys.readouterr().out == (copy.root / run / "privacy.txt").read_text()
