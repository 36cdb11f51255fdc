"""What a run may cost, as a value and as the text that names runs; guarantees are rounded up, never down."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import Annotated, Any

from zetadp.base.validation import Checked, Filled, RefusedValueError, UserError, Within

UNCLIPPED = "unclipped"
"""Label of a run without clipping and without noise."""
CONSENT = "I know that this protects nobody"
"""Sentence that a user must write to train without noise on real patients."""
SMALLEST_DELTA = 1e-10
"""Smallest delta. Below it, rounding errors of the Fourier transform that composes distributions matter."""
USELESS = 1000
"""Largest epsilon of a person that is a guarantee of any use."""


def epsilon_value(label: str | float) -> float:
    """Return epsilon as a number; ``"inf"`` (clipped, no noise) and ``"unclipped"`` (neither) are infinity.

    Raises
    ------
    UserError
        If the label is neither of the two nor a number above zero.
    """
    if label == UNCLIPPED:
        return math.inf
    try:
        value = float(label)
    except ValueError:
        value = math.nan
    if not value > 0:
        raise UserError(f"Expected epsilon above zero, inf or unclipped, found {label!r}.")
    return value


def epsilon_label(value: str | float) -> str:
    """Return the spelling of epsilon that tables and names of folders use: six digits, never above its value.

    Examples
    --------
    >>> [epsilon_label(value) for value in ("1.0", 0.5, 1e6, 1.2345678, "inf", "unclipped")]
    ['1', '0.5', '1e06', '1.23456', 'inf', 'unclipped']
    """
    if value == UNCLIPPED:
        return UNCLIPPED
    number = epsilon_value(value)
    label = f"{number:g}"
    return (label if float(label) <= number else f"{number * (1 - 1e-5):g}").replace("+", "")


def epsilon_order(label: str) -> tuple[float, bool]:
    """Return the key that sorts epsilons: by size, then infinity, then unclipped."""
    return epsilon_value(label), label == UNCLIPPED


def epsilon_shown(label: str) -> str:
    """Return epsilon as tables and figures print it: ``"∞"`` for infinity."""
    return "∞" if label == "inf" else label


def epsilon_named(label: str) -> str:
    """Return the name of an epsilon in tables, cards and figures: ``"ε = 3"``, ``"ε = ∞"`` or ``"unclipped"``."""
    return label if label == UNCLIPPED else f"ε = {epsilon_shown(label)}"


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


class AsEpsilon:
    """Type of an epsilon in settings: a number above zero, inf or unclipped, which becomes its standard text."""

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
        """Return the JSON schema, for editors."""
        return {"type": ["number", "string"]}

    @staticmethod
    def label(value: Any) -> str:  # noqa: ANN401  (a user may give anything)
        """Return the text of an epsilon."""
        try:
            return epsilon_label(value)
        except (UserError, TypeError) as error:
            raise ValueError(str(error)) from error


class SpeltAsEpsilon(AsEpsilon):
    """The one text of an epsilon, which parts of names are."""

    def check(self, name: str, value: Any) -> None:  # noqa: ANN401  (a user may give anything)
        """Raise ``ValueError`` for another spelling."""
        super().check(name, value)
        if not isinstance(value, str) or self.label(value) != value:
            raise ValueError(f"Expected {name} as the text {self.label(value)!r}, found {value!r}.")


EpsilonLabel = Annotated[str, SpeltAsEpsilon()]
Epsilons = Annotated[list[Annotated[str, AsEpsilon()]], Filled()]
Delta = Annotated[float, Within(ge=SMALLEST_DELTA, le=1 - SMALLEST_DELTA)]


@dataclass(frozen=True)
class Target(Checked):
    """What a run may cost one unit, and whether it clips.

    There are three kinds: an epsilon with its delta; an infinite epsilon, for a run that clips and adds no noise; and
    one that is not even clipped. Names of runs hold a target as a text, which `label` makes and `named` reads.

    Attributes
    ----------
    epsilon
        Epsilon; infinite without noise.
    delta
        The delta at which it holds.
    clipped
        Whether contributions are clipped. What is not clipped cannot be hidden by noise.

    Raises
    ------
    ValueError
        If delta or epsilon is out of range, or epsilon is finite without clipping.

    Examples
    --------
    >>> [Target.named(label, 1e-3).label for label in ("8", "inf", "unclipped")]
    ['8', 'inf', 'unclipped']
    """

    epsilon: float
    delta: Delta
    clipped: bool = True

    def __post_init__(self) -> None:
        """Check both numbers, and that they agree with the clipping."""
        super().__post_init__()
        if not self.epsilon > 0:
            raise RefusedValueError("epsilon", "above zero", self.epsilon)
        if self.private and not self.clipped:
            raise RefusedValueError("epsilon", "to be infinite without clipping", self.epsilon)

    @classmethod
    def named(cls, label: str, delta: float) -> Target:
        """Return the target that a part of a run's name stands for, at a delta."""
        return cls(epsilon_value(label), delta, clipped=label != UNCLIPPED)

    @property
    def label(self) -> str:
        """The target's part of a run's name; the number in it is at most epsilon."""
        return epsilon_label(self.epsilon) if self.clipped else UNCLIPPED

    def check_population(self, people: int) -> None:
        """Refuse a delta above 1 / number of people: a release of one whole person in such a number would meet it.

        Raises
        ------
        UserError
            If it is above; its key is ``delta``.
        """
        if self.delta * people > 1:
            raise UserError(
                f"Expected delta of at most 1 / {people}, the number of patients, found {self.delta:g}.", "delta"
            )

    @property
    def private(self) -> bool:
        """Whether an epsilon is promised, so that the run needs noise."""
        return math.isfinite(self.epsilon)
