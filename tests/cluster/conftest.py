"""One Slurm for all tests of the cluster, and the smoke scenario run through it."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from checkouts import EVERY_JOB, Checkout, copy_of_repository
from cluster import slurm


@dataclass(frozen=True)
class Said:
    """What Snakemake said, and how it ended."""

    text: str
    code: int

    def submitted(self) -> dict[str, str]:
        """Return the number of every job that it submitted to Slurm, with the rule or group that it was for."""
        found = re.findall(r"SLURM jobid (\d+) \(log: \S*/slurm_logs/(?:rule_([a-z_]+)|group_([a-z]+)_)", self.text)
        return {number: rule or group for number, rule, group in found}


@contextmanager
def started(there: Checkout, *arguments: str, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Start Snakemake in a checkout, as a user would, and leave nothing of it behind."""
    process = subprocess.Popen(
        there.command(*arguments),
        cwd=there.root,
        env=there.environment(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        end(process)


def run(there: Checkout, *arguments: str, environment: Mapping[str, str]) -> Said:
    """Run Snakemake in a checkout to its end."""
    with started(there, *arguments, environment=environment) as process:
        return said_by(process)


def said_by(process: subprocess.Popen[str]) -> Said:
    """Wait for Snakemake to end and return what it said."""
    text, _ = process.communicate()
    return Said(text, process.returncode)


def end(process: subprocess.Popen[str]) -> None:
    """End Snakemake where the test ended first: an interrupt makes it cancel its jobs."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def cluster():
    absent = slurm.missing()
    if absent:
        pytest.skip(f"not on this machine: {', '.join(absent)} (Debian: apt-get install slurm-wlm munge)")
    with slurm.slurm() as running:
        yield running


# Short waits: the answers to Snakemake's questions come when a job has ended (see `slurm.SQUEUE`).
SLURM = ("--workflow-profile", "slurm", "--slurm-init-seconds-before-status-checks", "1", "--latency-wait", "20")


@dataclass(frozen=True)
class ThroughSlurm:
    """The smoke scenario after it ran through Slurm."""

    checkout: Checkout
    said: Said
    jobs: dict[str, dict[str, str]]


@pytest.fixture(scope="session")
def through_slurm(cluster, tmp_path_factory):
    """Run the smoke scenario through Slurm, each training on the GPU that the node claims to have."""
    there = copy_of_repository(tmp_path_factory.mktemp("slurm") / "checkout")
    said = run(there, *SLURM, EVERY_JOB, "--set-resources", "train_model:gpu=1", environment=cluster.environment)
    return ThroughSlurm(there, said, {number: cluster.jobs()[number] for number in said.submitted()})
