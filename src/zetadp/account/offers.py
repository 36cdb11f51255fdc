"""Offers to spend epsilon, which name first what costs nothing.

A message that only says how to train again is paid for by patients, also where files were merely copied. Every such
message is made here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from zetadp.base.differences import differences

SAME_SETTINGS = "none that a ledger declares"
"""What `plan_difference` returns for two equal plans."""
ANOTHER_NAME = "Give this plan a name of its own, for instance another seed"
"""What to do about two plans of one name, whose releases one ledger would record."""
MOST_NAMED = 5
"""Number of differing settings that a message names."""
START_OVER = "start over by deleting the checkpoint"
"""What can be done where a run cannot be continued."""
KEEP_RESULTS = (
    "if the results are there, keep them. A call of the library in the same folder returns them. With Snakemake, run "
    "the same command with --touch. If they are lost, restore them, or the checkpoint, from a backup"
)
"""What costs nothing where a job would train a run again that has released something."""
_NO_SETTINGS = {"attempt", "attempts", "cap", "federation", "kind", "releases", "series"}
"""Keys of a ledger's first line that no setting of the user changes."""


def offer(free: str, paid: str) -> str:
    """Return the end of a message: what costs nothing, then what spends epsilon."""
    return (
        f"You can do this at no privacy cost: {free}. Only if that is not possible, {paid}: this spends epsilon of "
        "the same people again, and all releases so far still count."
    )


def changed_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the settings that differ between two first lines of a ledger, with both values."""
    settings = ({key: value for key, value in line.items() if key not in _NO_SETTINGS} for line in (before, now))
    old, new = map(json.loads, map(json.dumps, settings))
    # A line of another version of this library may lack a key.
    known = (change for change in differences(old, new) if None not in (change.before, change.now))
    return [f"{change.key} (then {change.texts[0]}, now {change.texts[1]})" for change in known]


def plan_difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return in words how two plans of one name differ, from the first lines of their ledgers."""
    changed = [text for text in changed_settings(before, now) if not text.startswith("plan (")]
    chosen = [text for text in changed if "noise_multiplier (" not in text]  # which follows from the others
    return "; ".join((chosen or changed)[:MOST_NAMED]) or SAME_SETTINGS


def cause_of_another(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return why a run may be asked for again, from the first lines of a ledger for its last attempt and the next."""
    if changed := changed_settings(before, now):
        return f"Settings changed since: {'; '.join(changed)}. Undo that to keep the finished run."
    return (
        "No setting changed since. Jobs come back when files have new times, as after copying, when code or data "
        "changed, or when results are gone."
    )
