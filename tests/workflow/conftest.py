"""Copies of the repository in which Snakemake runs, and one of them with a finished experiment."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRACKED = ("Snakefile", "config.yaml", "envs", "profiles", "scripts", "src", "workflow")
SMOKE = "workflow/scenarios/smoke.yaml"
NOT_TRACKED = shutil.ignore_patterns("__pycache__", "*.egg-info", ".snakemake")
OF_A_PROCESS = shutil.ignore_patterns("__pycache__", "locks", "log", "tmp*")


@dataclass(frozen=True)
class Checkout:
    """A copy of the repository's files, and the hashes of these before anything ran."""

    root: Path
    before: dict[str, str] = field(default_factory=dict)

    def snakemake(self, *arguments: str, configfile: str = SMOKE, code: int = 0) -> str:
        """Run Snakemake in the copy, as a user would; return all that it says."""
        environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHASHSEED")}
        environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", "")])
        done = subprocess.run(
            [sys.executable, "-m", "snakemake", *arguments, "--cores", "2", "--configfile", configfile],
            cwd=self.root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout[-6000:]
        return done.stdout

    def would_run(self, *arguments: str, configfile: str = SMOKE) -> set[str]:
        """Return the rules that have a job to run."""
        said = self.snakemake("--dry-run", *arguments, configfile=configfile)
        # Jobs of a group stand indented below it.
        rules = set(re.findall(r"^ *(?:local)?rule (\w+):$", said, flags=re.MULTILINE))
        assert rules or "Nothing to be done" in said, said
        return rules - {"all"}

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
    target.mkdir(parents=True)
    for name in TRACKED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=NOT_TRACKED)
        else:
            shutil.copy2(ROOT / name, target / name)
    return Checkout(target)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """Return a copy in which the smoke scenario has run; one for all test processes, so it is never changed."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    outcome = shared / "finished.json"
    with (shared / "finished.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not outcome.exists():
            checkout = copy_of_repository(shared / "finished")
            outcome.write_text(json.dumps("failed before"))
            before = checkout.files()
            checkout.snakemake()
            outcome.write_text(json.dumps(before))
    before = json.loads(outcome.read_text())
    assert isinstance(before, dict), "the run of the smoke scenario failed in another test"
    return Checkout(shared / "finished", before)


@pytest.fixture
def copy(finished: Checkout, tmp_path: Path) -> Checkout:
    """Return a copy of the finished experiment, code and all, at another place."""
    shutil.copytree(finished.root, tmp_path / "copy", ignore=OF_A_PROCESS)
    return Checkout(tmp_path / "copy")


@pytest.fixture
def fresh(tmp_path: Path) -> Checkout:
    """Return a copy of the repository in which nothing has run."""
    return copy_of_repository(tmp_path / "fresh")
