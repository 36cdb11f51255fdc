"""Copies of the repository in which Snakemake runs, and the smoke scenario, which runs once for all tests."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pytest
import warm

ROOT = Path(__file__).parents[1]
TRACKED = (
    *("Snakefile", "config.yaml", "envs", "papers", "profiles", "scripts", "src", "workflow"),
    "zetadp_papers.dist-info",
)
SMOKE = "workflow/scenarios/smoke.yaml"
NOT_TRACKED = shutil.ignore_patterns("__pycache__", "*.egg-info", ".snakemake")
OF_A_PROCESS = shutil.ignore_patterns("__pycache__", "locks", "log", "slurm_logs", "tmp*")
# Makes Snakemake announce every job, for tests that ask which ones ran.
EVERY_JOB = "--printshellcmds"
RECORDER = str(Path(__file__).with_name("recorder"))
# A folder that outlives a test session, for the sessions of one run of continuous integration.
SHARED = "ZETADP_SHARED_RUNS"


@dataclass(frozen=True)
class Checkout:
    """A copy of the repository's files, and the hashes of these before anything ran."""

    root: Path
    before: dict[str, str] = field(default_factory=dict)

    def command(self, *arguments: str, configfile: str = SMOKE, python: str = sys.executable) -> list[str]:
        """Return the command that runs Snakemake as a user would."""
        return [python, "-m", "snakemake", *arguments, "--configfile", configfile]

    def environment(self, given: Mapping[str, str] = os.environ, **changes: str) -> dict[str, str]:
        """Return the environment of a user: nothing in it leads to the library of this repository."""
        own = {key: value for key, value in given.items() if key not in ("PYTHONPATH", "PYTHONHASHSEED")}
        own["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), own.get("PATH", "")])
        return own | changes

    def snakemake(
        self, *arguments: str, configfile: str = SMOKE, code: int = 0, python: str | None = None, **changes: str
    ) -> str:
        """Run Snakemake in the copy on this machine, in a `warm` Python by default; return all that it says."""
        done = subprocess.run(
            self.command(*arguments, "--cores", "2", configfile=configfile, python=python or warm.python()),
            cwd=self.root,
            env=self.environment(**changes),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout[-6000:]
        return done.stdout

    def would_run(self, *arguments: str, configfile: str = SMOKE, **changes: str) -> set[str]:
        """Return the rules that have a job to run."""
        said = self.snakemake("--dry-run", *arguments, configfile=configfile, **changes)
        # Jobs of a group stand indented below it.
        rules = set(re.findall(r"^ *(?:local)?rule (\w+):$", said, flags=re.MULTILINE))
        assert rules or "Nothing to be done" in said, said
        return rules - {"all"}

    def copied_to(self, target: Path) -> Self:
        """Return a copy with everything that was made in this one, at another place."""
        shutil.copytree(self.root, target, ignore=OF_A_PROCESS)
        return type(self)(target)

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace text wherever it occurs in a file."""
        path = self.root / name
        text = path.read_text()
        assert old in text, f"{name} does not hold {old!r}"
        path.write_text(text.replace(old, new))

    def add(self, name: str) -> None:
        """Add a statement to a module."""
        path = self.root / name
        path.write_text(path.read_text() + "\nADDED = True\n")

    def overlay(self, text: str) -> str:
        """Write a scenario and return its name."""
        (self.root / "overlay.yaml").write_text(text)
        return "overlay.yaml"

    def files(self) -> dict[str, str]:
        """Return a hash of each tracked file."""
        return {
            path.relative_to(self.root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for top in TRACKED
            for path in [self.root / top, *(self.root / top).rglob("*")]
            if path.is_file() and "__pycache__" not in path.parts
        }


def copy_of_repository(target: Path) -> Checkout:
    """Return a copy of the repository in which nothing has run."""
    target.mkdir(parents=True)
    for name in TRACKED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=NOT_TRACKED)
        else:
            shutil.copy2(ROOT / name, target / name)
    return Checkout(target)


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Checkout]) -> Checkout:
    """Return what the first test process to ask for it makes; all others find it, so it is never changed."""
    shared = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    shared = Path(os.environ.get(SHARED, shared))
    outcome = shared / f"{name}.json"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not outcome.exists():
            outcome.write_text("null")
            outcome.write_text(json.dumps(make(shared / name).before))
    before = json.loads(outcome.read_text())
    assert before is not None, f"the run called {name} failed in another test"
    return Checkout(shared / name, before)


def finished(target: Path) -> Checkout:
    """Run the smoke scenario in a copy of the repository, and write down how its scripts were called."""
    checkout = copy_of_repository(target)
    before = checkout.files()
    checkout.snakemake(PYTHONPATH=RECORDER, python=sys.executable)
    return Checkout(target, before)


def federated(target: Path, simulated: Checkout) -> Checkout:
    """Train two runs of the smoke scenario again in a copy, by a federation of real processes.

    A network from random weights, and a head on the public backbone.
    """
    checkout = simulated.copied_to(target)
    runs = [f"results/federated/runs/{network}/federated/eps-8/seed-0" for network in ("complex", "pretrained")]
    results = [f"{run}/{name}" for run in runs for name in ("privacy.json", "metrics.json")]
    changes = ["name=federated", "engine=flower", "privacy={noise: os}"]
    changes.append("federation={answer_seconds: 0.2}")
    checkout.snakemake(*results, "--config", *changes, PYTHONPATH=RECORDER)
    return checkout
