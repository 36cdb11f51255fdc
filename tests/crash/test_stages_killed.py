"""SIGKILL at random moments of every stage: nothing half-written, and the next run makes what an undisturbed one does.

A killed process runs no handler: this is what a lack of memory, a time limit of the cluster and ``kill -9`` have in
common. The moments come from a fixed seed; how far a stage has come by then differs from machine to machine.
"""

from __future__ import annotations

import random
import shutil

import pytest
from checkouts import OF_OTHER_TASKS
from crash.stages import SCRIPTS, STAGES, call

pytestmark = pytest.mark.slow

KILLS = 20
ELSEWHERE = {"audit", "audit_membership", "train_federated", *OF_OTHER_TASKS}
"""Not killed here: minutes of attacks that keep nothing, with outputs written at the end as tables and figures are;
many processes, whose deaths `tests/federation` brings about; and stages of PhaseMNIST, which need MNIST's files and
write by the functions of the stages that are killed."""


def undisturbed(zygote, reference, script, folder):
    """Return the seconds that a stage takes, after a look whether it makes the same every time."""
    place = reference.prepare(script, folder)
    done = zygote.run(call, STAGES[script].call, cwd=place)
    assert done.status == 0, done.log
    reference.check_finished(script, place)
    return done.seconds


def test_every_script_is_killed_here():
    """The download has a file of its own, `test_fetch_killed`."""
    assert {*STAGES, "fetch_cohort"} == {path.stem for path in SCRIPTS.glob("*.py")} - ELSEWHERE


@pytest.mark.parametrize("script", STAGES)
def test_a_killed_stage_leaves_nothing_half_written_and_ends_the_same_when_run_again(
    zygote, reference, tmp_path, script
):
    """Every second kill meets a job that goes on after a kill."""
    stage, moments = STAGES[script], random.Random(script)
    seconds = undisturbed(zygote, reference, script, tmp_path / "undisturbed")
    killed = late = 0
    while killed < KILLS:
        place = reference.prepare(script, tmp_path / "place")
        for outputs in ("kept", "deleted") if killed % 4 else ("deleted", "kept"):
            dead = zygote.run(call, stage.call, cwd=place, kill_after=moments.uniform(0, seconds))
            reference.check_whole(script, place)
            if not dead.killed:  # it was faster than the first time, or than the signal
                assert dead.status == 0, dead.log
                seconds, late = 0.9 * min(seconds, dead.seconds), late + 1
                assert late < 5 * KILLS, "hardly any moment comes in time"
                break
            killed += 1
            if outputs == "deleted":
                # So does Snakemake after a job that failed. Where it was killed itself, they stay.
                for name in stage.made:
                    (place / name).unlink(missing_ok=True)
        done = zygote.run(call, stage.call, cwd=place)
        assert done.status == 0, done.log
        reference.check_finished(script, place)
        shutil.rmtree(place)


@pytest.mark.parametrize("script", [script for script in STAGES if script not in {"train_model", "pretrain"}])
def test_a_stage_killed_between_two_of_its_files(zygote, reference, tmp_path, script):
    """Random moments seldom fall there. Each kill meets the next job in the same folder, and the last one ends.

    Training has points of its own: `test_rounds_killed`. Pretraining writes one file, and a job that goes on passes
    other points than one that begins.
    """
    stage = STAGES[script]
    points = zygote.run(call, stage.call, cwd=reference.prepare(script, tmp_path / "dry"), points=True).points
    chosen = ["before:replace#1", *(point for point in points if point.startswith("after:replace"))]
    assert len(chosen) > len(stage.made)
    place = reference.prepare(script, tmp_path / "place")
    for point in chosen:
        dead = zygote.run(call, stage.call, cwd=place, kill_at=point)
        assert dead.killed, dead.log
        reference.check_whole(script, place)
    done = zygote.run(call, stage.call, cwd=place)
    assert done.status == 0, done.log
    reference.check_finished(script, place)
