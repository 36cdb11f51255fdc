"""Stages called as functions, without Snakemake."""

from __future__ import annotations

import json
import runpy
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
from decathlon_builder import write_tiny_task

from zetadp.base.storage import Items, write_json
from zetadp.base.tensors import save_tensors
from zetadp.base.validation import UserError
from zetadp.core.plan import NodeConstants, Plan, RunName
from zetadp.core.progress import announced_tick
from zetadp.core.settings import OptimiserSettings, Performance, TrainingSettings
from zetadp.mri.decathlon import AXES
from zetadp.mri.index import index_cohort
from zetadp.mri.kspace import to_kspace, whiten
from zetadp.nn.models import NetworkSettings
from zetadp.phantom.cohort import assemble, write_shard
from zetadp.privacy import accounting
from zetadp.privacy.events import Event
from zetadp.privacy.kinds import NoisySum
from zetadp.privacy.ledger import Ledger
from zetadp.privacy.statement import account_run, plain_text

if TYPE_CHECKING:
    from collections.abc import Sequence

SCRIPTS = Path(__file__).parents[2] / "scripts"


def stage(name: str, **arguments: object) -> None:
    """Call the ``main`` of a script."""
    runpy.run_path(str(SCRIPTS / f"{name}.py"))["main"](**arguments)


def read(path: Path) -> dict:
    return json.loads(path.read_text())


# The ledger of an experiment


DECLARED = {"unit": "patient", "delta": 1e-3, "noise": "seeded"}


def write_ledger(
    path: Path,
    *attempts: int,
    noise: float = 2.0,
    declared: int = 5,
    nodes: int = 2,
    source: str = "seeded",
    epsilon: str = "8",
) -> Path:
    """Write a ledger with so many rounds in each attempt: each node draws 10 of 40 patients."""
    header = DECLARED | {"noise": source, "training": {"rounds": declared}, "run": {"epsilon": epsilon}}
    with Ledger(path) as ledger:
        for rounds in attempts:
            ledger.start(header)
            for number in range(rounds):
                ledger.record(
                    [Event(f"node-0{node + 1}", number, 40, 10.0, 1.0, NoisySum(0.25, noise)) for node in range(nodes)]
                )
    return path


def account(folder: Path, ledger: Path, epsilon: str = "8") -> dict:
    model = folder / "model.safetensors"
    with Ledger(ledger) as opened:
        save_tensors(model, {}, {"ledger_head": opened.head})
    return account_of(folder, ledger, model, epsilon)


def account_of(folder: Path, ledger: Path, model: Path, epsilon: str = "8") -> dict:
    name = f"complex federated eps-{epsilon} seed-3"
    write_json(folder / "privacy.json", account_run(ledger, model, name=name))
    return read(folder / "privacy.json")


def account_total(folder: Path, sealed: Sequence[Path] = (), contents: Sequence[str] = ()) -> dict:
    paths = {"total": folder / "total.json", "text": folder / "total.txt", "table": write_index(folder, contents)}
    params = {"ledger_folder": str(folder), "others": ""}
    stage("account_total", ledgers=list(sealed), **paths, **params)
    return read(folder / "total.json")


def write_index(folder: Path, contents: Sequence[str]) -> Path:
    """Write what the account reads of a cohort's index: the training records, by the hashes of their files."""
    path = folder / "index.csv"
    pd.DataFrame({"part": ["train"] * len(contents), "sha256": list(contents)}).to_csv(path, index=False)
    return path


def test_a_statement_does_not_hold_where_an_earlier_attempt_was_seeded(tmp_path):
    """What the seeded attempt released about the same patients is hidden by nothing."""
    write_ledger(tmp_path / "run.jsonl", 5, source="seeded")
    said = account(tmp_path, write_ledger(tmp_path / "run.jsonl", 5, source="os"))
    assert said["guarantee"] == "simulated"
    assert said["earlier_attempts"]["seeded"] == 1
    assert "came from a seed, which protects nobody" in plain_text(said)
    exact = account(tmp_path, write_ledger(tmp_path / "other.jsonl", 5, 5, source="os"))
    assert (exact["guarantee"], exact["earlier_attempts"]["seeded"]) == ("holds", 0)


def test_the_total_adds_node_by_node_only_where_nodes_hold_the_same_patients(tmp_path):
    """Another seed of the partition moves patients; one of them can be in the smallest node twice, under two names."""
    for name, seed in (("first", 0), ("second", 1)):
        with Ledger(tmp_path / f"{name}.jsonl") as ledger:
            ledger.start(DECLARED | {"training": {"rounds": 5}, "partition": {"seed": seed}})
            for number in range(5):
                small = Event("node-01", number, 20, 10.0, 1.0, NoisySum(0.5, 2.0))
                ledger.record([small, Event("node-02", number, 40, 10.0, 1.0, NoisySum(0.25, 2.0))])
    nodes = account_total(tmp_path)["private_rows"]["nodes"]
    expected = accounting.epsilon_rdp({NoisySum(0.5, 2.0): 5, NoisySum(0.25, 2.0): 5}, 1e-3)
    assert nodes["node-02"] == pytest.approx(expected, rel=1e-12)
    assert nodes["node-01"] == pytest.approx(accounting.epsilon_rdp({NoisySum(0.5, 2.0): 10}, 1e-3), rel=1e-12)


# Volumes that are not those they should be


def test_a_volume_that_changed_after_it_was_indexed_is_not_cut(tmp_path):
    root = write_tiny_task(tmp_path / "task", 3, 2, shape=(8, 8, 4))
    table = tmp_path / "index.csv"
    index_cohort(root, train_patients=3, test_patients=2, slices=2).to_csv(table, index=False)
    cut = {"dataset": root / "dataset.json", "table": table, "shards": 2, "slice_count": 2, "size": 4}
    stage("slice_volumes", **cut, shard="00", slices=tmp_path / "00.h5")
    cut_out = Items.read(tmp_path / "00.h5", ("values",)).names["record"]
    assert cut_out.tolist() == ["BRATS_001", "BRATS_002", "BRATS_003"]
    # Whole and readable, but another one.
    other = write_tiny_task(tmp_path / "other", 3, 2, shape=(8, 8, 4), seed=1)
    changed = "imagesTs/BRATS_005.nii.gz"
    (root / changed).write_bytes((other / changed).read_bytes())
    with pytest.raises(UserError, match=r"BRATS_005.*found another content.*Delete .*index\.csv"):
        stage("slice_volumes", **cut, shard="01", slices=tmp_path / "01.h5")
    assert not (tmp_path / "01.h5").exists()


def test_simulated_volumes_that_another_experiment_has_overwritten_are_refused(tmp_path):
    """With another number of shards, some receipts of the first experiment outlive the second."""
    task = tmp_path / "Task01_BrainTumour"
    settings = {"train_patients": 2, "test_patients": 2, "grid": [12, 12, 4], "scanners": 1}

    def simulate(seed: int, shards: int, *numbers: int) -> None:
        for number in numbers:
            where = {"receipt": tmp_path / f"shard-0{number}.json", "folder": str(task)}
            write_shard(**where, shard=f"0{number}", shards=shards, settings=settings | {"seed": seed})

    def index() -> None:
        receipts = [tmp_path / f"shard-0{number}.json" for number in range(4)]
        assemble(receipts=receipts, dataset=task / "dataset.json", settings=settings | {"seed": 1})
        declared = {"train_patients": 2, "test_patients": 2, "slices": 2, "patient_key": None}
        files = {"dataset": task / "dataset.json", "receipts": receipts, "table": tmp_path / "index.csv"}
        stage("index_cohort", **files, **declared, threads=1)

    simulate(1, 4, 0, 1, 2, 3)
    index()
    simulate(2, 2, 0, 1)
    simulate(1, 4, 0, 1)  # these receipts are new, and Snakemake sees that they are another experiment's
    (tmp_path / "index.csv").unlink()
    with pytest.raises(UserError, match=r"found others in 2 shard.*Delete .*shard-02\.json .*shard-03\.json"):
        index()
    assert not (tmp_path / "index.csv").exists()
    simulate(1, 4, 2, 3)
    index()


# Calibration


def plan_json(
    sizes: Sequence[int], expected: Sequence[float], rounds: int, *, epsilon: str = "8", noise: str = "seeded", **more
) -> dict:
    """Return a plan without its noise, as rules pass it on."""
    names = ["central"] if more.get("threat") == "central" else [f"node-0{n + 1}" for n in range(len(sizes))]
    settings = {"family": "linear"} | more.pop("network", {})
    training = TrainingSettings(rounds=rounds, noise=noise, optimiser=OptimiserSettings(1e-3))
    nodes = tuple(map(NodeConstants, names, sizes, expected))
    run = RunName("small", more.pop("arm", "federated"), epsilon, 0)
    task = {"name": "brain_sequences", "slices": 2, "size": 8}
    return Plan(run, NetworkSettings(**settings), training, nodes, cohort="test", task=task, **more).to_json()


# Training and evaluation where no patient is watched


@pytest.fixture
def cohort(tmp_path):
    """Write the images and the partition of six patients; return their paths."""
    random = np.random.default_rng(0)
    names = tuple(f"BRATS_00{number}" for number in range(1, 7))
    images = random.standard_normal((6, 4, 2, 8, 8)).astype(np.float32)
    images += 3 * np.sin(np.arange(4)[:, None, None, None] * np.arange(8))
    Items({"values": whiten(to_kspace(images))}, pd.DataFrame({"record": names})).write(
        tmp_path / "whitened.h5", AXES, "1"
    )
    roles = ["train"] * 4 + ["test"] * 2
    nodes = ["node-01", "node-02"] * 2 + ["server"] * 2
    table = pd.DataFrame({"patient": names, "record": names, "role": roles, "node": nodes})
    table.to_csv(tmp_path / "partition.csv", index=False)
    return {"images": [tmp_path / "whitened.h5"], "partition": tmp_path / "partition.csv"}


def training(folder: Path, plan: dict, multiplier: float = 1.0, **more: object) -> dict:
    """Return the arguments of a training but its images."""
    write_json(folder / "noise.json", {"noise_multiplier": multiplier})
    outputs = {name: folder / f"{name}.x" for name in ("model", "history", "ledger", "agreed")}
    files = {"ledger_file": str(folder / "live.jsonl"), "checkpoint": str(folder / "checkpoint.safetensors")}
    inputs = {"noise": [folder / "noise.json"], "table": write_index(folder, ["a", "b"]), "backbone": []}
    how = {"performance": asdict(Performance()), "finish_seconds": 0, "cap": "none", "series": "none", "device": "cpu"}
    return {"plan": plan, **outputs, **files, **inputs, **how, **more}


@pytest.mark.parametrize(("expected", "longest"), [(2, 600), (4, 60)])
def test_a_run_says_at_its_start_when_it_may_end_and_soon_where_everybody_takes_part(expected, longest, caplog):
    caplog.set_level("INFO")
    plan = Plan.from_json(plan_json([4, 4], [expected, expected], 3, noise="os"))
    assert announced_tick(plan, 600) == longest
    assert time.strftime("%H:%M", time.localtime(time.time() + longest)) in caplog.text
    assert "privacy.finish_seconds" in caplog.text
    assert announced_tick(plan, 0) == 0


def test_no_time_tells_how_long_real_patients_were_trained_on(tmp_path, cohort):
    """Outputs, ledger and register bear the time of the tick on which the training ends."""
    tick = 2
    begun = time.time()
    plan = plan_json([2, 2], [1.0, 1.0], 3, noise="os")
    ledger = str(tmp_path / "ledgers/live.jsonl")
    stage("train_model", **cohort, **training(tmp_path, plan, finish_seconds=tick, ledger_file=ledger))
    files = [tmp_path / f"{name}.x" for name in ("model", "history", "ledger", "agreed")]
    for path in (*files, tmp_path / "ledgers/live.jsonl", tmp_path / "ledgers/register"):
        assert path.stat().st_mtime - begun >= tick - 0.1, path
    assert not (tmp_path / "checkpoint.safetensors").exists()
