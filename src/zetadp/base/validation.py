"""Checks of input, in one place so that all messages read alike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

Name = TypeVar("Name", bound=str)
Settings = TypeVar("Settings")


class UserError(Exception):
    """A mistake in input or configuration that the user can correct.

    The message names the file or key, what was expected, what was found, and what to do. The command line and the
    workflow print it alone, without a traceback, and end with exit code 1.
    """


def positive(**values: float) -> None:
    """Raise ``ValueError`` unless every named value is finite and above zero."""
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"Expected {name} > 0, found {value}.")


def in_range(low: float, high: float, **values: float) -> None:
    """Raise ``ValueError`` unless every named value lies in the closed interval ``[low, high]``."""
    for name, value in values.items():
        if not low <= value <= high:
            raise ValueError(f"Expected {low} <= {name} <= {high}, found {value}.")


def one_of(allowed: Iterable[Name], **values: str) -> None:
    """Raise ``ValueError`` unless every named value is one of ``allowed``; name the nearest valid one."""
    choices = list(allowed)
    for name, value in values.items():
        if value not in choices:
            raise ValueError(
                f"Expected {name} to be one of {', '.join(choices)}, found {value!r}.{did_you_mean(value, choices)}"
            )


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the choice nearest to ``word``, or an empty string."""
    near = get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""


def settings_of(kind: type[Settings], section: Mapping[str, Any], name: str = "encoder") -> Settings:
    """Return the settings of a part of a task, from the section ``name`` of the task's settings.

    Raises
    ------
    UserError
        If a key of the section is unknown or a value is out of range.
    """
    try:
        return kind(**section)
    except (TypeError, ValueError) as error:
        raise UserError(f"task.settings.{name}: {str(error).rstrip('.')}.") from error
