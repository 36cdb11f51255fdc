"""The workflow through a real Slurm: to its end, with a failing job, with jobs that the scheduler kills, packed."""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
import torch
from cluster.conftest import SLURM, run, said_by, started
from safetensors.torch import load_file

from zetadp.training.checkpoint import Checkpoint

RUN = "results/smoke/runs/complex/central/eps-8/seed-0"
CHECKPOINT = "results/smoke/checkpoints/complex-central-eps-8-seed-0.safetensors"
# Long enough to be killed in the middle.
LONG = ("--config", "arms={central: {rounds: 200}}", "training={checkpoint_seconds: 0.5}")


def test_slurm_ran_every_stage_that_is_not_local(through_slurm):
    assert {job["JobState"] for job in through_slurm.jobs.values()} == {"COMPLETED"}
    logs = through_slurm.checkout.root / "logs"
    logged = {path.relative_to(logs).parts[0].removesuffix(".log") for path in logs.rglob("*.log")}
    rules = set(re.findall(r"^ *rule (\w+):$", through_slurm.said.text, flags=re.MULTILINE))
    local = set(re.findall(r"^ *localrule (\w+):$", through_slurm.said.text, flags=re.MULTILINE))
    assert local == {"all", "assemble_cohort", "partition", "make_tables", "write_report"}
    assert rules == logged - local


def test_results_and_models_are_those_of_a_run_on_one_machine(through_slurm, finished):
    assert through_slurm.said.code == 0, through_slurm.said.text[-6000:]
    assert listed(through_slurm.checkout.root / "results") == listed(finished.root / "results")
    models = sorted(path.relative_to(finished.root) for path in finished.root.rglob("model.safetensors"))
    assert len(models) == 7
    for model in models:
        same_tensors(finished.root / model, through_slurm.checkout.root / model)


def test_small_jobs_are_packed_and_ask_for_what_running_in_turn_needs(through_slurm):
    kinds = through_slurm.said.submitted()
    counted = Counter(kinds.values())
    # Two shards by two stages; seven trainings in packs of four; seven jobs that evaluate, in packs of ten.
    assert (counted["kspace"], counted["training"], counted["evaluate"]) == (1, 2, 1)
    made = re.findall(r"^ *rule (\w+):$", through_slurm.said.text, flags=re.MULTILINE)
    packed = [rule for rule in made if rule in {"make_kspace", "whiten", "train_model", "evaluate"}]
    assert len(packed) == 2 * 2 + 7 + 7
    assert len(kinds) == len(made) - len(packed) + 4
    packs = [through_slurm.jobs[number] for number, kind in kinds.items() if kind == "training"]
    assert sorted(job["TimeLimit"] for job in packs) == ["1-12:00:00", "2-00:00:00"]
    for job in packs:
        assert (job["NumCPUs"], job["MinMemoryNode"], job["TresPerJob"]) == ("1", "8000M", "gres:gpu:1")


def test_a_failing_job_is_reported_with_its_log(cluster, copy):
    volume = sorted((copy.root / "resources/phantom-smoke/Task01_BrainTumour/imagesTs").glob("*.nii.gz"))[-1]
    volume.write_bytes(volume.read_bytes()[:-200])
    target = "resources/phantom-smoke/slices/shard-01.h5"
    other = copy.root / "resources/phantom-smoke/slices/shard-00.h5"
    kept = other.read_bytes()
    (copy.root / target).unlink()
    said = run(copy, target, *SLURM, "--retries", "1", environment=cluster.environment)
    assert said.code == 1
    numbers = list(said.submitted())
    assert len(numbers) == 2
    assert {cluster.jobs()[number]["JobState"] for number in numbers} == {"FAILED"}
    assert "SLURM status is: 'FAILED'" in said.text
    log = copy.root / "logs/slice_volumes/01.log"
    assert "truncated" in log.read_text()
    # The log is named, and its words are shown.
    assert "logs/slice_volumes/01.log" in said.text
    assert f"{volume.name}" in said.text
    assert "Traceback (most recent call last)" not in log.read_text()
    assert not (copy.root / target).exists()
    assert other.read_bytes() == kept


def test_a_killed_training_goes_on_to_the_same_model(cluster, copy, uninterrupted):
    """A lost node is Slurm's own: it starts the job again, which then does what it does here."""
    with started(copy, f"{RUN}/model.safetensors", *SLURM, *LONG, environment=cluster.environment) as process:
        while not rounds_kept(copy.root / CHECKPOINT):
            assert process.poll() is None, process.communicate()[0][-6000:]
            time.sleep(0.1)
        (number,) = cluster.known()
        cluster.ask("scancel", number)
        said = said_by(process)
    assert said.code == 0, said.text[-6000:]

    trained = [number for number, kind in said.submitted().items() if kind == "training"]
    # Snakemake submitted it again.
    assert [cluster.jobs()[number]["JobState"] for number in trained] == ["CANCELLED", "COMPLETED"]
    log = (copy.root / "logs/train_model/complex-central-eps-8-seed-0.log").read_text()
    resumed = re.search(r"continuing after round (\d+) of an interrupted run", log)
    assert 0 < int(resumed[1]) < 200
    same_tensors(copy.root / RUN / "model.safetensors", uninterrupted.root / RUN / "model.safetensors")
    histories = [pd.read_csv(each.root / RUN / "history.csv") for each in (copy, uninterrupted)]
    pd.testing.assert_frame_equal(*[history.drop(columns="seconds") for history in histories])


def listed(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}


def rounds_kept(checkpoint: Path) -> int:
    """Return after which round a training would go on."""
    return Checkpoint.load(checkpoint, torch.device("cpu")).round if checkpoint.exists() else 0


def same_tensors(one: Path, other: Path) -> None:
    first, second = load_file(one), load_file(other)
    assert first.keys() == second.keys()
    assert len(first) > 0
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), f"{name} of {one} and {other}"


@pytest.fixture(scope="module")
def uninterrupted(finished, tmp_path_factory):
    """Return a copy in which the same long training ran on this machine, undisturbed."""
    there = finished.copied_to(tmp_path_factory.mktemp("long") / "copy")
    there.snakemake(f"{RUN}/model.safetensors", *LONG)
    return there
