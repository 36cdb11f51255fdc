"""Recorded calls of every stage, and a clean environment made from each file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from environments.declared import ENVIRONMENTS, ROOT, requirements

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACKED = ("Snakefile", "config.yaml", "envs", "profiles", "scripts", "src", "workflow")
GENERATED = shutil.ignore_patterns("__pycache__", "*.egg-info", ".snakemake")

# Targets that together run every rule but the download, each with settings that make it short.
TARGETS = [
    ["all"],
    [
        "results/smoke/runs/complex/federated/eps-8/seed-0/model.safetensors",
        "--config",
        "engine=flower",
        "privacy={noise: os}",
        "federation={answer_seconds: 0.1}",
    ],
    ["audit", "--config", "audit={training: {trials: 50, most_rounds: 2000}}"],
    ["audit_membership", "--config", "audit={membership: {shadows: 50, trainings: 100}}"],
]


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the repository in which the smoke scenario ran and every call was written down."""
    copy = tmp_path_factory.mktemp("recorded") / "copy"
    copy.mkdir()
    for name in TRACKED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=GENERATED)
        else:
            shutil.copy2(ROOT / name, copy / name)
    seam = copy / "src/zetadp/workflow.py"
    shutil.copy2(Path(__file__).with_name("recorder.py"), seam.with_name("recorder.py"))
    seam.write_text(seam.read_text() + "\n\nfrom zetadp.recorder import recording\n\nrun = recording(run)\n")
    own = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    own["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), own["PATH"]])
    for target in TARGETS:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "snakemake",
                *target,
                "--configfile",
                "workflow/scenarios/smoke.yaml",
                "--cores",
                "2",
            ],
            cwd=copy,
            env=own,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    shutil.copy2(ROOT / "src/zetadp/workflow.py", seam)
    return copy


@dataclass(frozen=True)
class Clean:
    """A virtual environment that holds what one environment file lists, and what that requires by itself."""

    name: str
    folder: Path

    def python(self, *arguments: str, at: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run its Python without anything of this machine: no user packages, no PYTHON variables, no current folder."""
        return subprocess.run(
            [str(self.folder / "bin/python"), "-I", *arguments],
            cwd=at,
            env=os.environ | {"OMP_NUM_THREADS": "1", "MPLCONFIGDIR": str(self.folder)},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(scope="session", params=ENVIRONMENTS)
def clean(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clean]:
    """Make the environment as `make install` makes its own: the same pip settings, and PyTorch from the same index."""
    made = Clean(request.param, tmp_path_factory.mktemp("environments") / request.param)
    venv.create(made.folder, with_pip=True)
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
    """Install by the environment's own pip, which reads the settings of the machine as every pip here does."""
    done = subprocess.run(
        [str(made.folder / "bin/python"), "-m", "pip", "install", "--quiet", "--no-compile", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
