"""Recorded calls of every stage, and a clean environment made from each file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest
from checkouts import RECORDER, Checkout, made_once
from environments.declared import ENVIRONMENTS, requirements

from zetadp.account.ledger import Ledger


@pytest.fixture(scope="session")
def recorded(federated, tmp_path_factory):
    """Return a copy of the checkout in which every rule but the download has run and every call was written down."""
    settings = "audit={membership: {shadows: 50, trainings: 100}}"

    def make(target: Path) -> Checkout:
        copy = federated.copied_to(target)
        copy.snakemake("audit_membership", "--config", settings, PYTHONPATH=RECORDER)
        # Those trained with noise from the operating system are trained once, unless their ledgers permit another.
        for path in (copy.root / "ledgers").glob("*/federated-*.jsonl"):
            with Ledger(path) as ledger:
                ledger.permit()
        return copy

    return made_once(tmp_path_factory, "recorded", make)


@dataclass(frozen=True)
class Clean:
    """A virtual environment that holds what one environment file lists, and what that requires by itself."""

    name: str
    folder: Path

    def python(self, *arguments: str, at: Path | None = None, given: str = "") -> subprocess.CompletedProcess[str]:
        """Run its Python without anything of this machine: no user packages, no PYTHON variables, no current folder."""
        return subprocess.run(
            [str(self.folder / "bin/python"), "-I", *arguments],
            cwd=at,
            env=os.environ | {"OMP_NUM_THREADS": "1", "MPLCONFIGDIR": str(self.folder)},
            input=given,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(params=ENVIRONMENTS)
def clean(request, tmp_path):
    """Make the environment as `make install` makes its own: the same pip settings, and PyTorch from the same index."""
    made = Clean(request.param, tmp_path / "environment")
    venv.create(made.folder)
    wanted = requirements(made.name)
    index = os.environ.get("TORCH_INDEX")
    torch = [requirement for requirement in wanted if requirement.startswith("torch==")]
    if index and torch:
        install(made, "--no-deps", "--index-url", index, *torch)
    install(made, *wanted)
    yield made
    # Each holds PyTorch: several gigabytes where pip takes a CUDA build.
    shutil.rmtree(made.folder)


def install(made: Clean, *arguments: str) -> None:
    """Install by the pip of these tests, run by the environment's Python: it sees no package from outside."""
    pip = [sys.executable, "-m", "pip", "--python", str(made.folder / "bin/python"), "install"]
    done = subprocess.run([*pip, "--quiet", "--no-compile", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
