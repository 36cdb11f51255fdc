"""A disk that is full and folders that cannot be written: one message, nothing half-written, and on once there is room.

The kernel refuses the writes, so that every writer is tried as it is: Python's, HDF5's, safetensors'. See `points` for
how a disk is made full without a disk.
"""

from __future__ import annotations

import copy
import random
import re
from collections import Counter

import pytest
import torch
from crash.processes import run
from crash.reference import STAGES, files_of
from crash.stages import call

from zetadp.account.attempts import read_ledger
from zetadp.training.checkpoint import Checkpoint

pytestmark = pytest.mark.slow


def check_one_message(outcome):
    """Check that the job failed in the way that users can read; return the message."""
    assert outcome.status == 1, outcome.log
    assert "Traceback" not in outcome.log
    lines = [line for line in outcome.log.splitlines() if not re.match(r"\d\d:\d\d:\d\d INFO ", line)]
    assert len(lines) == 1, outcome.log
    assert re.match(r"\d\d:\d\d:\d\d ERROR Cannot write ", lines[0])
    return lines[0]


def check_goes_on(reference, script, place):
    """Check that the stage ends as if nothing had happened, once it can."""
    done = run(call, reference.stages[script].call(), cwd=place)
    assert done.status == 0, done.log
    reference.check_finished(script, place)


@pytest.mark.parametrize("script", STAGES)
def test_a_full_disk_ends_a_stage_in_one_message(reference, tmp_path, script):
    place = reference.prepare(script, tmp_path / "place")
    largest = max((reference.root / name).stat().st_size for name in reference.made[script])
    stage = reference.stages[script]
    full = run(call, stage.call(), cwd=place, full_at="start", room=largest // 2)
    said = check_one_message(full)
    checkpoint = {stage["paths"]["checkpoint"]} if "paths" in stage.arguments["dict"] else set()
    assert any(name in said for name in reference.made[script] | checkpoint)
    assert "run again" in said
    reference.check_whole(script, place)
    assert not [name for name in files_of(place) if ".partial" in name]
    check_goes_on(reference, script, place)


def test_a_log_on_the_full_disk_adds_no_traceback(reference, tmp_path):
    place = reference.prepare("partition", tmp_path / "place")
    full = run(call, reference.stages["partition"].call(log="logs/partition.log"), cwd=place, full_at="start")
    assert "partitions/tiny.csv" in check_one_message(full)


def test_all_that_training_writes_may_be_read_by_the_same_people(reference):
    modes = {name: (reference.root / name).stat().st_mode for name in reference.made["train_model"]}
    assert modes.pop("ledgers/tiny/secret") & 0o777 == 0o600  # but the secret by its owner alone
    assert len(set(modes.values())) == 1, modes


SAMPLE = 12


@pytest.mark.parametrize(("noise", "room"), [("seeded", 0), ("seeded", 3000), ("os", 3000)])
def test_a_disk_that_fills_up_during_training_costs_neither_ledger_nor_checkpoint(reference, tmp_path, noise, room):
    """It fills up before a write of the ledger, of a message, of the checkpoint, and of the final outputs."""
    stage = reference.stages["train_model"]
    plan = copy.deepcopy(stage.arguments["dict"]["plan"])
    plan["dict"]["training"]["dict"]["noise"] = noise
    request, ledger, checkpoint = stage.call(plan=plan), stage["paths"]["ledger"], stage["paths"]["checkpoint"]
    place = reference.prepare("train_model", tmp_path / "dry")
    points = run(call, request, cwd=place, points=True).points
    everything = Counter(read_ledger(place / ledger)[-1].releases())
    # Reading and cleaning need no room, and what comes after the last file cannot fail.
    candidates = [point for point in points if re.match("(before|torn):(write|fsync|replace)#", point)]
    chosen = random.Random(f"{noise} {room}").sample(candidates[:-6], SAMPLE - 6) + candidates[-6:]
    failures = 0
    for number, point in enumerate(chosen):
        place = reference.prepare("train_model", tmp_path / str(number))
        full = run(call, request, cwd=place, full_at=point, room=room)
        if full.status:  # else nothing was left to write
            failures += 1
            check_one_message(full)
            check_kept(place / ledger, place / checkpoint)
            done = run(call, request, cwd=place)
            assert done.status == 0, done.log
        attempts = read_ledger(place / ledger)
        assert Counter(attempts[-1].releases()) >= everything
        assert len(attempts) == 1 or not attempts[0].events, "an attempt was given up"
        if noise == "seeded":
            reference.check_finished("train_model", place)
        assert files_of(place) == reference.found["train_model"] | reference.made["train_model"]
    assert failures >= SAMPLE / 2


def check_kept(ledger, checkpoint):
    """Check that what an interrupted training needs is there and fits together."""
    if ledger.exists() and checkpoint.exists():
        rounds = {event.round for event in read_ledger(ledger)[-1].events}
        assert rounds >= set(range(Checkpoint.load(checkpoint, torch.device("cpu")).round))
