"""The public constants of a training: what its users declare, and what its guarantee is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Self

from zetadp.base.calls import checked_calls
from zetadp.base.names import checked_name, checked_path
from zetadp.base.storage import read_json, write_json
from zetadp.base.validation import Positive, RefusedValueError, UserError, Within, check_fields, whole
from zetadp.training.settings import MOST_ROUNDS

if TYPE_CHECKING:
    from zetadp.training.plan import Plan

CLIP = 0.1
"""Default clip: the best of 24 settings on three kinds of data (docs/results/benchmarks/defaults.csv)."""
RAREST = 1e-6
"""Smallest probability with which a patient may be drawn in a round."""


@checked_calls()
@dataclass(frozen=True)
class Public:
    """The public constants of a training. You declare them; they are never counted from the data.

    They are part of the guarantee: data that do not match are refused, and anyone who reads the ledger sees them. An
    object of this class is valid, or it cannot be made.

    Attributes
    ----------
    population
        Number of patients. With several hospitals, a dict of the number of each by the hospital's name.
    per_round
        Expected number of patients drawn in a round, from all hospitals together. Each is drawn by itself, so the
        number varies. All of them if it equals the population.
    rounds
        Number of rounds, each with one step of the optimiser. The guarantee is for all of them.
    items_per_patient
        Items that make a patient's gradient in a round, which is their mean. If a patient has more, this number is
        chosen at random in each round; if fewer, all are taken.
    clip
        Largest norm of one patient's gradient, B. Noise grows with it, and a smaller one shortens more gradients. With
        the default optimiser, which does not see the scale of gradients, 0.1 does well.

    Raises
    ------
    UserError
        If a value is not allowed; the message names it.

    Examples
    --------
    >>> print(Public(population=800, per_round=100, rounds=50))
    800 patients, about 100 of them in each of 50 rounds. Gradient of each patient: of one item, norm at most 0.1.
    """

    population: int | Mapping[str, int]
    per_round: Positive
    rounds: Annotated[int, Within(ge=1, le=MOST_ROUNDS)]
    items_per_patient: Annotated[int, Within(ge=1, le=2**31)] = 1
    clip: Annotated[float, Within(ge=1e-9, le=1e9)] = CLIP

    def __post_init__(self) -> None:
        """Check every value, and keep all as plain numbers of Python."""
        sizes = self.population if isinstance(self.population, Mapping) else {"": self.population}
        if not sizes:
            raise UserError("population: Expected the number of patients of one hospital or more, found none.")
        try:
            for name, size in sizes.items():
                if isinstance(self.population, Mapping):
                    checked_name(name, "population")
                whole(1, 10**9, population=size)
            check_fields(self)
        except RefusedValueError as error:
            raise UserError(f"{error.key}: {error}", error.key) from error
        people = sum(sizes.values())
        if not RAREST * people <= self.per_round <= people:
            raise UserError(
                f"per_round: Expected from {RAREST * people:g} to {people} patients, found {self.per_round:g}."
            )
        plain: dict[str, Any] = {name: int(size) for name, size in sizes.items()}
        values = {
            "population": MappingProxyType(plain) if isinstance(self.population, Mapping) else plain[""],
            "per_round": float(self.per_round),
            "rounds": int(self.rounds),
            "items_per_patient": int(self.items_per_patient),
            "clip": float(self.clip),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """Return the public constants that a plan holds, of all its nodes together."""
        sizes = {node.name: node.population for node in plan.nodes}
        return cls(
            population=sizes if len(sizes) > 1 else plan.people,
            per_round=plan.expected(),
            rounds=plan.training.rounds,
            items_per_patient=plan.together,
            clip=plan.training.clip,
        )

    @property
    def people(self) -> int:
        """Declared number of patients, at all hospitals together."""
        return sum(self.population.values()) if isinstance(self.population, Mapping) else self.population

    def __str__(self) -> str:
        return self.described()

    def described(self, unit: str = "patient") -> str:
        """Return the constants in words, with the word for what is protected."""
        sizes = self.population if isinstance(self.population, Mapping) else {}
        where = f" ({', '.join(f'{size} at {name}' for name, size in sizes.items())})" if sizes else ""
        sample = "all" if self.per_round == self.people else f"about {self.per_round:g}"
        items = "of one item" if self.items_per_patient == 1 else f"mean over at most {self.items_per_patient} items"
        return (
            f"{self.people} {unit}s{where}, {sample} of them in each of {self.rounds} rounds. Gradient of each {unit}: "
            f"{items}, norm at most {self.clip:g}."
        )

    def to_json(self) -> dict[str, Any]:
        """Return the constants as a JSON object."""
        sizes = self.population
        return {**vars(self), "population": dict(sizes) if isinstance(sizes, Mapping) else sizes}

    @classmethod
    def from_json(cls, content: object) -> Self:
        """Read constants that `to_json` wrote.

        Raises
        ------
        UserError
            If a key is missing or unknown, or a value is not allowed.
        """
        known = [one.name for one in fields(cls)]
        if not isinstance(content, Mapping) or not {*known[:3]} <= {*content} <= {*known}:
            description = (
                f"the keys {', '.join(map(str, content))}" if isinstance(content, Mapping) else f"{content!r:.60}"
            )
            raise UserError(f"Expected public constants with the keys {', '.join(known)}, found {description:.200}.")
        return cls(**content)

    def write(self, path: Path | str) -> None:
        """Write the constants as a JSON file."""
        write_json(checked_path(path, "path"), self.to_json())

    @classmethod
    def read(cls, path: Path | str) -> Self:
        """Read the file that `write` wrote; raise `UserError` as `from_json` does."""
        content = read_json(checked_path(path, "path"))
        try:
            return cls.from_json(content)
        except UserError as error:
            raise UserError(f"{path}: {error}") from error

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_json, (self.to_json(),)
