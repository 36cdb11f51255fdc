"""Every environment file is complete and lists nothing that its stages do not use."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from decathlon_builder import write_tiny_task
from environments.declared import ENVIRONMENTS, OF_OTHER_TASKS, ROOT, RULES, imported, listed
from recorder.sitecustomize import PLACE
from served import served_folder

CALLING = Path(__file__).with_name("calling.py")


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_an_environment_lists_what_its_scripts_import_and_no_more(environment):
    needed = set().union(*(imported(rule) for rule in RULES.values() if rule.environment == environment))
    unused, missing = set(listed(environment)) - needed, needed - set(listed(environment))
    assert not unused, f"{environment}.yaml lists what none of its scripts imports: {sorted(unused)}"
    assert not missing, f"{environment}.yaml lacks what its scripts import: {sorted(missing)}"


def test_every_stage_runs_in_its_environment_alone(clean, recorded, tmp_path):
    """One job of each script, with the inputs that the smoke scenario gave it; outputs are deleted before."""
    check_that_it_holds_nothing_of_this_one(clean)
    there = recorded.copied_to(tmp_path / "copy")
    with archive(tmp_path) as (url, md5):
        calls = []
        # What rules of other tasks import is checked against the environments as for every rule.
        for rule in (each for name, each in RULES.items() if name not in OF_OTHER_TASKS):
            if rule.environment != clean.name:
                continue
            if rule.name == "fetch_cohort":  # downloads 7 GB in the workflow; here from this machine
                dataset = tmp_path / "resources/Task01_BrainTumour/dataset.json"
                dataset.parent.mkdir(parents=True)
                said = {"arguments": {"dict": {"dataset": {"path": str(dataset)}, "url": url, "md5": md5}}}
                said["made"] = [str(dataset)]
            else:
                place = there.root / PLACE / f"{rule.name}.json"
                assert place.exists(), f"no run of tests/environments/conftest.py has a job of {rule.name}"
                said = json.loads(place.read_text())
                del said["needed"]  # the copy of the checkout has all of it
                assert all((there.root / path).exists() for path in said["made"])
            calls.append({"script": rule.stage or str(there.root / f"scripts/{rule.name}.py"), **said})
        done = call(clean, calls, there.root)
    assert done.returncode == 0, f"in {clean.name}.yaml:\n{done.stdout[-200:]}{done.stderr[-4000:]}"
    assert done.stdout.count("Calling ") == len(calls)


def check_that_it_holds_nothing_of_this_one(clean) -> None:
    """What no file lists and no listed package requires cannot be imported: else a missing entry would go unseen."""
    for module in ("zetadp", "snakemake", "jsonschema", "pytest"):
        done = clean.python("-c", f"import {module}")
        assert f"No module named '{module}'" in done.stderr
    if "torch" not in listed(clean.name):
        evaluate = {"script": str(ROOT / "scripts/evaluate.py"), "arguments": {"dict": {}}, "made": []}
        assert "No module named 'torch'" in call(clean, [evaluate], ROOT).stderr


def call(clean, calls: list[dict], at: Path) -> subprocess.CompletedProcess[str]:
    """Call scripts of a checkout in the environment."""
    return clean.python(str(CALLING), str(at / "src"), at=at, given=json.dumps(calls))


@contextmanager
def archive(folder: Path) -> Iterator[tuple[str, str]]:
    """Serve a tiny task as the Decathlon's server does; yield its address and its checksum."""
    root = write_tiny_task(folder / "source/Task01_BrainTumour", 2, 1, shape=(6, 6, 3))
    packed = folder / f"{root.name}.tar"
    with tarfile.open(packed, mode="w") as tar:
        tar.add(root, arcname=root.name)
    with served_folder(folder) as address:
        yield f"{address}{packed.name}", hashlib.md5(packed.read_bytes()).hexdigest()
