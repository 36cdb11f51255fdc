"""The compose files of the kits are such by the schema of Docker Compose."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from federation.sites import make_plan
from jsonschema import Draft7Validator

from zetadp.federation.flower.certificates import make_credentials
from zetadp.federation.flower.kit import write_kits

if TYPE_CHECKING:
    from pathlib import Path

COMPOSE = "docker-compose==1.29.2"


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Draft7Validator:
    folder = tmp_path_factory.mktemp("compose")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", COMPOSE]
    done = subprocess.run([*command, "--dest", str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"pip finds no {COMPOSE}: {done.stderr.strip().splitlines()[-1]}")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        return Draft7Validator(json.loads(files.read("compose/config/compose_spec.json")))


def test_the_schema_finds_nothing_and_would_find_something(schema: Draft7Validator, tmp_path: Path) -> None:
    plan = make_plan(noise="os")
    plan.write(tmp_path / "plan.json")
    authority = make_credentials(tmp_path / "keys", []).authority
    given = {"server": "server.example:9443", "authority": authority}
    *kits, server = write_kits(plan, tmp_path / "plan.json", tmp_path / "kits", **given)
    for kit in (server, *kits):
        content: dict[str, Any] = yaml.safe_load((kit / "compose.yaml").read_text())
        assert list(schema.iter_errors(content)) == []
    content["services"]["node"]["cap_drp"] = content["services"]["node"].pop("cap_drop")
    assert len(list(schema.iter_errors(content))) == 1
