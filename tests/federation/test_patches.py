"""What is changed in Flower: in one version alone, and so that late parts of a message are asked for again soon."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from flwr.supercore import sql_mixin
from flwr.supercore.sql_mixin import SqlMixin
from sqlalchemy.exc import OperationalError

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


@pytest.mark.parametrize("version", ["1.40.0", "1.41.1", "1.42.0"])
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
    assert done.stdout == f"A federation needs Flower {FLOWER}, found {version}. Run: pip install zetadp[federation]\n"


def test_the_version_of_flower_that_is_changed_is_the_one_that_is_installed():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["federation"] == [f"flwr=={FLOWER}"]
    assert f"flwr=={FLOWER}" in (ROOT / "requirements.lock").read_text().splitlines()
    assert f"  - flwr={FLOWER}" in (ROOT / "envs/federation.yaml").read_text().splitlines()


def test_a_database_that_another_writes_to_is_waited_for_as_long_as_told(tmp_path, monkeypatch):
    monkeypatch.setattr(sql_mixin, "SQLITE_PRAGMAS", sql_mixin.SQLITE_PRAGMAS)
    patches.wait_for_the_database(0.3)
    state = SqlMixin(f"sqlite:///{tmp_path / 'state.db'}")
    monkeypatch.setattr(sql_mixin, "run_migrations", lambda _: None)
    state.initialize()
    state.query("CREATE TABLE lines (text TEXT)")
    other = sqlite3.connect(tmp_path / "state.db")
    other.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    with pytest.raises(OperationalError, match="locked"):
        state.query("INSERT INTO lines VALUES ('x')")
    # Flower's own patience is five seconds.
    assert 0.25 < time.monotonic() - began < 4
    other.rollback()
    state.query("INSERT INTO lines VALUES ('x')")
