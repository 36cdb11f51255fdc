"""SIGKILL between the files of every stage: nothing half-written, and the next run makes what an undisturbed one does.

A killed process runs no handler: this is what a lack of memory, a time limit of the cluster and ``kill -9`` have in
common. A file is written whole or not at all, which the tests of `zetadp.base.storage` show; so the points are those at
which a file takes its place.
"""

from __future__ import annotations

import hashlib
import tarfile

import pytest
from crash.processes import run
from crash.reference import STAGES, files_of
from crash.stages import NO_LOG, call
from served import served_folder

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("script", STAGES)
def test_a_stage_killed_between_two_of_its_files(reference, tmp_path, script):
    """Every second time outputs are deleted, as Snakemake does; where it was killed itself, they stay."""
    stage = reference.stages[script]
    points = run(call, stage.call(), cwd=reference.prepare(script, tmp_path / "dry"), points=True).points
    chosen = ["before:replace#1", *(point for point in points if point.startswith("after:replace"))]
    assert len(chosen) > len(stage.declared)
    for number, point in enumerate(chosen):
        place = reference.prepare(script, tmp_path / str(number))
        dead = run(call, stage.call(), cwd=place, kill_at=point)
        assert dead.killed, dead.log
        reference.check_whole(script, place)
        if number % 2:
            for name in stage.declared:
                (place / name).unlink(missing_ok=True)
        done = run(call, stage.call(), cwd=place)
        assert done.status == 0, done.log
        reference.check_finished(script, place)


def test_a_download_killed_between_two_of_its_steps(reference, tmp_path):
    """The end of the download, of the unpacking, and the removal of the archive."""
    dataset = reference.stages["assemble_cohort"]["dataset"]
    task, archive = dataset.parent, tmp_path / "task.tar"
    cohort = reference.root / task
    with tarfile.open(archive, mode="w") as tar:
        tar.add(cohort, arcname=cohort.name)
    with served_folder(tmp_path) as address:
        arguments = {
            "dataset": {"path": str(dataset)},
            "url": f"{address}{archive.name}",
            "md5": hashlib.md5(archive.read_bytes()).hexdigest(),
        }

        def fetch(place, **crash):
            (place / dataset).parent.mkdir(parents=True, exist_ok=True)  # as Snakemake does before a job
            request = {"rule": "fetch_cohort", "arguments": {"dict": arguments}, "log": NO_LOG}
            return run(call, request, cwd=place, **crash)

        points = fetch(tmp_path / "dry", points=True).points
        steps = [point for point in points if point.split("#")[0].split(":")[1] in ("replace", "unlink")]
        assert len(steps) >= 6
        for number, point in enumerate(steps):
            place = tmp_path / str(number)
            dead = fetch(place, kill_at=point)
            assert dead.killed, dead.log
            # Where the table of contents is, there is all that it lists.
            assert not (place / dataset).exists() or files_of(place / task) >= files_of(cohort), point
            if number % 2:
                (place / dataset).unlink(missing_ok=True)
            done = fetch(place)
            assert done.status == 0, done.log
            assert files_of(place) == {f"{task}/{name}" for name in files_of(cohort)}
            assert all((place / task / name).read_bytes() == (cohort / name).read_bytes() for name in files_of(cohort))
