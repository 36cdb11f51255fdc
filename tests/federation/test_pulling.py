"""Parts of a message that are late are asked for again soon, in every place where Flower asks for parts."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import time
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError, pull_objects
from zetadp.federation.flower.pulling import ask_again_soon

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
