"""Offers to spend epsilon: whoever reads one is told first what costs nothing.

A message that only says how to train again is paid for by patients, also where files were merely copied. Every such
message is made here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

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
    then, changed = dict(_flat(before)), []
    for key, value in _flat(json.loads(json.dumps(now))):
        if key in then and then[key] != value:
            changed.append(f"{key} (then {json.dumps(then[key])[:60]}, now {json.dumps(value)[:60]})")
    if changed:
        return f"Settings changed since: {'; '.join(changed)}. Undo that to keep the finished run."
    return (
        "No setting changed since. Jobs come back when files have new times, as after copying, when code or data "
        "changed, or when results are gone."
    )


def _flat(content: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested settings with their dotted keys."""
    for key, value in content.items():
        if before or key not in _NO_SETTINGS:
            name = f"{before}{key}"
            yield from _flat(value, f"{name}.") if isinstance(value, Mapping) else [(name, value)]
