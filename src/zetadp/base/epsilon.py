"""What a run may cost, as a value; guarantees as text, rounded up and never down."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from functools import total_ordering
from typing import Annotated, Any, Self

from zetadp.base.validation import RefusedValueError, UserError, Within

CONSENT = "I know that this protects nobody"
"""Sentence that a user must write to train without noise on real patients."""
SMALLEST_DELTA = 1e-10
"""Smallest delta. Below it, rounding errors of the Fourier transform that composes distributions matter."""
USELESS = 1000
"""Largest epsilon of a person that is a guarantee of any use."""
LARGEST_EXPONENT = 700.0
"""Largest exponent whose power of e is a double. Beyond it there is no privacy, whatever the exact value."""
FALSE_ALARMS = (0.01, 0.05, 0.1)
"""Rates of false alarms for which texts and pages say how many people the best attack finds or misses."""

_UNCLIPPED = "unclipped"


def rounded_up(value: float | str, digits: int = 4) -> str:
    """Return epsilon, or mu, of a guarantee as text, rounded up: a value below the true one would claim too much.

    Parameters
    ----------
    value
        Zero or more; infinity, also as the word ``"inf"`` of statements, gives ``"inf"``.
    digits
        Significant digits.

    Raises
    ------
    ValueError
        If the value is negative or not a number.

    Examples
    --------
    >>> rounded_up(7.98012), rounded_up(1.0), rounded_up(2.3, digits=3)
    ('7.981', '1', '2.3')
    """
    number = float(value)
    if not number >= 0:
        raise ValueError(f"Expected an epsilon or mu, zero or more, found {value!r}.")
    if number in (0, math.inf):
        return f"{number:g}"
    # The shortest decimal that stands for the number: the binary fraction behind 1.1 is a little above 1.1.
    exact = Decimal(repr(number))
    unit = Decimal((0, (1,), exact.adjusted() - digits + 1))
    return f"{float(exact.quantize(unit, rounding=ROUND_CEILING)):.{digits}g}"


def percent_up(share: float) -> str:
    """Return a share in percent, rounded up: it is a bound.

    Examples
    --------
    >>> percent_up(0.18551)
    '18.6 %'
    """
    return f"{min(100.0, math.ceil(share * 1000 - 1e-9) / 10):.1f} %"


def describe_guarantee(value: float | str) -> str:
    """Return epsilon of a person rounded up, with a remark if it is above 1000; ``none`` if infinite or unknown.

    Raises
    ------
    ValueError
        If the value is negative.

    Examples
    --------
    >>> describe_guarantee(631.24), describe_guarantee(6285.1), describe_guarantee("inf")
    ('631.3', '6286 (no useful guarantee)', 'none')
    """
    if not math.isfinite(float(value)):
        return "none"
    return f"{rounded_up(value)} (no useful guarantee)" if float(value) > USELESS else rounded_up(value)


DELTAS = Within(ge=SMALLEST_DELTA, le=1 - SMALLEST_DELTA)
"""Range of delta."""
Delta = Annotated[float, DELTAS]


def check_delta(delta: float, people: int = 1) -> None:
    """Refuse a delta out of range or above 1 / people: publishing all data of one of them at random would meet it.

    Raises
    ------
    UserError
        If it is; the error's key is ``delta``.
    """
    try:
        DELTAS.check("delta", delta)
    except RefusedValueError as error:
        raise UserError(f"{error} Choose less than 1 / number of patients.", "delta") from error
    if delta * people > 1:
        raise UserError(f"Expected delta of at most 1 / {people}, the number of patients, found {delta:g}.", "delta")


@total_ordering
@dataclass(frozen=True)
class Target:
    """What a run may cost one unit at its delta, and whether it clips.

    There are three kinds: an epsilon; an infinite epsilon, for a run that clips and adds no noise; and one that is not
    even clipped. They are sorted in this order. Files, folders and tables hold a target as a text: `str` makes it, and
    `named` and `read` read it.

    Attributes
    ----------
    epsilon
        Epsilon; infinite without noise. It is rounded down to the six digits of the text, so both are equal.
    clipped
        Whether contributions are clipped. What is not clipped cannot be hidden by noise.

    Raises
    ------
    ValueError
        If epsilon is not above zero, or is finite without clipping.

    Examples
    --------
    >>> [str(Target.read(value)) for value in ("1.0", 0.5, 1e6, 1.2345678, "inf", "unclipped")]
    ['1', '0.5', '1e06', '1.23456', 'inf', 'unclipped']
    """

    epsilon: float
    clipped: bool = True

    def __post_init__(self) -> None:
        """Check epsilon, and that it agrees with the clipping."""
        if not self.epsilon > 0:
            raise RefusedValueError("epsilon", "above zero", self.epsilon)
        if self.private and not self.clipped:
            raise RefusedValueError("epsilon", "to be infinite without clipping", self.epsilon)
        rounded = float(f"{self.epsilon:g}")
        below = rounded if rounded <= self.epsilon else float(f"{self.epsilon * (1 - 1e-5):g}")
        object.__setattr__(self, "epsilon", below)

    def __lt__(self, other: Target) -> bool:
        return (self.epsilon, not self.clipped) < (other.epsilon, not other.clipped)

    def __str__(self) -> str:
        return f"{self.epsilon:g}".replace("+", "") if self.clipped else _UNCLIPPED

    @classmethod
    def read(cls, value: Any) -> Self:  # noqa: ANN401  (a user may give anything)
        """Return the target that a user writes: a number in any spelling, ``inf`` or ``unclipped``.

        Raises
        ------
        UserError
            If it is something else.
        """
        try:
            target = cls(math.inf, clipped=False) if value == _UNCLIPPED else cls(float(value))
            spelled = target.private or value == _UNCLIPPED or "inf" in str(value).lower()
            if isinstance(value, bool) or not spelled:
                raise ValueError(value)  # a number too large for a float does not ask for a run without noise
            return target
        except (OverflowError, TypeError, ValueError) as error:
            raise UserError(f"Expected epsilon above zero, inf or unclipped, found {value!r}.") from error

    @classmethod
    def named(cls, text: Any) -> Self:  # noqa: ANN401  (a file may hold anything)
        """Return the target of a text that `str` has made.

        Raises
        ------
        UserError
            If it is something else, also another spelling of an epsilon.
        """
        target = cls.read(text)
        if text != str(target):
            raise UserError(f"Expected epsilon as the text {str(target)!r}, found {text!r}.")
        return target

    @property
    def private(self) -> bool:
        """Whether an epsilon is promised, so that the run needs noise."""
        return math.isfinite(self.epsilon)

    @property
    def short(self) -> str:
        """The target as axes of figures print it: its text, or ``"∞"``."""
        return "∞" if self.clipped and not self.private else str(self)

    @property
    def title(self) -> str:
        """The target as tables, cards and figures print it: ``"ε = 3"``, ``"ε = ∞"`` or ``"unclipped"``."""
        return f"ε = {self.short}" if self.clipped else str(self)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:  # noqa: ANN401  (pydantic's types)
        """Return the schema of what `read` reads."""
        from pydantic_core import core_schema

        def read(value: Any) -> Target:  # noqa: ANN401  (a user may give anything)
            try:
                return cls.read(value)
            except UserError as error:
                raise ValueError(str(error)) from error

        return core_schema.no_info_plain_validator_function(read)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> Any:  # noqa: ANN401  (pydantic's types)
        """Return the JSON schema, for editors."""
        return {"type": ["number", "string"]}
