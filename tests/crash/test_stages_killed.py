"""SIGKILL between the files of every stage: nothing half-written, and the next run makes what an undisturbed one does.

A killed process runs no handler: this is what a lack of memory, a time limit of the cluster and ``kill -9`` have in
common. A file is written whole or not at all, which the tests of `zetadp.base.storage` show; so the points are those at
which a file takes its place.
"""

from __future__ import annotations

import hashlib
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from checkouts import OF_OTHER_TASKS
from crash.reference import files_of
from crash.stages import DATASET, SCRIPTS, STAGES, TASK, call

pytestmark = pytest.mark.slow

ELSEWHERE = {"audit", "audit_membership", "train_federated", *OF_OTHER_TASKS}
"""Not killed here: minutes of attacks that keep nothing, with outputs written at the end as tables and figures are;
many processes, whose deaths `tests/federation` brings about; and stages of PhaseMNIST, which need MNIST's files and
write by the functions of the stages that are killed."""


def test_every_script_is_killed_here():
    assert {*STAGES, "fetch_cohort"} == {path.stem for path in SCRIPTS.glob("*.py")} - ELSEWHERE


@pytest.mark.parametrize("script", STAGES)
def test_a_stage_killed_between_two_of_its_files(zygote, reference, tmp_path, script):
    """Every second time outputs are deleted, as Snakemake does; where it was killed itself, they stay."""
    stage = STAGES[script]
    points = zygote.run(call, stage.call, cwd=reference.prepare(script, tmp_path / "dry"), points=True).points
    chosen = ["before:replace#1", *(point for point in points if point.startswith("after:replace"))]
    assert len(chosen) > len(stage.made)
    for number, point in enumerate(chosen):
        place = reference.prepare(script, tmp_path / str(number))
        dead = zygote.run(call, stage.call, cwd=place, kill_at=point)
        assert dead.killed, dead.log
        reference.check_whole(script, place)
        if number % 2:
            for name in stage.made:
                (place / name).unlink(missing_ok=True)
        done = zygote.run(call, stage.call, cwd=place)
        assert done.status == 0, done.log
        reference.check_finished(script, place)


class Silent(SimpleHTTPRequestHandler):
    """Serves the files of a folder without a word."""

    def log_message(self, *args):
        """Say nothing."""


def test_a_download_killed_between_two_of_its_steps(zygote, reference, tmp_path):
    """The end of the download, of the unpacking, and the removal of the archive."""
    cohort, archive = reference.root / TASK, tmp_path / "task.tar"
    with tarfile.open(archive, mode="w") as tar:
        tar.add(cohort, arcname=cohort.name)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=tmp_path)) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        params = {
            "url": f"http://127.0.0.1:{server.server_port}/{archive.name}",
            "md5": hashlib.md5(archive.read_bytes()).hexdigest(),
        }

        def fetch(place, **crash):
            (place / DATASET).parent.mkdir(parents=True, exist_ok=True)  # as Snakemake does before a job
            request = {"script": "fetch_cohort", "paths": {"dataset": DATASET}, "params": params}
            return zygote.run(call, request, cwd=place, **crash)

        points = fetch(tmp_path / "dry", points=True).points
        steps = [point for point in points if point.split("#")[0].split(":")[1] in ("replace", "unlink")]
        assert len(steps) >= 6
        for number, point in enumerate(steps):
            place = tmp_path / str(number)
            dead = fetch(place, kill_at=point)
            assert dead.killed, dead.log
            # Where the table of contents is, there is all that it lists.
            assert not (place / DATASET).exists() or files_of(place / TASK) >= files_of(cohort), point
            if number % 2:
                (place / DATASET).unlink(missing_ok=True)
            done = fetch(place)
            assert done.status == 0, done.log
            assert files_of(place) == {f"{TASK}/{name}" for name in files_of(cohort)}
            assert all((place / TASK / name).read_bytes() == (cohort / name).read_bytes() for name in files_of(cohort))
        server.shutdown()
