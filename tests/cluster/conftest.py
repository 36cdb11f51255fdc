"""One Slurm for all tests of the cluster, and the smoke scenario run through it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cluster import slurm

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
TRACKED = ("Snakefile", "config.yaml", "envs", "profiles", "scripts", "src", "workflow")
GENERATED = shutil.ignore_patterns("__pycache__", "*.egg-info", ".snakemake")
SMOKE = "workflow/scenarios/smoke.yaml"


@dataclass(frozen=True)
class Said:
    """What Snakemake said, and how it ended."""

    text: str
    code: int

    def submitted(self) -> dict[str, str]:
        """Return the number of every job that it submitted to Slurm, with the rule or group that it was for."""
        found = re.findall(r"SLURM jobid (\d+) \(log: \S*/slurm_logs/(?:rule_([a-z_]+)|group_([a-z]+)_)", self.text)
        return {number: rule or group for number, rule, group in found}


@dataclass(frozen=True)
class Checkout:
    """A copy of the repository's files in which the workflow runs."""

    root: Path

    @contextmanager
    def started(self, *arguments: str, environment: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
        """Start Snakemake in the copy, as a user would, and leave nothing of it behind."""
        own = {key: value for key, value in (environment or os.environ).items() if key != "PYTHONPATH"}
        own["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), own["PATH"]])
        process = subprocess.Popen(
            [sys.executable, "-m", "snakemake", *arguments, "--configfile", SMOKE],
            cwd=self.root,
            env=own,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield process
        finally:
            end(process)

    def run(self, *arguments: str, environment: dict[str, str] | None = None) -> Said:
        """Run Snakemake in the copy to its end."""
        with self.started(*arguments, environment=environment) as process:
            return said_by(process)

    def copied_to(self, target: Path) -> Checkout:
        """Return a copy with everything that was made in this one."""
        shutil.copytree(self.root, target, ignore=shutil.ignore_patterns("__pycache__", "locks", "log", "slurm_logs"))
        return Checkout(target)


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


def checkout(target: Path) -> Checkout:
    """Return a copy of the repository in which nothing has run."""
    target.mkdir(parents=True)
    for name in TRACKED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=GENERATED)
        else:
            shutil.copy2(ROOT / name, target / name)
    return Checkout(target)


@pytest.fixture
def fresh(tmp_path: Path) -> Checkout:
    return checkout(tmp_path / "fresh")


@pytest.fixture(scope="session")
def cluster() -> Iterator[slurm.Slurm]:
    absent = slurm.missing()
    if absent:
        pytest.skip(f"not on this machine: {', '.join(absent)} (Debian: apt-get install slurm-wlm munge)")
    with slurm.slurm() as running:
        yield running


# A short wait before the first look at a job; later looks come 10 s later each, until a job ends.
SLURM = ("--workflow-profile", "slurm", "--slurm-init-seconds-before-status-checks", "5", "--latency-wait", "20")


@dataclass(frozen=True)
class Finished:
    """The smoke scenario after it ran through Slurm."""

    checkout: Checkout
    said: Said
    jobs: dict[str, dict[str, str]]


@pytest.fixture(scope="session")
def finished(cluster: slurm.Slurm, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Run the smoke scenario through Slurm, each training on the GPU that the node claims to have."""
    there = checkout(tmp_path_factory.mktemp("slurm") / "finished")
    said = there.run(*SLURM, "--set-resources", "train_model:gpu=1", environment=cluster.environment)
    return Finished(there, said, {number: cluster.jobs()[number] for number in said.submitted()})
