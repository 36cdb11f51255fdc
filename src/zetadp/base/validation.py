"""Checks of input, in one place so that all messages read alike.

A settings class is a frozen dataclass. The rules of its fields, such as bounds and choices, are metadata of their
types; as a `Checked` class it asks them when it is made. Reading a file (`zetadp.base.reading`) takes the same rules
from the same types, and so does the schema that editors read. Functions check their arguments by the same rules.
"""

from __future__ import annotations

import math
import operator
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

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

    Attributes
    ----------
    exit_code
        Exit code of a command that it ends.
    """

    def __init__(self, message: str = "", key: str = "") -> None:
        super().__init__(message)
        self.key = key
        self.exit_code = 1


NEEDS_A_PERSON = 78
"""Exit code where settings are wrong or a person has not agreed: EX_CONFIG of sysexits.h."""


@contextmanager
def needs_a_person() -> Iterator[None]:
    """Give mistakes that a person has to mend an exit code of their own, at which service managers do not restart."""
    try:
        yield
    except UserError as error:
        error.exit_code = NEEDS_A_PERSON
        raise


class RefusedValueError(ValueError):
    """A named value that a rule refuses; ``key`` is its name."""

    def __init__(self, name: str, wanted: str, value: object, hint: str = "") -> None:
        super().__init__(f"Expected {name} {wanted}, found {value!r}.{hint}")
        self.key = name


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


@dataclass(frozen=True)
class Within:
    """Bounds of a number, which stays as it was written: a whole number is not turned into one with a point.

    Attributes
    ----------
    ge, gt, le, lt
        Least and largest value, and values that all numbers lie above and below.
    """

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None

    def check(self, name: str, value: Any) -> None:  # noqa: ANN401  (a user may give anything)
        """Raise ``ValueError`` unless the value is a number in the bounds."""
        # A whole number may be too large for a float, which `math.isfinite` makes of it.
        is_finite = isinstance(value, int) or (isinstance(value, Real) and math.isfinite(value))
        is_number = is_finite and not isinstance(value, bool)
        if not (is_number and all(compare(value, bound) for _, bound, compare in self._bounds())):
            bounds = " and ".join(f"{sign} {bound:.15g}" for sign, bound, _ in self._bounds())
            raise RefusedValueError(name, bounds or "to be a number", value)

    def _bounds(self) -> Iterator[tuple[str, float, Callable[[float, float], bool]]]:
        given = (">=", self.ge, operator.ge), (">", self.gt, operator.gt), ("<=", self.le, operator.le)
        for sign, bound, compare in (*given, ("<", self.lt, operator.lt)):
            if bound is not None:
                yield sign, bound, compare

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:  # noqa: ANN401  (pydantic's types)
        """Return the schema of the number with these bounds."""
        from pydantic_core import core_schema

        bounds = {key: bound for key, bound in vars(self).items() if bound is not None}
        schema = {**handler(source), **bounds}
        return core_schema.no_info_wrap_validator_function(_as_written, schema) if schema["type"] == "float" else schema


class Whole:
    """A whole number, of any type of number but truth values; `check_fields` asks it of every field of type int."""

    def check(self, name: str, value: Any) -> None:  # noqa: ANN401  (a user may give anything)
        """Raise ``ValueError`` unless the value is a whole number."""
        if not isinstance(value, Integral) or isinstance(value, bool):
            raise RefusedValueError(name, "to be a whole number", value)


@dataclass(frozen=True)
class OneOf:
    """Choices of a text."""

    choices: tuple[str, ...]

    def check(self, name: str, value: Any) -> None:  # noqa: ANN401  (a user may give anything)
        """Raise ``ValueError`` unless the value is one of the choices; name the nearest one."""
        if value not in self.choices:
            nearest = did_you_mean(str(value), self.choices)  # what a file holds may be no text
            raise RefusedValueError(name, f"to be one of {', '.join(self.choices)}", value, nearest)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:  # noqa: ANN401  (pydantic's types)
        """Return the schema of the choices."""
        from pydantic_core import core_schema

        return core_schema.literal_schema(list(self.choices))


@dataclass(frozen=True)
class Spelled:
    """Pattern of a text."""

    pattern: str

    def check(self, name: str, value: Any) -> None:  # noqa: ANN401  (a user may give anything)
        """Raise ``ValueError`` unless the value is a text of this pattern."""
        if not (isinstance(value, str) and re.fullmatch(self.pattern, value)):
            raise RefusedValueError(name, f"to match {self.pattern}", value)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:  # noqa: ANN401  (pydantic's types)
        """Return the schema of the text."""
        return {**handler(source), "pattern": f"^(?:{self.pattern})$"}


@dataclass(frozen=True)
class Filled:
    """A list, or keys with values, of at least so many entries."""

    least: int = 1
    most: int | None = None

    def check(self, name: str, value: Sequence[Any]) -> None:
        """Raise ``ValueError`` if there are fewer, or more than there may be."""
        Within(ge=self.least, le=self.most).check(f"the number of {name}", len(value))

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:  # noqa: ANN401  (pydantic's types)
        """Return the schema of the list."""
        return {**handler(source), "min_length": self.least} | ({"max_length": self.most} if self.most else {})


Positive = Annotated[float, Within(gt=0)]
NotNegative = Annotated[float, Within(ge=0)]
Share = Annotated[float, Within(ge=0, le=1)]
Count = Annotated[int, Within(ge=1)]
Seed = Annotated[int, Within(ge=0, le=2**63)]


def check_fields(settings: Any) -> None:  # noqa: ANN401  (any dataclass)
    """Raise ``ValueError`` for the first field of a dataclass whose value its type does not allow."""
    for name, hint in _hints(settings.__class__).items():
        for rule, value in _rules(hint, getattr(settings, name)):
            rule.check(name, value)


class Checked:
    """What checks the fields of a dataclass, when it is made, as their types say."""

    def __post_init__(self) -> None:
        """Check every field."""
        check_fields(self)


@cache
def _hints(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {name: hints[name] for name in getattr(kind, "__dataclass_fields__", {})}


def _rules(hint: Any, value: Any) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401  (any type, any value)
    """Yield each rule of a type with the value that it is about, also those of a tuple's or list's entries."""
    if get_origin(hint) is Annotated:
        yield from ((rule, value) for rule in hint.__metadata__)
        hint = hint.__origin__
    inner = get_args(hint)
    if hint is int:
        yield Whole(), value
    elif get_origin(hint) is Literal:
        yield OneOf(inner), value
    elif type(None) in inner:
        if value is not None:
            yield from _rules(next(each for each in inner if each is not type(None)), value)
    elif inner and isinstance(value, tuple | list):
        for each in value:
            yield from _rules(inner[0], each)


def _as_written(value: Any, check: Any) -> Any:  # noqa: ANN401  (pydantic's types)
    checked = check(value)
    return value if value == checked else checked


def positive(**values: float) -> None:
    """Raise ``ValueError`` unless every named value is a finite number above zero."""
    for name, value in values.items():
        Within(gt=0).check(name, value)


def in_range(low: float, high: float, **values: float) -> None:
    """Raise ``ValueError`` unless every named value is a finite number in the closed interval ``[low, high]``."""
    for name, value in values.items():
        Within(ge=low, le=high).check(name, value)


def whole(low: int, high: int, **values: int) -> None:
    """Raise ``ValueError`` unless every named value is a whole number in the closed interval ``[low, high]``."""
    for name, value in values.items():
        Whole().check(name, value)
        Within(ge=low, le=high).check(name, value)


def one_of(allowed: Iterable[Name], **values: str) -> None:
    """Raise ``ValueError`` unless every named value is one of ``allowed``; name the nearest valid one."""
    for name, value in values.items():
        OneOf(tuple(allowed)).check(name, value)


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


def shown_lines(text: str) -> str:
    """Return a text of several lines with every line as `shown` returns it."""
    return "\n".join(map(shown, text.split("\n")))


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


_BARE = (
    (re.compile(r"(?<![^\W_])sub(?:[-_]+|(?=\d))"), ""),  # the prefix of BIDS
    (re.compile(r"(?<=[^\W\d_])[-_]+(?=\d)"), ""),  # p-1 and p1
    (re.compile(r"(?<![\d.])(\d+)\.0+(?![\d.])"), r"\1"),  # a number that went through a column of floats
    (re.compile(r"(?<!\d)(?<!\d\.)0+(?=\d)"), ""),  # a number that went through a column of integers
)
"""What programs for tables, converters and word processors change in ids, each with what stands for it."""


def bare_key(name: str | bytes | int) -> str:
    """Return a form in which different ids are equal that may well be one id, changed by a program.

    Beyond `name_key` it has no leading zeros, no ending ``.0``, no prefix ``sub-``, no hyphen before a number, and one
    kind of hyphen. Ids that are equal in this form may still be two persons: ask.

    Examples
    --------
    >>> {bare_key(name) for name in (7, "007", "7.0", "sub-007", "sub_7")}
    {'7'}
    >>> bare_key("p\u20101") == bare_key("P-01") == bare_key("p1"), bare_key("p10") == bare_key("p1")
    (True, False)
    """
    text = "".join("-" if unicodedata.category(one) == "Pd" or one == "\u2212" else one for one in name_key(name))
    for pattern, plain in _BARE:
        text = pattern.sub(plain, text)
    return text


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
