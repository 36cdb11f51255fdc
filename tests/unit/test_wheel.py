"""The wheel alone, installed in an environment of its own and used from another folder, does what the docs say."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import numpy as np
import pytest
from decathlon_builder import volume, write_volume

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RUN = "results/smoke/runs/pretrained/federated/eps-8/seed-0"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Return an environment with the wheel, and beside it the packages that it requires, as they are here."""
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "source").mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy2(ROOT / name, folder / "source")
    shutil.copytree(ROOT / "src", folder / "source/src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    pip = [sys.executable, "-m", "pip"]
    quiet = ["--quiet", "--no-deps", "--no-index"]
    subprocess.run(
        [*pip, "wheel", *quiet, "--no-build-isolation", "-w", folder, folder / "source"], check=True, timeout=300
    )
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "environment")
    python = folder / "environment/bin/python"
    subprocess.run([*pip, "--python", python, "install", *quiet, "--no-compile", wheel], check=True, timeout=300)
    (site,) = (folder / "environment/lib").glob("python*/site-packages")
    # A path in such a file is searched, and files like it there are not read: no editable install comes along.
    (site / "packages.pth").write_text(sysconfig.get_path("purelib"))
    shutil.rmtree(folder / "source")
    return folder / "environment"


def call(installed: Path, *arguments: object, at: Path, code: int = 0) -> str:
    """Run a program of the environment, with nothing of this checkout; return what it prints."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    program, *rest = map(str, arguments)
    done = subprocess.run(
        [installed / "bin" / program, *rest],
        cwd=at,
        env=environment | {"OMP_NUM_THREADS": "1", "TMPDIR": str(at)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_library_is_that_of_the_wheel_with_all_that_it_needs(installed, tmp_path):
    place = call(installed, "python", "-c", "import zetadp; print(zetadp.__file__)", at=tmp_path).strip()
    assert Path(place).is_relative_to(installed)
    assert call(installed, "zetadp", "--version", at=tmp_path) == f"zetadp {PROJECT['version']}\n"


def test_a_task_of_the_papers_is_refused_with_what_to_install(installed, tmp_path):
    code = "from zetadp.training.task import task_of; task_of({'name': 'ecg'})"
    assert "What the papers bring is in zetadp-papers" in call(installed, "python", "-c", code, at=tmp_path, code=1)


def test_own_data_are_trained_accounted_and_explained(installed, tmp_path):
    said = call(installed, "python", ROOT / "examples/own_network.py", at=tmp_path)
    assert "differentially private for each training patient" in said
    (ledger,) = tmp_path.rglob("ledgers/mine.jsonl")
    said = call(installed, "zetadp", "ledger", ledger, at=tmp_path)
    assert "epsilon 8 at delta 1e-05" in said
    assert "risk.html" in call(installed, "zetadp", "risk", ledger, at=tmp_path)
    assert (ledger.parent / "risk.html").stat().st_size > 0


def test_a_volume_is_classified_with_the_backbone_of_the_wheel(installed, tmp_path):
    call(installed, "python", ROOT / "tests/public_head.py", tmp_path / "model.safetensors", at=tmp_path)
    write_volume(tmp_path / "brain.nii.gz", volume((40, 44, 26), 2, np.random.default_rng(0)), "LPS")
    said = call(installed, "zetadp", "predict", "model.safetensors", "brain.nii.gz", at=tmp_path)
    assert said.splitlines()[1].split()[0] == "0"
    assert said.splitlines()[2].split()[0] == "1"


def test_a_finished_run_is_verified_and_reported(installed, finished, tmp_path):
    run = finished.root / RUN
    assert "wrong" not in call(installed, "zetadp", "verify", run, at=tmp_path)
    assert "report.html" in call(installed, "zetadp", "report", run.parents[4], at=tmp_path)
    # A file that differs from what was sealed is still found.
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run/privacy.txt").write_text("(0.1, 0.001)-differentially private\n")
    assert "privacy.txt" in call(installed, "zetadp", "verify", "run", at=tmp_path, code=1)
