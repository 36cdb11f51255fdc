"""Read the origin of a table: the lines on its data, code and settings."""

from __future__ import annotations

import re

from zetadp.report.provenance import KEYS


def read_origin(text: str, name: str) -> dict[str, str]:
    """Return the lines of `zetadp.report.provenance.origin` in a table, which must contain each key once."""
    lines = re.findall(rf"^(?:#|-) ({'|'.join(KEYS)}): (.+)$", text, flags=re.MULTILINE)
    keys = [key for key, _ in lines]
    assert sorted(keys) == sorted(KEYS), f"Expected {name} to give {KEYS} once each, found {keys}."
    return dict(lines)
