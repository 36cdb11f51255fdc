"""Who holds the records: one place, or several hospitals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any

from zetadp.base.validation import UserError, checked_name
from zetadp.core.records import LabelledItems
from zetadp.front.records import Records, id_text, joined

HERE = "here"
"""Name of the only holder, where hospitals are not named."""


@dataclass(frozen=True)
class Holders:
    """The records by the names of their holders. No patient is at two of them."""

    records: Mapping[str, Records]

    @classmethod
    def of(cls, records: object, hospitals: object) -> Holders:
        """Return the holders that the arguments ``records`` and ``hospitals`` of `private` name."""
        if (records is None) == (hospitals is None):
            raise UserError("records: Expected records, or hospitals with theirs, found both or neither.")
        if hospitals is not None and not (isinstance(hospitals, Mapping) and hospitals):
            raise UserError(
                "hospitals: Expected a dict of records by the hospitals' names, such as {'north': records}, found "
                f"{hospitals!r:.60}."
            )
        held: dict[str, Any] = dict(hospitals) if isinstance(hospitals, Mapping) else {HERE: records}
        whose: dict[object, str] = {}
        for name, own in held.items():
            checked_name(name, "hospitals")
            if not isinstance(own, Records):
                raise UserError(
                    f"records: Expected zetadp.Records, found {type(own).__name__}. Make them first: "
                    "zetadp.Records(items, labels, patients=ids)."
                )
            for one in own.ids:
                other = whose.setdefault(one, name)
                if other != name:
                    raise UserError(
                        f"hospitals: Expected each patient at one hospital, found {one!r} at {other} and {name}. Give "
                        "two persons two ids. Leave the records of one person out at one hospital, or give each "
                        "hospital a run of its own: their account adds up what the patient spends."
                    )
        return cls(held)

    def sizes(self, population: object) -> dict[str, int]:
        """Return the declared number of patients of every holder; refuse data that do not match."""
        sizes: dict[str, Any] = dict(population) if isinstance(population, Mapping) else {HERE: population}
        if set(sizes) != set(self.records):
            raise UserError(
                f"population: Expected a number or, with hospitals, a dict of one for each, found {population!r:.60}."
            )
        for size in sizes.values():
            if not isinstance(size, Integral) or isinstance(size, bool):
                raise UserError(f"population: Expected a whole number of patients, found {size!r}.")
        for name, own in self.records.items():
            if sizes[name] != own.units:
                place = "" if name == HERE else f" at {name}"
                raise UserError(
                    f"population: Expected {sizes[name]} patients{place}, as declared, found {own.units}. Declare the "
                    "number of patients that are handed over; it is a public constant."
                )
        return {name: int(sizes[name]) for name in self.records}

    @property
    def ids(self) -> Iterator[object]:
        """Ids of all patients."""
        return (one for own in self.records.values() for one in own.ids)

    @property
    def id_texts(self) -> Iterator[str]:
        """Texts that stand for the ids in every process."""
        return (id_text(one) for own in self.records.values() for one in own.ids)

    @property
    def digest(self) -> str:
        """Hash of all items and labels. It is private: write it keyed only."""
        return "".join(own.digest for own in self.records.values())

    @cached_property
    def items(self) -> LabelledItems:
        """All items, one holder after the other."""
        return joined([*self.records.values()])

    @cached_property
    def units(self) -> list[list[list[int]]]:
        """For each holder and each of its patients, the positions of the patient's items."""
        units, first = [], 0
        for own in self.records.values():
            units.append([[first + place for place in places] for places in own.places])
            first += len(own)
        return units
