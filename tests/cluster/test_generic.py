"""The profile for other schedulers: its PBS commands, which Slurm understands by Debian's wrappers of their names."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from checkouts import ROOT
from cluster.conftest import run
from snakemake.profiles import ProfileConfigFileParser

STATUS = ROOT / "profiles/generic/status"


def test_jobs_and_groups_go_through_qsub(cluster, copy, tmp_path):
    if shutil.which("qsub", path=cluster.environment["PATH"]) is None:
        pytest.skip("not on this machine: qsub (Debian: apt-get install slurm-wlm-torque)")
    for stage in ("kspace", "whitened"):
        shutil.rmtree(copy.root / "resources/phantom-smoke" / stage)
    before = set(cluster.jobs())
    # Debian's qstat does not tell how a job ended, so that this question goes to Slurm itself.
    asked = tmp_path / "status"
    asked.write_text(
        '#!/bin/sh\ncase $(squeue --noheader --states=all --format=%T --jobs="$1") in\n'
        "  COMPLETED) echo success;;\n  PENDING | RUNNING | COMPLETING) echo running;;\n  *) echo failed;;\nesac\n"
    )
    asked.chmod(0o755)
    profile = ("--workflow-profile", "generic", "--cluster-generic-status-cmd", str(asked))
    waits = ("--seconds-between-status-checks", "1", "--latency-wait", "20")
    said = run(copy, "kspace", *profile, *waits, environment=cluster.environment)
    assert said.code == 0, said.text[-6000:]
    jobs = [job for number, job in cluster.jobs().items() if number not in before]
    # Two shards, each transformed and whitened in one job.
    assert [job["JobState"] for job in jobs] == ["COMPLETED"] * 2
    assert {(job["NumCPUs"], job["MinMemoryNode"], job["TimeLimit"]) for job in jobs} == {("1", "2000M", "01:00:00")}
    for name in ("shard-00.h5", "shard-01.h5"):
        assert (copy.root / "resources/phantom-smoke/whitened" / name).stat().st_size > 0


def test_the_status_command_is_there_in_whatever_folder_snakemake_starts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with (ROOT / "profiles/generic/profile.yaml").open() as profile:
        settings = ProfileConfigFileParser().parse(profile)
    assert Path(settings["cluster-generic-status-cmd"]).samefile(STATUS)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("Job Id: 7.host\n    job_state = F\n    Exit_status = 0\n", "success"),  # PBS Professional and OpenPBS
        ("Job Id: 7.host\n    job_state = F\n    Exit_status = 271\n", "failed"),
        ("Job Id: 7.host\n    job_state = C\n    exit_status = 0\n", "success"),  # Torque
        ("Job Id: 7.host\n    job_state = C\n    exit_status = 1\n", "failed"),
        ("Job Id: 7.host\n    job_state = C\n", "failed"),
        ("Job Id: 7.host\n    job_state = R\n", "running"),
        ("Job Id: 7.host\n    job_state = Q\n", "running"),
        ("", "running"),
    ],
)
def test_the_status_command_reads_what_qstat_prints(tmp_path, told, expected):
    """Written after the manuals of both; no PBS was there to ask."""
    (tmp_path / "told").write_text(told)
    qstat = tmp_path / "qstat"
    qstat.write_text(f"#!/bin/sh\n[ -s {tmp_path}/told ] || exit 1\ncat {tmp_path}/told\n")
    qstat.chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    done = subprocess.run([STATUS, "7.host"], env={"PATH": path}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [expected]
