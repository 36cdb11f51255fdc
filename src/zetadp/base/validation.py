"""Checks of input, in one place so that all messages read alike."""

from __future__ import annotations

import math
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar

Name = TypeVar("Name", bound=str)
Settings = TypeVar("Settings")

MOST_NAMED = 50
"""Most problems that a message names."""
LONGEST_NAME = 100
"""Most characters of a name that another party gives; it becomes part of file names, which have at most 255."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


class UserError(Exception):
    """A mistake in input or configuration that the user can correct.

    The message names the file or key, what was expected, what was found, and what to do. The command line and the
    workflow print it alone, without a traceback, and end with exit code 1.

    Parameters
    ----------
    message
        The message.
    key
        Name of the setting at fault, where the object that refuses it knows no path to it.
    """

    def __init__(self, message: str = "", key: str = "") -> None:
        super().__init__(message)
        self.key = key


class OutOfRangeError(ValueError):
    """A named value that is refused; ``key`` is its name."""

    def __init__(self, message: str, key: str) -> None:
        super().__init__(message)
        self.key = key


def refuse(problems: Sequence[str], where: str) -> None:
    """Raise one `UserError` that numbers all problems, unless there are none.

    Parameters
    ----------
    problems
        What is wrong, one sentence or more each.
    where
        Where it is wrong, such as ``in the cohort data/Task01``.
    """
    if problems:
        lines = [f"{number}. {problem}" for number, problem in enumerate(problems[:MOST_NAMED], start=1)]
        numbered = "\n".join([*lines, *(["and so on"] if len(problems) > MOST_NAMED else [])])
        raise UserError(f"Found {len(problems)} problem{'s' if len(problems) > 1 else ''} {where}:\n{numbered}")


def positive(**values: float) -> None:
    """Raise ``ValueError`` unless every named value is a finite number above zero."""
    for name, value in values.items():
        if not (_is_number(value) and value > 0 and math.isfinite(value)):
            raise OutOfRangeError(f"Expected {name} > 0, found {value!r}.", name)


def in_range(low: float, high: float, **values: float) -> None:
    """Raise ``ValueError`` unless every named value is a number in the closed interval ``[low, high]``."""
    for name, value in values.items():
        if not (_is_number(value) and low <= value <= high):
            raise OutOfRangeError(f"Expected {low} <= {name} <= {high}, found {value!r}.", name)


def whole(low: int, high: int, **values: int) -> None:
    """Raise ``ValueError`` unless every named value is a whole number in the closed interval ``[low, high]``."""
    for name, value in values.items():
        if not (isinstance(value, Integral) and _is_number(value) and low <= value <= high):
            raise OutOfRangeError(f"Expected a whole number {low} <= {name} <= {high}, found {value!r}.", name)


def _is_number(value: object) -> bool:
    """Return whether a value is a real number; Python also takes true and false for numbers."""
    return isinstance(value, Real) and not isinstance(value, bool)


def one_of(allowed: Iterable[Name], **values: str) -> None:
    """Raise ``ValueError`` unless every named value is one of ``allowed``; name the nearest valid one."""
    choices = list(allowed)
    for name, value in values.items():
        if value not in choices:
            nearest = did_you_mean(str(value), choices)  # what a file holds may be no text
            raise ValueError(f"Expected {name} to be one of {', '.join(choices)}, found {value!r}.{nearest}")


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the choice nearest to ``word``, or an empty string."""
    near = get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""


def settings_of(kind: type[Settings], section: Mapping[str, Any], name: str) -> Settings:
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


def checked_name(name: object, what: str) -> str:
    """Return a name that another party gave: of a cohort, run, node, file or attempt.

    Such a name becomes part of paths, commands, tables and pages. It has ASCII letters, digits, ``.``, ``_`` and ``-``,
    begins with none of ``.`` and ``-``, and has at most 100 characters. So it is never a path, a hidden file, an option
    of a command, a formula of a spreadsheet or markup.

    Parameters
    ----------
    name
        What was given, of any type.
    what
        The key or file that gave it, for the message: ``cohort.name``, ``the plan's run``.

    Raises
    ------
    UserError
        If it is another text, or no text.

    Examples
    --------
    >>> checked_name("eps-8_v1.2", "run")
    'eps-8_v1.2'
    """
    if isinstance(name, str) and len(name) <= LONGEST_NAME and _NAME.fullmatch(name):
        return name
    found = shown(name[:LONGEST_NAME]) if isinstance(name, str) else shown(repr(name)[:LONGEST_NAME])
    raise UserError(
        f"{what}: Expected a name of at most {LONGEST_NAME} letters (a to z), digits, '.', '_' and '-' that begins "
        f"with a letter, a digit or '_', found '{found}'. Choose another name."
    )


def checked_path(given: object, what: str) -> Path:
    """Return the path that an argument names, or raise a `UserError` with the argument's name."""
    if isinstance(given, str | os.PathLike) and str(given).strip():
        return Path(str(given))
    raise UserError(f"{what}: Expected the path of a file or folder, such as 'runs/mine', found {given!r:.60}.")


def first_sentence(error: Exception) -> str:
    """Return the kind and the first sentence of an error, whose text may be pages long."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0].partition('. ')[0].rstrip('.')[:150]}."


def shown(text: str) -> str:
    r"""Return any text with every character escaped that a terminal would not print: line breaks, colours, directions.

    Use it where a message holds a text that may be anything, such as the name of a patient or of a file. A page in HTML
    or Markdown escapes its own characters in addition.

    Examples
    --------
    >>> print(shown("A\x1b[2J\nB"))
    A\x1b[2J\nB
    """
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape", "surrogatepass").decode()
        for character in text
    )


def name_key(name: str | bytes | int) -> str:
    """Return the form in which names of persons and records are compared: without spaces, case and Unicode variants.

    A name is a text, a text in UTF-8, or a whole number. Two different names with one key are probably one name,
    written twice. They are never merged silently: `check_distinct` refuses them.

    Examples
    --------
    >>> name_key("Pat A ") == name_key("PAT\u00a0a"), name_key(b"7") == name_key(7), name_key("007") == name_key(7)
    (True, True, False)
    """
    text = name.decode() if isinstance(name, bytes) else f"{name}"
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return "".join(character for character in folded if character.isprintable() and not character.isspace())


def check_distinct(names: Iterable[str | bytes | int], where: str) -> None:
    """Refuse names of persons or records of which one is empty or two have one `name_key`.

    Parameters
    ----------
    names
        The names, as often as they occur.
    where
        The file or key that gave them, for the message.

    Raises
    ------
    UserError
        If a name is empty, or two of them have one key.
    """
    spellings: dict[str, set[str | bytes | int]] = {}
    for name in names:
        spellings.setdefault(name_key(name), set()).add(name)
    if "" in spellings:
        raise UserError(f"Expected a name in every line of {where}, found an empty one. Complete it.")
    alike = [" and ".join(sorted(map(repr, them))) for them in spellings.values() if len(them) > 1]
    if alike:
        raise UserError(
            f"Expected names in {where} that differ in more than spaces, capitals and Unicode forms, found "
            f"{'; '.join(alike)}. Write each name in one way, or give different persons different names."
        )
