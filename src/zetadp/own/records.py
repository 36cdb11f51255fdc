"""Items with their labels and owners, checked once, at the door."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from zetadp.base.arrays import network_numbers, tensor_of
from zetadp.base.calls import checked_calls
from zetadp.base.names import name_key
from zetadp.base.owners import checked_owners
from zetadp.base.validation import UserError, counted, shown
from zetadp.own.looked_up import Joined, LookedUp, other_random_numbers, reading
from zetadp.training.records import LabelledItems
from zetadp.training.stateless import same

logger = logging.getLogger(__name__)

CHECKED_AT_ONCE = 512
"""Items that are in memory together while all are looked at."""
LOOKED_UP_TWICE = 64
"""Items of a dataset that are looked up a second time, to see that they are the same."""
HERE = "here"
"""Name of the only holder of records, where hospitals are not named."""


@checked_calls()
class Records:
    """Items, their labels, and whose they are.

    Parameters
    ----------
    items
        Inputs of a network: a tensor or NumPy array of shape (item, ...), an HDF5 dataset of that shape, or a map-style
        `torch.utils.data.Dataset`, whose elements are (input, label) if ``labels`` is left out. Numbers are complex64
        or float32; others are converted, with a line in the log. HDF5 datasets and torch Datasets stay where they are:
        items are looked up when they are needed. An item must follow from its position alone, without random
        augmentation and without statistics of other patients. `LOOKED_UP_TWICE` items are looked up twice to see that.
    labels
        Correct output for each item: whole numbers of shape (item,) for classes, or what the loss expects.
    patients
        For each item, the id of its owner: a text, a text in UTF-8 or a whole number. An account knows a patient again
        whatever the spaces, capitals and Unicode forms of the id. The guarantee is for one owner with all items.

    Attributes
    ----------
    ids
        The patients' ids, in the order of their first items.
    inputs, targets
        Items, as a tensor or `LookedUp`, and labels.
    owner
        For each item, the position of its patient in ``ids``, shape (item,).
    holders
        Number of patients of each holder, by name, in the order of ``ids``.
    digest
        Hash of all items and labels. It is private: write it keyed only.

    Raises
    ------
    UserError
        If lengths differ, an item has no owner or several, a number is not finite, or a type cannot be used. The
        message names the argument.

    Examples
    --------
    >>> records = Records(np.zeros((4, 2), np.float32), [0, 1, 0, 1], patients=["a", "a", "b", "c"])
    >>> len(records), records.units
    (4, 3)
    """

    def __init__(
        self,
        items: Any,  # noqa: ANN401  (many kinds of arrays)
        labels: Any = None,  # noqa: ANN401  (a user may give anything)
        *,
        patients: Iterable[str | bytes | int] | None = None,
    ) -> None:
        if not isinstance(patients, Iterable) or isinstance(patients, Mapping):
            raise UserError(
                f"patients: Expected the id of each item's patient, found {patients!r:.60}. Give patients=ids, where "
                "ids[i] is the patient of item i."
            )
        with reading():
            source = _source(items)
            labels = _labels_within(items) if labels is None else labels
        before, after = (str(kind).removeprefix("torch.") for kind in (getattr(items, "dtype", ""), source.dtype))
        if before not in ("", after):
            logger.warning("items: converted from %s to %s", before, after)
        targets = _labels(labels)
        owners = checked_owners(patients, "patients")
        lengths = {"items": len(source), "labels": len(targets), "patients": len(owners)}
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{count} {name}" for name, count in lengths.items())
            raise UserError(f"Records: Expected one label and one patient for each item, found {counts}.")
        if not len(source):
            raise UserError("Records: Expected at least one item, found none.")
        codes: dict[str | bytes | int, int] = {}
        numbers = [codes.setdefault(owner, len(codes)) for owner in owners]
        self.inputs: Tensor | LookedUp = source
        self.targets, self.ids, self.owner = targets, tuple(codes), np.array(numbers, dtype=np.int64)
        self.holders: Mapping[str, int] = {HERE: len(codes)}
        with reading():
            self.digest = self._checked()

    @classmethod
    def _of(cls, **attributes: Any) -> Self:  # noqa: ANN401  (attributes of a class)
        """Return records that follow from others, which were checked."""
        records = object.__new__(cls)
        vars(records).update(attributes)
        return records

    @classmethod
    def of_hospitals(cls, hospitals: Mapping[str, Records]) -> Self:
        """Return the records of several holders, by their names, one after the other.

        Raises
        ------
        UserError
            If their items have different shapes or types, or a patient is at two of them.
        """
        parts = [*hospitals.values()]
        inputs: list[Any] = [part.inputs for part in parts]
        kinds = {(tuple(values.shape[1:]), values.dtype) for values in inputs}
        if len(kinds) > 1:
            listed = ", ".join(f"{shape} of {str(kind).removeprefix('torch.')}" for shape, kind in kinds)
            raise UserError(f"records: Expected items of one shape and type everywhere, found {listed}.")
        seen: dict[str, tuple[Any, str]] = {}
        for name, part in hospitals.items():
            for key, patient in part.keys.items():
                first, hospital = seen.setdefault(key, (patient, name))
                if hospital != name:
                    raise UserError(
                        f"records: Expected each patient at one hospital, found {first!r} at {hospital} and "
                        f"{patient!r} at {name}. Give two persons two ids. Leave the records of one person out at one "
                        "hospital, or give each hospital a run of its own: their account adds up what the patient "
                        "spends."
                    )
        tensors = [values for values in inputs if isinstance(values, Tensor)]
        before = np.cumsum([0, *(part.units for part in parts)])
        return cls._of(
            inputs=torch.cat(tensors) if len(tensors) == len(inputs) else LookedUp(Joined(inputs)),
            targets=torch.cat([part.targets for part in parts]),
            ids=tuple(patient for part in parts for patient in part.ids),
            owner=np.concatenate([part.owner + first for part, first in zip(parts, before[:-1], strict=True)]),
            holders={name: part.units for name, part in hospitals.items()},
            digest="".join(part.digest for part in parts),
        )

    @property
    def units(self) -> int:
        """Number of patients."""
        return len(self.ids)

    @property
    def keys(self) -> dict[str, str | bytes | int]:
        """The patients' ids, by the form in which they are compared (`zetadp.base.names.name_key`)."""
        return {name_key(patient): patient for patient in self.ids}

    @property
    def texts(self) -> list[str]:
        """For each patient, the text by which an account knows the patient, however the id is written."""
        return [id_text(key) for key in self.keys]

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        counts = np.bincount(self.owner)
        shape = tuple(self.inputs.shape[1:])
        return (
            f"Records: {len(self)} items of shape {shape} ({str(self.inputs.dtype).removeprefix('torch.')}) of "
            f"{self.units} patients, {counts.min()} to {counts.max()} each"
        )

    def split(self, test: int, seed: int = 0) -> tuple[Self, Self]:
        """Return the records of all other patients, and those of some.

        Who is who follows from the ids and the seed alone, never from items or labels.

        Parameters
        ----------
        test
            Number of patients of the second part.
        seed
            Another seed gives another choice.

        Raises
        ------
        UserError
            If either part would have no patient.
        """
        if not isinstance(test, Integral) or isinstance(test, bool) or not 0 < test < self.units:
            raise UserError(
                f"split: Expected test between 1 and {self.units - 1} of {self.units} patients, found {test!r}."
            )
        marks = [hashlib.sha256(f"{seed} {id_text(patient)}".encode()).hexdigest() for patient in self.ids]
        chosen = set(sorted(range(self.units), key=marks.__getitem__)[:test])
        within = np.isin(self.owner, list(chosen))
        return self._part(~within), self._part(within)

    def split_by(self, hospitals: Mapping[Any, str] | Sequence[str]) -> dict[str, Self]:
        """Return the records of each hospital by its name, as `zetadp.private` takes them.

        Parameters
        ----------
        hospitals
            Name of the hospital of each patient, by the patient's id; or of each item, in their order.

        Raises
        ------
        UserError
            If a patient or item has no hospital, or a patient has items at two hospitals.

        Examples
        --------
        >>> records = Records(np.zeros((3, 2), np.float32), [0, 1, 0], patients=["a", "a", "b"])
        >>> {name: part.units for name, part in records.split_by({"a": "north", "b": "south"}).items()}
        {'north': 1, 'south': 1}
        """
        names = self._hospital_of_patients(hospitals)
        codes = dict.fromkeys(names)
        return {name: self._part(np.array([names[code] == name for code in self.owner])) for name in codes}

    def _hospital_of_patients(self, hospitals: object) -> list[str]:
        """Return the name of each patient's hospital, in the order of ``ids``."""
        expected = "split_by: Expected the name of a hospital for each patient, by id, or for each item"
        if not isinstance(hospitals, Iterable) or isinstance(hospitals, str | bytes):
            raise UserError(f"{expected}, found {hospitals!r:.60}.")
        if isinstance(hospitals, pd.Series) and not hospitals.index.equals(pd.RangeIndex(len(hospitals))):
            if not hospitals.index.is_unique:
                raise UserError(f"{expected}, found a Series with one id in its index more than once.")
            hospitals = hospitals.to_dict()  # by id, not by position
        names = list(hospitals.values() if isinstance(hospitals, Mapping) else hospitals)
        if wrong := [name for name in names if not isinstance(name, str) or not name]:
            raise UserError(f"{expected}, as a text, found {wrong[0]!r:.60}.")
        if isinstance(hospitals, Mapping):
            by_key: dict[str, str] = {}
            for patient, name in hospitals.items():
                if (first := by_key.setdefault(name_key(patient), name)) != name:
                    raise UserError(f"{expected}, found {first!r} and {name!r} for two spellings of {patient!r}.")
            if absent := [patient for key, patient in self.keys.items() if key not in by_key]:
                raise UserError(f"{expected}, found none for {counted(len(absent), 'patient')}, such as {absent[0]!r}.")
            return [by_key[key] for key in self.keys]
        if len(names) != len(self):
            raise UserError(f"{expected}, found {len(names)} names for {len(self)} items.")
        result: dict[int, str] = {}
        for code, name in zip(self.owner.tolist(), names, strict=True):
            if (first := result.setdefault(code, name)) != name:
                raise UserError(
                    f"split_by: Expected each patient at one hospital, found {self.ids[code]!r} at {first} and {name}. "
                    "Leave the items out at one of them."
                )
        return [result[code] for code in range(self.units)]

    @property
    def places(self) -> list[list[int]]:
        """For each patient, the positions of the items."""
        order = self.owner.argsort(kind="stable")
        ends = np.cumsum(np.bincount(self.owner, minlength=self.units))[:-1]
        return [part.tolist() for part in np.split(order, ends)]

    @property
    def nodes(self) -> list[list[list[int]]]:
        """For each holder and each of its patients, the positions of the items."""
        positions = iter(self.places)
        return [[next(positions) for _ in range(count)] for count in self.holders.values()]

    @property
    def items(self) -> LabelledItems:
        """Items and labels as training takes them."""
        return LabelledItems(self.inputs, self.targets)  # type: ignore[arg-type]

    def _part(self, mask: np.ndarray) -> Self:
        """Return the records of some items; patients keep all or none of theirs."""
        positions = np.flatnonzero(mask)
        inputs, indices = self.inputs, torch.from_numpy(positions)
        codes, owner = np.unique(self.owner[mask], return_inverse=True)
        return self._of(
            inputs=inputs[indices] if isinstance(inputs, Tensor) else inputs.part(positions),
            targets=self.targets[indices],
            ids=tuple(self.ids[code] for code in codes),
            owner=owner,
            holders={HERE: len(codes)},
            digest=hashlib.sha256(f"{self.digest} {positions.tolist()}".encode()).hexdigest(),
        )

    def _checked(self) -> str:
        """Look at every item once; return a hash of all of them. It is private: never write it without a key."""
        digest, seen = hashlib.sha256(), dict[int, Tensor]()
        again = np.linspace(0, len(self.inputs) - 1, LOOKED_UP_TWICE).astype(int).tolist()
        for start in range(0, len(self.inputs), CHECKED_AT_ONCE):
            indices = torch.arange(start, min(start + CHECKED_AT_ONCE, len(self.inputs)))
            part = self.inputs[indices]
            if not torch.isfinite(torch.view_as_real(part) if part.is_complex() else part).all():
                finite = torch.isfinite(part).flatten(1).all(dim=1)
                item = int(indices[~finite][0])
                owner = shown(str(self.ids[self.owner[item]]))
                raise UserError(
                    f"items: Expected finite numbers, found NaN or infinity in item {item} (patient {owner}). Mend the "
                    "item, or leave this patient out and declare a smaller population."
                )
            digest.update(part.contiguous().numpy().data)
            if isinstance(self.inputs, LookedUp):
                seen |= {index: part[index - start] for index in again if start <= index < start + len(part)}
        self._look_again(seen)
        if self.targets.is_floating_point() and not torch.isfinite(self.targets).all():
            raise UserError("labels: Expected finite numbers, found NaN or infinity. Leave those items out.")
        digest.update(self.targets.contiguous().numpy().data)
        return digest.hexdigest()

    def _look_again(self, seen: Mapping[int, Tensor]) -> None:
        """Refuse a dataset whose items are not the same when they are looked up again, backwards and one by one.

        Random numbers are in another state then. Random items would show who was drawn, because those of each draw
        follow those of the one before; and neither an interrupted nor a finished run would be known again.
        """
        with other_random_numbers():
            for index, item in sorted(seen.items(), reverse=True):
                if not same([item], [self.inputs[torch.tensor([index])][0]]):
                    raise UserError(
                        "items: Expected a dataset whose item is the same at every look-up, found another one for item "
                        f"{index} when it was looked up again, in another order and with other random numbers. Give "
                        "items that follow from their position alone, without random augmentation or running "
                        "statistics. To augment, store augmented copies as further items of the same patient."
                    )


def _source(items: Any) -> Tensor | LookedUp:  # noqa: ANN401  (a user may give anything)
    """Return items as a tensor, or as something that looks them up."""
    if isinstance(items, torch.utils.data.DataLoader):
        raise UserError(
            "items: Expected items that can be looked up by position, found a DataLoader. Give its dataset, "
            "items=loader.dataset: training draws patients itself, each by chance."
        )
    if isinstance(items, torch.utils.data.IterableDataset):
        raise UserError("items: Expected a dataset with items by position, found an IterableDataset. Store its items.")
    if isinstance(items, torch.utils.data.Dataset) or (hasattr(items, "chunks") and hasattr(items, "dtype")):
        return LookedUp(items)
    return network_numbers(_tensor(items, "items"), "items")


def _labels_within(items: Any) -> list[Any]:  # noqa: ANN401  (a user may give anything)
    """Return the labels of a torch Dataset of (input, label)."""
    if not isinstance(items, torch.utils.data.Dataset) or not isinstance(items[0], tuple | list):
        raise UserError("labels: Expected labels, found none. Only a torch Dataset of (input, label) brings its own.")
    return [items[index][1] for index in range(len(items))]  # type: ignore[arg-type]


def _labels(labels: Any) -> Tensor:  # noqa: ANN401  (a user may give anything)
    """Return labels as a tensor: whole numbers and booleans as int64, others as items are."""
    tensor = _tensor(labels, "labels")
    return network_numbers(tensor, "labels") if tensor.is_floating_point() or tensor.is_complex() else tensor.long()


def _tensor(values: Any, name: str) -> Tensor:  # noqa: ANN401  (a user may give anything)
    """Return values as a tensor in memory, with an axis of items."""
    remedy = " Number the names of classes: np.unique(names, return_inverse=True)[1]." if name == "labels" else ""
    tensor = tensor_of(values, name, hint=remedy)
    if tensor.ndim == 0:
        raise UserError(f"{name}: Expected one for each item, found a single number.")
    return tensor


def id_text(owner: str | bytes | int) -> str:
    """Return a text that stands for an id as it is written in every process."""
    return f"{type(owner).__name__} {owner!r}"
