"""Reads back what a table says of how it was made."""

from __future__ import annotations

import re

from zetadp.report.provenance import KEYS


def read_origin(text: str, name: str) -> dict[str, str]:
    """Return what `zetadp.report.provenance.origin` wrote into a table, in which each key stands once."""
    lines = re.findall(rf"^(?:#|-) ({'|'.join(KEYS)}): (.+)$", text, flags=re.MULTILINE)
    there = [key for key, _ in lines]
    assert sorted(there) == sorted(KEYS), f"Expected {name} to give {KEYS} once each, found {there}."
    return dict(lines)
