"""Offers to spend epsilon: whoever reads one is told first what costs nothing.

A message that only says how to train again is paid for by patients, also where files were merely copied. Every such
message is made here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from zetadp.base.differences import differences

START_OVER = "start over by deleting the checkpoint"
"""What can be done where a run cannot be continued."""
KEEP_RESULTS = (
    "if the results are there, keep them. A call of the library in the same folder returns them. With Snakemake, run "
    "the same command with --touch. If they are lost, restore them, or the checkpoint, from a backup"
)
"""What costs nothing where a job would train a run again that has released something."""
_NO_SETTINGS = {"attempt", "attempts", "cap", "federation", "kind", "series"}
"""Keys of a ledger's first line that no setting of the user changes."""


def offer(free: str, paid: str) -> str:
    """Return the end of a message: what costs nothing, then what spends epsilon."""
    return (
        f"What costs nothing: {free}. Only if that is not possible, {paid}: this spends epsilon of the same people "
        "again, and all releases so far still count."
    )


def cause_of_another(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return why a run may be asked for again, from the first lines of a ledger for its last attempt and the next."""
    settings = ({key: value for key, value in line.items() if key not in _NO_SETTINGS} for line in (before, now))
    then, wanted = map(json.loads, map(json.dumps, settings))
    # A line of another version of this library may lack a key.
    known = (change for change in differences(then, wanted) if None not in (change.before, change.now))
    if changed := [f"{change.key} (then {change.texts[0]}, now {change.texts[1]})" for change in known]:
        return f"Settings changed since: {'; '.join(changed)}. Undo that to keep the finished run."
    return (
        "No setting changed since. Jobs come back when files have new times, as after copying, when code or data "
        "changed, or when results are gone."
    )
