"""Rules of single settings, as metadata of their types: bounds, choices, spellings.

A settings class is a frozen dataclass with such types, which calls `check_fields` in ``__post_init__``. Reading a file
(`zetadp.base.reading`) takes the same rules from the same types, and so does the schema that editors read.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from numbers import Real
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from zetadp.base.epsilon import epsilon_label
from zetadp.base.validation import UserError, in_range, one_of


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
        is_number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
        if not (is_number and all(compare(value, bound) for _, bound, compare in self._bounds())):
            bounds = " and ".join(f"{sign} {bound:g}" for sign, bound, _ in self._bounds())
            raise ValueError(f"Expected {name} {bounds or 'to be a number'}, found {value!r}.")

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


@dataclass(frozen=True)
class OneOf:
    """Choices of a text."""

    choices: tuple[str, ...]

    def check(self, name: str, value: Any) -> None:  # noqa: ANN401  (a user may give anything)
        """Raise ``ValueError`` unless the value is one of the choices."""
        one_of(self.choices, **{name: value})

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
            raise ValueError(f"Expected {name} to match {self.pattern}, found {value!r}.")

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
        in_range(self.least, self.most or 1e9, **{f"the number of {name}": len(value)})

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:  # noqa: ANN401  (pydantic's types)
        """Return the schema of the list."""
        return {**handler(source), "min_length": self.least} | ({"max_length": self.most} if self.most else {})


class AsEpsilon:
    """Spelling of an epsilon: a number above zero, inf or unclipped, which becomes its one text."""

    def check(self, name: str, value: Any) -> None:  # noqa: ANN401  (a user may give anything)
        """Raise ``ValueError`` unless the value is an epsilon."""
        try:
            self.label(value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:  # noqa: ANN401  (pydantic's types)
        """Return the schema of the text."""
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(self.label)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> Any:  # noqa: ANN401  (pydantic's types)
        """Return what editors may accept."""
        return {"type": ["number", "string"]}

    @staticmethod
    def label(value: Any) -> str:  # noqa: ANN401  (a user may give anything)
        """Return the text of an epsilon."""
        try:
            return epsilon_label(value)
        except (UserError, TypeError) as error:
            raise ValueError(str(error)) from error


Number = Annotated[float, Within()]
Positive = Annotated[float, Within(gt=0)]
NotNegative = Annotated[float, Within(ge=0)]
Share = Annotated[float, Within(ge=0, le=1)]
Count = Annotated[int, Within(ge=1)]
Seed = Annotated[int, Within(ge=0, le=2**63)]
Epsilons = Annotated[list[Annotated[str, AsEpsilon()]], Filled()]


def check_fields(settings: Any) -> None:  # noqa: ANN401  (any dataclass)
    """Raise ``ValueError`` for the first field of a dataclass whose value its type does not allow."""
    for name, hint in _hints(settings.__class__).items():
        for rule, value in _rules(hint, getattr(settings, name)):
            rule.check(name, value)


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
    if type(None) in inner:
        if value is not None:
            yield from _rules(next(each for each in inner if each is not type(None)), value)
    elif inner and isinstance(value, tuple | list):
        for each in value:
            yield from _rules(inner[0], each)


def _as_written(value: Any, check: Any) -> Any:  # noqa: ANN401  (pydantic's types)
    checked = check(value)
    return value if value == checked else checked
