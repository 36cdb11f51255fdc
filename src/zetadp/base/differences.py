"""Differences between two JSON values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

LONGEST = 60
"""Largest number of characters of a value in a message."""


class Difference(NamedTuple):
    """A value that two JSON values do not share.

    Attributes
    ----------
    path
        Keys of objects, and positions in lists, that lead to the value.
    before, now
        What the first value and the second have there; None if it has nothing.
    """

    path: tuple[str | int, ...]
    before: Any
    now: Any

    @property
    def key(self) -> str:
        """The path as a text, such as ``nodes[0].population``."""
        return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path).removeprefix(".")

    @property
    def texts(self) -> tuple[str, str]:
        """Both values as JSON; of long ones the beginning, and ``...``."""
        before, now = (
            text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
            for text in (json.dumps(value) for value in (self.before, self.now))
        )
        return before, now


def differences(before: Any, now: Any, path: tuple[str | int, ...] = ()) -> Iterator[Difference]:  # noqa: ANN401  (JSON)
    """Yield what differs between two JSON values.

    Objects are compared key by key, and lists of one length element by element. A missing key counts as null. A whole
    number and the same floating-point number differ.

    Parameters
    ----------
    before, now
        Values as `json.loads` returns them.
    path
        The path of both values, with which those of the differences begin.
    """
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for name in {**before, **now}:
            yield from differences(before.get(name), now.get(name), (*path, name))
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for position, values in enumerate(zip(before, now, strict=True)):
            yield from differences(*values, (*path, position))
    elif json.dumps(before) != json.dumps(now):
        yield Difference(path, before, now)
