"""Cohorts that users bring, and what they read when something is wrong."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from checkouts import EVERY_JOB
from commanded import ended
from decathlon_builder import real_sample, volume, write_tiny_task, write_volume

from zetadp.account.ledger import Ledger
from zetadp.base.storage import Items
from zetadp.mri.decathlon import SEQUENCES
from zetadp.mri.volumes import read_centre_slices

pytestmark = pytest.mark.slow

SCENARIO = """
name: mine
cohort:
  name: mine
  source: folder
  folder: {folder}
  real_patients: {real}
  unit: record
  train_patients: {train}
  test_patients: {test}
privacy:
  noise: {noise}
task: {{settings: {{slices: {count}}}}}
shards: 2
partition:
  nodes: 1
  validation_patients: 0
arms:
  federated: {{expected_patients: 1, rounds: 2}}
  central: {{expected_patients: 1, rounds: 2}}
runs:
  - {{networks: [linear], arms: [federated], epsilons: [8], seeds: [0]}}
"""
TRACE = "Traceback (most recent call last)"


def test_a_wrong_configuration_ends_in_one_message(finished):
    said = finished.snakemake("--dry-run", "--config", "partition={nodez: 3, nodes: 13}", code=1)
    assert said.count("in the configuration:") == 1
    assert "Unknown key 'nodez' at partition." in said
    assert TRACE not in said


def test_what_snakemake_reads_itself_holds_every_key_once(fresh):
    """Snakemake takes the last of two equal keys without a word."""
    twice = fresh.overlay("privacy: {cap: 0.5}\nprivacy: {noise: seeded}\n")
    assert "Expected 'privacy' once" in fresh.snakemake("--dry-run", configfile=twice, code=1)
    words = ("--dry-run", "--config", "privacy={cap: 0.5, cap: 8}")
    assert "Expected 'cap' once, found it twice in line 1" in fresh.snakemake(*words, code=1)
    profile = fresh.root / "profiles/mine/profile.yaml"
    profile.parent.mkdir()
    profile.write_text("set-resources:\n  train: {mem_mb: 1000, mem_mb: 8}\n")
    for option in ("--workflow-profile=mine", "--profile=profiles/mine"):
        said = fresh.snakemake("--dry-run", option, code=1)
        assert f"in {profile}:\n1. Expected 'mem_mb' once" in said
        assert TRACE not in said


def test_a_network_of_a_domain_that_the_task_does_not_make_is_named(fresh):
    scenario = yaml.safe_load((fresh.root / "papers/complex_dp/scenarios/phase_mnist.yaml").read_text())
    scenario["runs"] = [{"networks": ["linear"], "arms": ["central"], "epsilons": ["inf"], "seeds": [0]}]
    said = fresh.snakemake("--dry-run", configfile=fresh.overlay(yaml.safe_dump(scenario)), code=1)
    assert "networks.linear.domain: expected one of complex, features for task phase_mnist; found kspace." in said


def images(files):
    """Return the images of each record of some files."""
    shards = [Items.read(file, ("values",)) for file in files]
    return {name: own for each in shards for name, own in zip(each.names["record"], each.arrays["values"], strict=True)}


def test_a_folder_goes_to_kspace_and_a_damaged_volume_stops_what_needs_it(fresh):
    task = write_tiny_task(fresh.root / "brains", 3, 2)
    scenario = fresh.overlay(SCENARIO.format(folder="brains", real="false", noise="seeded", train=3, test=2, count=4))
    fresh.snakemake("kspace", configfile=scenario)
    whitened = [fresh.root / f"resources/mine/whitened/shard-0{shard}.h5" for shard in range(2)]
    found = images(whitened)
    assert list(found) == [f"BRATS_00{number}" for number in range(1, 6)]
    for values in found.values():
        assert values.shape == (4, 4, 32, 32)
        assert values.dtype == "complex64"
    roles = pd.read_csv(fresh.root / "resources/mine/partitions/mine.csv")
    assert list(roles["role"]) == ["train"] * 3 + ["test"] * 2

    # One volume is damaged after the cohort was indexed, another is lost: nothing is cut of such a cohort.
    damaged = task / "imagesTs/BRATS_005.nii.gz"
    damaged.write_bytes(damaged.read_bytes()[:-2000])
    (task / "imagesTr/BRATS_002.nii.gz").unlink()
    kept = [path.read_bytes() for path in whitened]
    said = fresh.snakemake("kspace", "--keep-going", configfile=scenario, code=1)
    assert "Found 2 problems in the cohort brains" in said
    assert "Expected the volume brains/imagesTr/BRATS_002.nii.gz, found no such file" in said
    assert "brains/imagesTs/BRATS_005.nii.gz" in said
    assert TRACE not in said
    assert [path.read_bytes() for path in whitened] == kept
    assert not (fresh.root / "resources/mine/index.csv").exists()


def test_patients_with_two_to_four_sequences_share_a_cohort(fresh, capsys):
    """A whole experiment: private training of a head on features of a study, evaluation, and a prediction."""
    task, sequences = fresh.root / "brains", ("FLAIR", "T1w", "T1gd")
    write_tiny_task(task, 3, 2, channels=sequences, shape=(20, 24, 9))
    two, four = (volume((20, 24, 9), channels, np.random.default_rng(channels)) for channels in (2, 4))
    write_volume(task / "imagesTr/BRATS_002.nii.gz", two, "LPS")
    write_volume(task / "imagesTs/BRATS_004.nii.gz", four, "LPS")
    content = json.loads((task / "dataset.json").read_text())
    content["training"][1] = {"image": content["training"][1]["image"], "modality": {"0": "T2w", "1": "FLAIR"}}
    content["test"][0] = {"image": content["test"][0], "modality": dict(zip("0123", SEQUENCES, strict=True))}
    (task / "dataset.json").write_text(json.dumps(content))
    scenario = yaml.safe_load(SCENARIO.format(folder="brains", real="false", noise="seeded", train=3, test=2, count=4))
    scenario["networks"] = {"head": {"training": {"images_per_patient": 16, "rounds": 2}}}
    scenario["runs"][0]["networks"] = ["head", "linear"]
    runs = [f"results/mine/runs/{name}/federated/eps-8/seed-0" for name in ("head", "linear")]
    figures = [f"results/mine/figures/{name}.svg" for name in ("patient", "accuracy")]
    others = ("resources/mine/duplicates/mine.csv", "results/mine/tables/table1.md", *figures)
    targets = [*(f"{run}/metrics.json" for run in runs), *others]
    fresh.snakemake(*targets, configfile=fresh.overlay(yaml.safe_dump(scenario)))
    for name in ("head", "linear"):
        run = fresh.root / f"results/mine/runs/{name}/federated/eps-8/seed-0"
        predictions = pd.read_csv(run / "predictions.csv")
        counts = predictions.groupby("patient")["sequence"].value_counts().unstack(fill_value=0)
        assert counts.loc["BRATS_004", list(SEQUENCES)].tolist() == [4] * 4
        assert counts.loc["BRATS_005", list(SEQUENCES)].tolist() == [4, 4, 4, 0]
        metrics = json.loads((run / "metrics.json").read_text())
        assert metrics["images"] == 28
        assert 0 <= metrics["public_start" if name == "head" else "accuracy"] <= 1
        assert "results on a simulation, not on patients" in (run / "MODEL_CARD.md").read_text()
    assert "On a simulated cohort" in (fresh.root / "results/mine/tables/table1.md").read_text()
    assert ["simulated cohort mine" in (fresh.root / figure).read_text() for figure in figures] == [True, True]
    model = fresh.root / "results/mine/runs/head/federated/eps-8/seed-0/model.safetensors"
    code, out, _ = ended(capsys, "predict", model, task / "imagesTs/BRATS_005.nii.gz", "--anyway")
    assert (code, len(out.splitlines())) == (0, 4)


def test_a_replaced_volume_is_cut_anew_and_no_other_changes(fresh, cache):
    task = write_tiny_task(fresh.root / "brains", 3, 2)
    scenario = fresh.overlay(SCENARIO.format(folder="brains", real="false", noise="seeded", train=3, test=2, count=4))
    shards = [f"shard-0{number}.h5" for number in range(2)]
    targets = [f"resources/mine/whitened/{shard}" for shard in shards]

    def slices():
        return images([fresh.root / "resources/mine/slices" / shard for shard in shards])

    fresh.snakemake(*targets, "--cache", configfile=scenario)
    before, kept = slices(), {path: path.read_bytes() for path in cache.iterdir()}
    for name, options in (("imagesTs/BRATS_004.nii.gz", ["--cache"]), ("imagesTr/BRATS_002.nii.gz", [])):
        write_volume(task / name, volume((12, 14, 9), 4, np.random.default_rng(int(name[-8]))), "LPS")
        # As a copy that keeps its time: older than all that was made of the volume before it.
        os.utime(task / name, (0, 0))
        said = fresh.snakemake(*targets, *options, EVERY_JOB, configfile=scenario)
        rules = set(re.findall(r"^ *(?:local)?rule (\w+):$", said, flags=re.MULTILINE))
        assert rules == {"index_cohort", "slice_volumes", "make_kspace", "whiten"}
        after, record = slices(), Path(name).name.removesuffix(".nii.gz")
        assert [each for each in after if not np.array_equal(before[each], after[each])] == [record]
        assert np.array_equal(after[record], read_centre_slices(task / name, SEQUENCES, 4))
        files = {key: value for target in targets for key, value in provenance(fresh.root / target).items()}
        assert files[record] == hashlib.sha256((task / name).read_bytes()).hexdigest()
        before = after
    assert {path: path.read_bytes() for path in kept} == kept
    assert fresh.would_run(*targets, configfile=scenario) == set()


def provenance(path):
    return Items.read(path, ("values",)).provenance["files"]


def test_real_patients_go_to_kspace(fresh):
    scenario = fresh.overlay(SCENARIO.format(folder=real_sample(), real="true", noise="os", train=2, test=1, count=20))
    fresh.snakemake("kspace", configfile=scenario)
    whitened = images([fresh.root / f"resources/mine/whitened/shard-0{shard}.h5" for shard in range(2)])
    for values in whitened.values():
        assert values.shape == (4, 20, 32, 32)
    assert list(whitened) == ["BRATS_001", "BRATS_002", "BRATS_003"]
    duplicates = pd.read_csv(fresh.root / "resources/mine/duplicates/mine.csv")
    assert duplicates.empty


REAL = """
name: mine
cohort:
  {name: mine, source: folder, folder: brains, unit: patient, patient_key: key.tsv, train_patients: 4, test_patients: 2}
privacy: {noise: os}
task: {settings: {slices: 4}}
shards: 2
partition: {nodes: 1, validation_patients: 0}
runs: [{networks: [head], arms: [federated], epsilons: [8], seeds: [0]}]
"""
RUN = "results/mine/runs/head/federated/eps-8/seed-0"


def hospital(checkout):
    """Bring six patients with seven scans, of whom a test patient has two; return the scenario of one training."""
    write_tiny_task(checkout.root / "brains", 4, 3)
    rows = [f"images{'Tr' if n < 5 else 'Ts'}/BRATS_00{n}.nii.gz\tpatient {min(n, 6)}" for n in range(1, 8)]
    (checkout.root / "key.tsv").write_text("\n".join(["file\tpatient", *rows, ""]))
    return checkout.overlay(REAL)


def test_nothing_is_spent_before_all_that_follows_was_tried(fresh):
    scenario, ledgers = hospital(fresh), fresh.root / "ledgers/mine"
    said = fresh.snakemake("--dry-run", configfile=scenario)
    assert "on real patients (cohort mine): at most epsilon 8 at delta 0.001" in said
    fresh.edit("src/zetadp/report/templates/card.md.j2", "## Limits", "## {{ 1 // 0 }}")
    said = fresh.snakemake("tables", EVERY_JOB, configfile=scenario, code=1)
    assert "Error in rule rehearse" in said
    assert "rule train_model:" not in said
    assert not (ledgers / "register").exists()
    assert not list((fresh.root / "results/mine").rglob("model.safetensors"))


def test_a_model_is_not_evaluated_as_that_of_data_that_changed_since(fresh):
    scenario = hospital(fresh)
    said = fresh.snakemake("tables", EVERY_JOB, configfile=scenario)
    assert "Expect nothing from this training" in said.split("rule train_model:")[0]
    another = ["--dry-run", "--config", "runs=[{networks: [head], arms: [federated], epsilons: [1], seeds: [0]}]"]
    assert "1 new run (mine-head-federated-eps-1-seed-0)" in fresh.snakemake(*another, configfile=scenario, code=1)
    table = pd.read_csv(fresh.root / RUN / "predictions.csv")
    assert table.groupby("patient")["record"].nunique().to_dict() == {"patient 5": 1, "patient 6": 2}
    write_volume(
        fresh.root / "brains/imagesTr/BRATS_002.nii.gz", volume((12, 14, 9), 4, np.random.default_rng(9)), "LPS"
    )
    assert "has 1 attempt" in fresh.snakemake("tables", configfile=scenario, code=1)
    for _ in range(2):
        said = fresh.snakemake("tables", EVERY_JOB, configfile=scenario, code=1)
        assert f"Expected the data that {RUN}/model.safetensors was trained on, found others" in said
    ledger = fresh.root / "ledgers/mine/mine-head-federated-eps-8-seed-0.jsonl"
    with Ledger(ledger) as opened:
        opened.permit()
    fresh.snakemake("tables", "--forcerun", f"{RUN}/model.safetensors", configfile=scenario)
    assert json.loads((fresh.root / RUN / "privacy.json").read_text())["earlier_attempts"]["number"] == 1
