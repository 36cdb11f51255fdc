"""SIGKILL at random moments of the download: it goes on where it was, and ends in the folder that the archive holds."""

from __future__ import annotations

import hashlib
import io
import random
import shutil
import tarfile
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from crash.reference import files_of
from crash.stages import DATASET, TASK, call

pytestmark = pytest.mark.slow

KILLS = 20
BLOCK = 1 << 18


@contextmanager
def served(content: bytes):
    """Serve bytes with ranges at a pace that leaves time for being killed; yield the address and what was asked for."""
    starts: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
            starts.append(start)
            if start >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            try:
                for place in range(start, len(content), BLOCK):
                    self.wfile.write(content[place : place + BLOCK])
                    time.sleep(0.001)
            except ConnectionError:  # whoever asked was killed
                self.close_connection = True

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/Task01_BrainTumour.tar", starts
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def cohort(reference, tmp_path_factory):
    """Return a folder with a task that takes several reads to download and to unpack."""
    task = tmp_path_factory.mktemp("source") / "Task01_BrainTumour"
    shutil.copytree(reference.root / TASK, task)
    for number in range(4):
        (task / f"imagesTr/large-{number}.nii.gz").write_bytes(np.random.default_rng(number).bytes(1_500_000))
    return task


@pytest.fixture(scope="module")
def archive(cohort):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(cohort, arcname=cohort.name)
    return packed.getvalue()


def fetch(zygote, folder, url, archive, **crash):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / DATASET).parent.mkdir(parents=True, exist_ok=True)  # as Snakemake does before a job
    params = {"url": url, "md5": hashlib.md5(archive).hexdigest()}
    request = {"script": "fetch_cohort", "paths": {"dataset": DATASET}, "params": params}
    return zygote.run(call, request, cwd=folder, **crash)


def check_whole(cohort, folder):
    """Check after a crash: where the table of contents is, there is all that it lists."""
    if (folder / DATASET).exists():
        for name in files_of(cohort):
            assert (folder / TASK / name).read_bytes() == (cohort / name).read_bytes(), name


def check_finished(cohort, folder):
    """Check after a run: the cohort is there, and neither an archive nor a part of one."""
    assert files_of(folder) == {f"{TASK}/{name}" for name in files_of(cohort)}
    check_whole(cohort, folder)


def test_a_killed_download_goes_on_and_ends_the_same(zygote, cohort, archive, tmp_path):
    moments = random.Random("fetch_cohort")
    with served(archive) as (url, starts):
        first = fetch(zygote, tmp_path / "undisturbed", url, archive)
        assert first.status == 0, first.log
        check_finished(cohort, tmp_path / "undisturbed")
        seconds, killed, late = first.seconds, 0, 0
        while killed < KILLS:
            place = tmp_path / "place"
            dead = fetch(zygote, place, url, archive, kill_after=moments.uniform(0, seconds))
            check_whole(cohort, place)
            if not dead.killed:
                assert dead.status == 0, dead.log
                seconds, late = min(seconds, dead.seconds), late + 1
                assert late < 2 * KILLS, "hardly any moment comes in time"
            elif killed % 2:
                (place / DATASET).unlink(missing_ok=True)
            killed += dead.killed
            done = fetch(zygote, place, url, archive)
            assert done.status == 0, done.log
            check_finished(cohort, place)
            shutil.rmtree(place)
    assert any(starts), "no download went on where it was"


@pytest.mark.parametrize("outputs", ["kept", "deleted"])
def test_a_download_killed_between_two_of_its_steps(zygote, cohort, archive, tmp_path, outputs):
    """The end of the download, of the unpacking, and the removal of the archive: random moments seldom fall there."""
    with served(archive) as (url, _):
        points = fetch(zygote, tmp_path / "dry", url, archive, points=True).points
        steps = [point for point in points if point.split("#")[0].split(":")[1] in ("replace", "unlink")]
        assert len(steps) >= 6
        for point in steps:
            place = tmp_path / point.replace(":", "-")
            dead = fetch(zygote, place, url, archive, kill_at=point)
            assert dead.killed, dead.log
            check_whole(cohort, place)
            if outputs == "deleted":
                (place / DATASET).unlink(missing_ok=True)
            done = fetch(zygote, place, url, archive)
            assert done.status == 0, done.log
            check_finished(cohort, place)


@pytest.mark.parametrize("megabytes", [0, 1, 2])
def test_a_download_to_a_full_disk_ends_in_one_message_and_goes_on(zygote, cohort, archive, tmp_path, megabytes):
    with served(archive) as (url, starts):
        full = fetch(zygote, tmp_path, url, archive, full_at="start", room=megabytes * 1_000_000)
        assert full.status == 1
        assert "UserError: Cannot write" in full.log.splitlines()[-1]
        assert "Free space" in full.log
        done = fetch(zygote, tmp_path, url, archive)
        assert done.status == 0, done.log
        check_finished(cohort, tmp_path)
    assert starts[-1] == megabytes * 1_000_000


def test_files_that_are_not_of_the_archive_are_never_removed(zygote, cohort, archive, tmp_path):
    mine = tmp_path / TASK / "imagesTr/large-0.nii.gz"
    mine.parent.mkdir(parents=True)
    mine.write_bytes((cohort / "imagesTr/large-0.nii.gz").read_bytes()[:-1] + b"!")
    before = mine.read_bytes()
    with served(archive) as (url, _):
        done = fetch(zygote, tmp_path, url, archive)
    assert done.status == 1
    assert "absent or empty" in done.log
    assert mine.read_bytes() == before
