"""The files around the code agree with each other: environments, lock, metadata, reference, scenarios."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CONDA_TO_PYPI = {"pytorch": "torch", "matplotlib-base": "matplotlib", "python-isal": "isal"}
LOCK = dict(
    line.strip().lower().split("==")
    for line in (ROOT / "requirements.lock").read_text().splitlines()
    if line and not line.startswith("#")
)


def pypi_name(name: str) -> str:
    return CONDA_TO_PYPI.get(name, name).lower().replace("_", "-")


@pytest.mark.parametrize("path", sorted((ROOT / "envs").glob("*.yaml")), ids=lambda path: path.stem)
def test_conda_environments_pin_what_the_lock_pins(path):
    content = yaml.safe_load(path.read_text())
    assert content["channels"] == ["conda-forge", "nodefaults"]
    for entry in content["dependencies"]:
        name, _, version = entry.partition("=")
        if name == "python":
            continue
        locked = LOCK[pypi_name(name)]
        assert (locked + ".").startswith(version + "."), f"{path.name} asks for {entry}, the lock holds {locked}"


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
    assert re.search(r"^## ([\d.]+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1] == version
