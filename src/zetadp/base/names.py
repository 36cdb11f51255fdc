"""Names and paths from outside: which are allowed, and which two are probably one name, written twice."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from zetadp.base.validation import UserError, shown

MAX_FILE_NAME = 255
"""Most bytes of a file's name."""
MAX_NAME_LENGTH = 100
"""Most characters of a name that another party gives; it becomes part of file names, which have at most 255."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def checked_name(name: object, what: str) -> str:
    """Return a name from outside: of a cohort, run, node, file or attempt.

    Such a name becomes part of paths, commands, tables and pages. It has ASCII letters, digits, ``.``, ``_`` and ``-``,
    does not begin with ``.`` or ``-``, and has at most 100 characters. It is therefore never a path, a hidden file, an
    option of a command, a formula of a spreadsheet or markup.

    Parameters
    ----------
    name
        The name, which may be of any type.
    what
        The key or file with the name, for the message: ``cohort.name``, ``the plan's run``.

    Raises
    ------
    UserError
        If it is another text, or not a text.

    Examples
    --------
    >>> checked_name("eps-8_v1.2", "run")
    'eps-8_v1.2'
    """
    if isinstance(name, str) and len(name) <= MAX_NAME_LENGTH and _NAME.fullmatch(name):
        return name
    text = shown(name[:MAX_NAME_LENGTH]) if isinstance(name, str) else shown(repr(name)[:MAX_NAME_LENGTH])
    raise UserError(
        f"{what}: Expected a name of at most {MAX_NAME_LENGTH} letters (a to z), digits, '.', '_' and '-' that begins "
        f"with a letter, a digit or '_', found '{text}'. Choose another name."
    )


def checked_path(path: object, what: str) -> Path:
    """Return the path that an argument names, with the user's home for ``~``; raise a `UserError` for anything else."""
    if isinstance(path, str | os.PathLike) and (text := str(path)).strip() and "\0" not in text:
        with suppress(RuntimeError):  # the home of an unknown user
            expanded = Path(text).expanduser()
            if all(len(os.fsencode(part)) <= MAX_FILE_NAME for part in expanded.parts):
                return expanded
    raise UserError(f"{what}: Expected the path of a file or folder, such as 'runs/mine', found {path!r:.60}.")


def name_key(name: str | bytes | int) -> str:
    """Return the form in which names of persons and records are compared: without spaces, case and Unicode variants.

    A name is a text, a text in UTF-8, or a whole number. Two different names with one key are probably one name,
    written twice. They are never merged silently: `check_distinct` refuses them.

    Examples
    --------
    >>> name_key("Pat A ") == name_key("PAT\u00a0a"), name_key(b"7") == name_key(7), name_key("007") == name_key(7)
    (True, True, False)
    """
    # A member of an enumeration is the text or number that it stands for, however it would be printed.
    text = name.decode() if isinstance(name, bytes) else str.__str__(name) if isinstance(name, str) else f"{int(name)}"
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return "".join(character for character in folded if character.isprintable() and not character.isspace())


_ID_VARIANTS = (
    (re.compile(r"(?<![^\W_])sub(?:[-_]+|(?=\d))"), ""),  # the prefix of BIDS
    (re.compile(r"(?<=[^\W\d_])[-_]+(?=\d)"), ""),  # p-1 and p1
    (re.compile(r"(?<![\d.])(\d+)\.0+(?![\d.])"), r"\1"),  # a number that went through a column of floats
    (re.compile(r"(?<!\d)(?<!\d\.)0+(?=\d)"), ""),  # a number that went through a column of integers
)
"""Changes that spreadsheets, converters and word processors make to ids, as patterns with their replacements."""


def bare_key(name: str | bytes | int) -> str:
    """Return a form of an id that is equal for ids that a program may have changed into each other.

    Like `name_key`, and also without leading zeros, ending ``.0``, prefix ``sub-`` and hyphen before a number, and with
    one kind of hyphen. Ids that are equal in this form may still be two persons: ask.

    Examples
    --------
    >>> {bare_key(name) for name in (7, "007", "7.0", "sub-007", "sub_7")}
    {'7'}
    >>> bare_key("p\u20101") == bare_key("P-01") == bare_key("p1"), bare_key("p10") == bare_key("p1")
    (True, False)
    """
    text = re.sub("\u2212", "-", name_key(name))
    text = "".join("-" if unicodedata.category(character) == "Pd" else character for character in text)
    for pattern, plain in _ID_VARIANTS:
        text = pattern.sub(plain, text)
    return text


def check_distinct(names: Iterable[str | bytes | int], where: str) -> None:
    """Refuse names of persons or records if one is empty or two have the same `name_key`.

    Parameters
    ----------
    names
        The names, as often as they occur.
    where
        The file or key with the names, for the message.

    Raises
    ------
    UserError
        If a name is empty, or two of them have the same key.
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
