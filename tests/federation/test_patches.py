"""What is changed in Flower: in one version alone, and so that late parts of a message are asked for again soon."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from flwr.supercore import heartbeat, sql_mixin
from flwr.supernode import fleet_http_connection

from zetadp.federation.flower import patches
from zetadp.federation.flower.patches import FLOWER

ROOT = Path(__file__).parents[2]

SCRIPT = """
import time
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError, pull_objects
from zetadp.federation.flower.patches import ask_again_soon

def late(name, tried=[]):
    tried.append(name)
    if len(tried) < 3:
        raise ObjectUnavailableError(name)
    return b"here"

ask_again_soon(0.02)
begun = time.monotonic()
assert pull_objects(["part"], late) == {"part": b"here"}
print(time.monotonic() - begun)
"""


def test_late_parts_of_a_message_are_asked_for_again_soon():
    """In a process of its own, whose Flower is changed. Flower itself would take three seconds, or a fifth less."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert 0.04 < float(done.stdout) < 2


@pytest.mark.parametrize("version", ["1.40.0", "1.43.0", "2.0.0"])
def test_another_version_of_flower_is_refused_before_anything_of_it_is_used(version):
    script = f"""
import importlib.metadata, sys
from zetadp.base.validation import UserError
importlib.metadata.version = lambda name: {{"flwr": "{version}"}}[name]
try:
    import zetadp.federation.flower.patches
except UserError as error:
    print(error)
assert not [name for name in sys.modules if name.partition(".")[0] == "flwr"]
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert f"needs Flower {' or '.join(FLOWER)}, found {version}." in done.stdout


def test_the_versions_of_flower_that_are_changed_are_those_that_are_installed():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    first, last = FLOWER[0], FLOWER[-1].partition(".")
    assert extras["federation"] == [f"flwr>={first},<{last[0]}.{int(last[2]) + 1}"]
    for file, line in (("requirements.lock", "flwr=="), ("envs/federation.yaml", "  - flwr=")):
        (pinned,) = [each for each in (ROOT / file).read_text().splitlines() if each.startswith(line)]
        assert pinned.removeprefix(line).rpartition(".")[0] == FLOWER[-1]


def test_the_database_is_waited_for_and_a_place_that_another_version_lacks_is_an_error(monkeypatch):
    monkeypatch.setattr(sql_mixin, "SQLITE_PRAGMAS", sql_mixin.SQLITE_PRAGMAS)
    patches.wait_for_the_database(7)
    assert ("busy_timeout", "7000") in sql_mixin.SQLITE_PRAGMAS
    monkeypatch.delattr(sql_mixin, "SQLITE_PRAGMAS")
    with pytest.raises((KeyError, RuntimeError), match="SQLITE_PRAGMAS"):
        patches.wait_for_the_database()


def test_a_node_shows_its_life_as_often_as_told(monkeypatch):
    for module in (heartbeat, fleet_http_connection):
        monkeypatch.setattr(module, "HEARTBEAT_DEFAULT_INTERVAL", 30)
    patches.show_life_every(10)
    assert (heartbeat.HEARTBEAT_DEFAULT_INTERVAL, fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL) == (10, 10)
