"""Stages called as functions, without Snakemake."""

from __future__ import annotations

import json
import runpy
import time
from dataclasses import asdict, replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from decathlon_builder import write_tiny_task
from ledger_builder import index, record

from zetadp.account.declaration import Declaration
from zetadp.account.ledger import Ledger
from zetadp.account.statement import account_run
from zetadp.accounting import composition
from zetadp.accounting.events import Event
from zetadp.accounting.kinds import NoisySum
from zetadp.audit.membership import RATES
from zetadp.audit.settings import MembershipSettings
from zetadp.base.epsilon import Target
from zetadp.base.runfolder import RunFolder, RunName
from zetadp.base.storage import Items, write_json
from zetadp.base.tensors import save_tensors
from zetadp.base.validation import UserError
from zetadp.base.workflow import typed
from zetadp.mri.decathlon import AXES
from zetadp.mri.index import index_cohort
from zetadp.mri.kspace import to_kspace, whiten
from zetadp.mri.nifti import Volume
from zetadp.nn.models import NetworkSettings
from zetadp.phantom.cohort import assemble, write_shard
from zetadp.phantom.public import simulate_public_patient
from zetadp.training.plan import NodeConstants, Plan
from zetadp.training.progress import announced_tick
from zetadp.training.settings import OptimiserSettings, Performance, TrainingSettings

SCRIPTS = Path(__file__).parents[2] / "scripts"


def stage(name: str, **arguments: object) -> None:
    """Call the ``main`` of a script."""
    main = runpy.run_path(str(SCRIPTS / f"{name}.py"))["main"]
    main(**typed(main, arguments))


# The ledger of an experiment


DECLARED = Declaration(cohort_unit="patient", delta=1e-3, noise="seeded", training={"rounds": 5})


def statement(path: Path, *sources: str) -> dict:
    """Return the statement of a ledger with one more attempt for each source of noise: 10 of 40 patients are drawn."""
    with Ledger(path) as ledger:
        for source in sources:
            ledger.start(replace(DECLARED, noise=source, run={"epsilon": "8"}))
            for number in range(5):
                nodes = ("node-01", "node-02")
                ledger.record([Event(node, number, 40, 10.0, 1.0, NoisySum(0.25, 2.0)) for node in nodes])
        save_tensors(path.with_suffix(".safetensors"), {}, {"ledger_head": ledger.head})
    return account_run(path, path.with_suffix(".safetensors"), name="complex federated eps-8 seed-3")


def test_a_statement_does_not_hold_where_an_earlier_attempt_was_seeded(tmp_path):
    """What the seeded attempt released about the same patients is hidden by nothing."""
    said = statement(tmp_path / "run.jsonl", "seeded", "os")
    assert said["guarantee"] == "simulated"
    assert said["earlier_attempts"]["seeded"] == 1
    assert "came from a seed, which protects nobody" in said.text
    exact = statement(tmp_path / "other.jsonl", "os", "os")
    assert (exact["guarantee"], exact["earlier_attempts"]["seeded"]) == ("holds", 0)


def test_the_total_adds_node_by_node_only_where_nodes_hold_the_same_patients(tmp_path):
    """Another seed of the partition moves patients; one of them can be in the smallest node twice, under two names."""
    own = tmp_path / "ledgers/own"  # not tmp_path itself, beside which the accounts of other tests lie
    own.mkdir(parents=True)
    for name, seed in (("first", 0), ("second", 1)):
        with Ledger(own / f"{name}.jsonl") as ledger:
            ledger.start(replace(DECLARED, partition={"seed": seed}))
            for number in range(5):
                small = Event("node-01", number, 20, 10.0, 1.0, NoisySum(0.5, 2.0))
                ledger.record([small, Event("node-02", number, 40, 10.0, 1.0, NoisySum(0.25, 2.0))])
    paths = {"total": tmp_path / "total.json", "text": tmp_path / "total.txt", "table": index(tmp_path / "index.csv")}
    stage("account_total", ledgers=[], **paths, ledger_folder=str(own))
    nodes = json.loads(paths["total"].read_text())["private_rows"]["nodes"]
    expected = composition.epsilon_any_time({NoisySum(0.5, 2.0): 5, NoisySum(0.25, 2.0): 5}, 1e-3)
    assert nodes["node-02"] == pytest.approx(expected, rel=1e-12)
    assert nodes["node-01"] == pytest.approx(composition.epsilon_any_time({NoisySum(0.5, 2.0): 10}, 1e-3), rel=1e-12)


# Volumes that are not those they should be


def test_a_volume_that_changed_after_it_was_indexed_is_not_cut(tmp_path):
    root = write_tiny_task(tmp_path / "task", 3, 2, shape=(8, 8, 4))
    table = tmp_path / "index.csv"
    index_cohort(root, train_patients=3, test_patients=2, slices=2).to_csv(table, index=False)
    cut = {"dataset": root / "dataset.json", "table": table, "shards": 2, "slice_count": 2, "spacing": 1.0, "size": 4}
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


def test_slices_come_from_the_bytes_whose_hash_was_compared(tmp_path, monkeypatch):
    """A file that changes while it is decompressed gives the slices of the content that was indexed."""
    root = write_tiny_task(tmp_path / "task", 3, 2, shape=(8, 8, 4))
    table, output = tmp_path / "index.csv", tmp_path / "00.h5"
    index_cohort(root, train_patients=3, test_patients=2, slices=2).to_csv(table, index=False)
    cut = {"dataset": root / "dataset.json", "table": table, "shards": 1, "slice_count": 2, "spacing": 1.0, "size": 4}
    stage("slice_volumes", **cut, shard="0", slices=output)
    expected = Items.read(output, ("values",)).arrays["values"]
    decompress = Volume.decompress

    def replaced(volume: Volume, stored: bytes) -> bytes:
        volume.path.write_bytes(b"another content")
        return decompress(volume, stored)

    monkeypatch.setattr(Volume, "decompress", replaced)
    stage("slice_volumes", **cut, shard="0", slices=output)
    np.testing.assert_array_equal(Items.read(output, ("values",)).arrays["values"], expected)


def test_simulated_volumes_that_another_experiment_has_overwritten_are_refused(tmp_path):
    """With another number of shards, some receipts of the first experiment outlive the second."""
    task = tmp_path / "Task01_BrainTumour"
    settings, sizes = {"grid": [12, 12, 8], "scanners": 1}, {"train": 2, "test": 2}

    def simulate(seed: int, shards: int, *numbers: int) -> None:
        for number in numbers:
            where = {"receipt": tmp_path / f"shard-0{number}.json", "folder": str(task)}
            write_shard(**where, shard=f"0{number}", shards=shards, settings=settings | {"seed": seed}, sizes=sizes)

    def indexed() -> None:
        receipts = [tmp_path / f"shard-0{number}.json" for number in range(4)]
        assemble(receipts=receipts, dataset=task / "dataset.json", settings=settings | {"seed": 1}, sizes=sizes)
        declared = {"train_patients": 2, "test_patients": 2, "slices": 2, "spacing": 1.0, "patient_key": None}
        files = {"dataset": task / "dataset.json", "receipts": receipts, "table": tmp_path / "index.csv"}
        stage("index_cohort", **files, **declared, threads=1)

    simulate(1, 4, 0, 1, 2, 3)
    indexed()
    simulate(2, 2, 0, 1)
    simulate(1, 4, 0, 1)  # these receipts are new, and Snakemake sees that they are another experiment's
    (tmp_path / "index.csv").unlink()
    with pytest.raises(UserError, match=r"found others in 2 shard.*Delete .*shard-02\.json .*shard-03\.json"):
        indexed()
    assert not (tmp_path / "index.csv").exists()
    simulate(1, 4, 2, 3)
    indexed()


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


def plan_of(size: int, expected: float) -> Plan:
    """Return a plan of two nodes, without its noise."""
    training = TrainingSettings(rounds=3, noise="os", optimiser=OptimiserSettings(1e-3))
    nodes = tuple(NodeConstants(f"node-0{number}", size, expected) for number in (1, 2))
    task = {"name": "brain_sequences", "slices": 2, "size": 8, "decision": "image"}
    run = RunName("small", "federated", Target(8), 0)
    return Plan(run, NetworkSettings("linear"), training, nodes, cohort="test", task=task)


def test_a_run_says_at_its_start_when_it_may_end(caplog):
    caplog.set_level("INFO")
    plan = plan_of(4, 2)
    assert announced_tick(plan, 600) == 600
    assert time.strftime("%H:%M", time.localtime(time.time() + 600)) in caplog.text
    assert "privacy.finish_seconds" in caplog.text
    assert announced_tick(plan, 0) == 0


def test_a_run_in_which_everybody_takes_part_hides_no_draw_and_waits_for_seconds(caplog):
    caplog.set_level("INFO")
    assert announced_tick(plan_of(4, 4), 600) == 5
    assert announced_tick(plan_of(4, 4), 0) == 0
    assert not caplog.text


def train(tmp_path: Path, cohort: dict, plan: Plan, *, finish_seconds: float = 0) -> tuple[RunFolder, Path]:
    """Train the model of a plan; return the folder of its run and its ledger."""
    write_json(tmp_path / "noise.json", {"noise_multiplier": 1.0, "found_for": plan.for_calibration().digest})
    run, ledger = RunFolder(tmp_path / "run"), tmp_path / "ledgers/live.jsonl"
    paths = {"folder": run.path, "ledger": ledger, "checkpoint": run.checkpoint, "processes": tmp_path / "processes"}
    stage(
        "train_model",
        **cohort,
        table=index(tmp_path / "index.csv", "a", "b"),
        noise=[tmp_path / "noise.json"],
        backbone=[],
        plan=plan.to_json(),
        performance=asdict(Performance()),
        device="cpu",
        paths={name: str(path) for name, path in paths.items()},
        limits={"cap": None, "series": None, "finish_seconds": finish_seconds},
    )
    return run, ledger


def test_no_time_tells_how_long_real_patients_were_trained_on(tmp_path, cohort):
    """Outputs, ledger and register bear the time of the tick on which the training ends."""
    tick = 2
    begun = time.time()
    run, ledger = train(tmp_path, cohort, plan_of(2, 1.0), finish_seconds=tick)
    for path in (run.model, run.history, run.ledger, run.plan, ledger, tmp_path / "ledgers/register"):
        assert path.stat().st_mtime - begun >= tick - 0.1, path
    assert not run.checkpoint.exists()


def test_a_unit_that_earlier_runs_lack_is_refused_before_training(tmp_path, cohort):
    record(tmp_path / "ledgers/earlier.jsonl", unit="record")
    with pytest.raises(UserError, match=r"record \(earlier.*\) and patient .*cohort\.unit"):
        train(tmp_path, cohort, plan_of(2, 1.0))
    assert not (tmp_path / "ledgers/live.jsonl").exists()


# Public patients, and attacks on finished models


def test_shards_hold_every_public_patient_once(tmp_path):
    settings = {"seed": 3, "patients": 5}
    how = {"shards": 2, "settings": settings, "anatomy": "atlas", "slice_count": 4, "size": 16}
    for shard in ("00", "01"):
        stage("simulate_public", images=tmp_path / f"{shard}.h5", shard=shard, **how)
    shards = [Items.read(tmp_path / f"{shard}.h5", ("values",)) for shard in ("00", "01")]
    assert [name for shard in shards for name in shard.names["record"]] == [f"public-{n:04d}" for n in range(5)]
    values = np.concatenate([shard.arrays["values"] for shard in shards])
    assert np.array_equal(values, [simulate_public_patient(3, number, 4, 16) for number in range(5)])
    for shard in shards:
        assert shard.provenance["simulated"] == {**settings, "anatomy": "atlas"}


def test_outputs_of_an_attack_are_written_before_the_stage_fails_and_copies_stay(tmp_path):
    # So few trials that no arm can leave the region: the attack proves nothing.
    few = asdict(MembershipSettings(patients=2, rounds=1, overfitted=1, shadows=20, trainings=16))
    paths = {"table": tmp_path / "membership.csv", "picture": tmp_path / "membership.svg"}
    with pytest.raises(UserError, match=r"proves nothing.*refuted-membership\.csv"):
        stage("audit_membership", **paths, settings=few, delta=1e-3)
    table = pd.read_csv(tmp_path / "membership.csv")
    assert list(table["arm"].unique()) == ["private, epsilon 8", "clipped, no noise", "unclipped, overfitted"]
    assert (table.groupby("arm").size() == len(RATES)).all()
    assert (table["trials_in"] + table["trials_out"] == few["trainings"]).all()
    assert table[["fpr", "tpr", "lower", "upper", "allowed_reader", "allowed_server"]].notna().all(axis=None)
    # The server sees more than a reader, and is allowed more.
    assert (table["allowed_server"] >= table["allowed_reader"]).all()
    assert not table[["leaves_reader", "leaves_server"]].any(axis=None)
    for name in ("membership.csv", "membership.svg"):
        assert (tmp_path / f"refuted-{name}").read_bytes() == (tmp_path / name).read_bytes()
    assert ElementTree.parse(tmp_path / "membership.svg").getroot().tag.endswith("svg")
