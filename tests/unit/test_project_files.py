"""The files around the code agree with each other: environments, lock, metadata, container image."""

from __future__ import annotations

import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from checkouts import TRACKED
from environments.declared import ENVIRONMENTS, listed

import zetadp
from zetadp.account.attempts import FORMAT
from zetadp.training import plan

ROOT = Path(__file__).parents[2]
LOCK = dict(
    line.strip().lower().split("==")
    for line in (ROOT / "requirements.lock").read_text().splitlines()
    if line and not line.startswith("#")
)


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_conda_environments_pin_what_the_lock_pins(environment):
    content = yaml.safe_load(ENVIRONMENTS[environment].read_text())
    assert content["channels"] == ["conda-forge", "nodefaults"]
    for name, version in listed(environment).items():
        assert f"{LOCK[name]}.".startswith(f"{version}."), f"{environment}.yaml asks for {name} {version}"


def test_the_lock_holds_every_declared_dependency_and_no_cuda_build():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"], *project["optional-dependencies"]["workflow"]]
    declared += project["optional-dependencies"]["test"]
    names = {re.split(r"[\[<>=]", entry)[0].lower() for entry in declared} - {"zetadp"}
    assert {"numpy", "torch", "pytest", "snakefmt"} <= names
    assert names <= {name.replace("_", "-") for name in LOCK} | set(LOCK)
    assert not [name for name in LOCK if name.startswith(("nvidia", "triton"))]
    assert "+" not in LOCK["torch"]


@pytest.mark.parametrize(
    ("target", "all_packages"), [("results", False), ("results CONFIG=x", True), ("unit", True), ("test-slow", True)]
)
def test_results_wait_for_no_package_of_the_tests_and_jobs_keep_bytecode(target, all_packages, tmp_path):
    command = ["make", "--dry-run", *target.split(), f"VENV={tmp_path}/venv"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert any("[workflow]" in line for line in lines)
    assert any("--requirement requirements.lock" in line for line in lines) == all_packages
    working = [line for line in lines if " snakemake " in line or " pytest " in line]
    assert working
    assert all(line.startswith("PYTHONDONTWRITEBYTECODE= ") for line in working)


def test_the_version_is_the_same_wherever_it_is_named():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert str(yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]) == version
    assert metadata.version("zetadp-papers") == version
    released = version.partition(".dev")[0]
    assert re.search(r"^## ([\d.]+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1] == released


def test_the_page_lists_what_is_public_and_the_formats_of_files():
    section = (ROOT / "docs/api.md").read_text().split("## What is public")[1].split("\n## ")[0]
    assert set(re.findall(r"`zetadp\.(\w+)`", section)) == set(zetadp.__all__)
    assert f"`plan.json`, format {plan.FORMAT} " in section
    assert f"ledgers, format {FORMAT} " in section


CONTAINER = (ROOT / "Containerfile").read_text()


def test_the_image_is_installed_from_the_lock():
    assert "--requirement requirements.lock" in CONTAINER
    installed = [line for line in CONTAINER.splitlines() if "pip install" in line]
    assert len(installed) == 3
    # PyTorch alone, the lock, and this package without what it requires.
    for line in installed:
        assert "--no-deps" in line or "--requirement requirements.lock" in line


def test_the_image_holds_what_the_workflow_needs_and_is_given_no_more():
    copied = {name for line in re.findall(r"^COPY (.+)$", CONTAINER, flags=re.MULTILINE) for name in line.split()[:-1]}
    lines = (ROOT / ".containerignore").read_text().splitlines()
    given = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert lines[0] == "*"
    assert copied == given
    assert copied >= {*TRACKED, "requirements.lock", "pyproject.toml"}
    for name in copied:
        assert (ROOT / name).exists()
