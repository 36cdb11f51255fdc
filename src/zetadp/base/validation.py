"""Checks of input, in one module so that all messages have the same form.

A settings class is a frozen dataclass. The rules of its fields, such as bounds and choices, are metadata of their
types. A `Checked` class applies them when an object is made. Reading a file (`zetadp.base.reading`) and the schema for
editors take the same rules from the same types. Functions check their arguments by the same rules.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from numbers import Integral, Real
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

MAX_PROBLEMS = 50
"""Most problems that a message names."""


class UserError(Exception):
    """A mistake in input or configuration that the user can correct.

    The message names the file or key, what was expected, what was found, and what to do. The command line and the
    workflow print it alone, without a traceback, and end with exit code 1.

    Parameters
    ----------
    message
        The message.
    key
        Name of the wrong setting, if the object that refuses it does not know the setting's path.

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
    """Give mistakes that a person must correct a separate exit code, after which service managers do not restart."""
    try:
        yield
    except UserError as error:
        error.exit_code = NEEDS_A_PERSON
        raise


class RefusedValueError(ValueError):
    """A named value that a rule refuses; ``key`` is its name."""

    def __init__(self, name: str, expected: str, value: object, hint: str = "") -> None:
        super().__init__(f"Expected {name} {expected}, found {value!r}.{hint}")
        self.key = name


def refuse(problems: Sequence[str], where: str) -> None:
    """Raise one `UserError` that numbers all problems, unless there are none.

    Parameters
    ----------
    problems
        The problems, of one sentence or more each.
    where
        The faulty input, such as ``in the cohort data/Task01``.
    """
    if problems:
        lines = [f"{number}. {problem}" for number, problem in enumerate(problems[:MAX_PROBLEMS], start=1)]
        numbered = "\n".join([*lines, *(["and so on"] if len(problems) > MAX_PROBLEMS else [])])
        raise UserError(f"Found {counted(len(problems), 'problem')} {where}:\n{numbered}")


@dataclass(frozen=True)
class Within:
    """Bounds of a number. The number keeps its type: a whole number does not become a float.

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
        # A whole number may be too large for the float to which `math.isfinite` converts it.
        is_finite = isinstance(value, int) or (isinstance(value, Real) and math.isfinite(value))
        is_number = is_finite and not isinstance(value, bool)
        if not (is_number and all(compare(value, bound) for _, bound, compare in self._bounds())):
            bounds = " and ".join(f"{sign} {bound:.15g}" for sign, bound, _ in self._bounds())
            raise RefusedValueError(name, bounds or "to be a number", value)

    def _bounds(self) -> Iterator[tuple[str, float, Callable[[float, float], bool]]]:
        rules = (">=", self.ge, operator.ge), (">", self.gt, operator.gt), ("<=", self.le, operator.le)
        for sign, bound, compare in (*rules, ("<", self.lt, operator.lt)):
            if bound is not None:
                yield sign, bound, compare

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:  # noqa: ANN401  (pydantic's types)
        """Return the schema of the number with these bounds."""
        from pydantic_core import core_schema

        bounds = {key: bound for key, bound in vars(self).items() if bound is not None}
        schema = {**handler(source), **bounds}
        return core_schema.no_info_wrap_validator_function(_as_written, schema) if schema["type"] == "float" else schema


class Whole:
    """Rule for whole numbers of any type, except truth values; `check_fields` applies it to every field of type int."""

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
            nearest = did_you_mean(str(value), self.choices)  # the value in a file may not be a text
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
    """Bounds of the number of entries of a list or a mapping."""

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
Device = Annotated[str, OneOf(("auto", "cpu", "cuda"))]


def check_fields(settings: Any) -> None:  # noqa: ANN401  (any dataclass)
    """Raise ``ValueError`` for the first field of a dataclass whose value its type does not allow."""
    for name, hint in _hints(settings.__class__).items():
        for rule, value in _rules(hint, getattr(settings, name)):
            rule.check(name, value)


class Checked:
    """Base of dataclasses whose fields are checked against their types when an object is made."""

    def __post_init__(self) -> None:
        """Check every field."""
        check_fields(self)


@cache
def _hints(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {name: hints[name] for name in getattr(kind, "__dataclass_fields__", {})}


def _rules(hint: Any, value: Any) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401  (any type, any value)
    """Yield each rule of a type with the value to check, also the rules for the entries of a tuple or list."""
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
            yield from _rules(next(choice for choice in inner if choice is not type(None)), value)
    elif inner and isinstance(value, tuple | list):
        for entry in value:
            yield from _rules(inner[0], entry)


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


def one_of(allowed: Iterable[str], **values: str) -> None:
    """Raise ``ValueError`` unless every named value is one of ``allowed``; name the nearest valid one."""
    for name, value in values.items():
        OneOf(tuple(allowed)).check(name, value)


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the choice nearest to ``word``, or an empty string."""
    choice = nearest(word, choices)
    return "" if choice is None else f" Did you mean {choice!r}?"


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice nearest to ``word``, or None if none is near."""
    return next(iter(get_close_matches(word, list(choices), n=1, cutoff=0.6)), None)


def first_sentence(error: Exception) -> str:
    """Return the kind and the first sentence of an error, whose text may be pages long."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0].partition('. ')[0].rstrip('.')[:150]}."


def counted(number: int, singular: str, plural: str = "") -> str:
    """Return a number with its noun, whose plural ends in ``s`` unless another is given.

    Examples
    --------
    >>> counted(1, "run"), counted(2, "run"), counted(0, "person", "persons or records")
    ('1 run', '2 runs', '0 persons or records')
    """
    return f"{number} {singular if number == 1 else plural or f'{singular}s'}"


def shown(text: str) -> str:
    r"""Return a text in which characters that a terminal would not print are escaped: line breaks, colours, directions.

    Use it for texts from outside in messages, such as the name of a patient or of a file. A page in HTML or Markdown
    escapes its own characters in addition.

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
