"""Items with their labels and owners, checked once, at the door."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from zetadp.base.validation import UserError, first_sentence, name_key, shown
from zetadp.core.records import LabelledItems, checked_owners

logger = logging.getLogger(__name__)

CHECKED_AT_ONCE = 512
"""Items that are in memory together while all are looked at."""
NARROWER = {torch.complex128: torch.complex64, torch.float64: torch.float32, torch.float16: torch.float32}
"""Types of numbers that are converted, and the type that they become."""


HERE = "here"
"""Name of the only holder of records, where hospitals are not named."""


class Records:
    """Items, their labels, and whose they are.

    Parameters
    ----------
    items
        Inputs of a network: a tensor or NumPy array of shape (item, ...), an HDF5 dataset of that shape, or a map-style
        `torch.utils.data.Dataset`, whose elements are (input, label) if ``labels`` is left out. Numbers are complex64
        or float32; others are converted, with a line in the log. HDF5 datasets and torch Datasets stay where they are:
        items are looked up when they are needed.
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
        with _reading():
            source = _source(items)
            labels = _labels_within(items) if labels is None else labels
        before, after = (str(kind).removeprefix("torch.") for kind in (getattr(items, "dtype", ""), source.dtype))
        if before not in ("", after):
            logger.warning("items: converted from %s to %s", before, after)
        targets = _labels(labels)
        owners = checked_owners(patients, "patients")
        lengths = {"items": len(source), "labels": len(targets), "patients": len(owners)}
        if len(set(lengths.values())) > 1:
            found = ", ".join(f"{count} {name}" for name, count in lengths.items())
            raise UserError(f"Records: Expected one label and one patient for each item, found {found}.")
        if not len(source):
            raise UserError("Records: Expected at least one item, found none.")
        codes: dict[str | bytes | int, int] = {}
        numbers = [codes.setdefault(owner, len(codes)) for owner in owners]
        self.inputs: Tensor | LookedUp = source
        self.targets, self.ids, self.owner = targets, tuple(codes), np.array(numbers, dtype=np.int64)
        self.holders: Mapping[str, int] = {HERE: len(codes)}
        with _reading():
            self.digest = self._checked()

    @classmethod
    def _of(cls, **attributes: Any) -> Self:  # noqa: ANN401  (attributes of a class)
        """Return records that follow from others, which were checked."""
        made = object.__new__(cls)
        vars(made).update(attributes)
        return made

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
        kinds = {(tuple(each.shape[1:]), each.dtype) for each in inputs}
        if len(kinds) > 1:
            found = ", ".join(f"{shape} of {str(kind).removeprefix('torch.')}" for shape, kind in kinds)
            raise UserError(f"hospitals: Expected items of one shape and type everywhere, found {found}.")
        whose: dict[str, tuple[Any, str]] = {}
        for name, part in hospitals.items():
            for key, one in part.keys.items():
                first, place = whose.setdefault(key, (one, name))
                if place != name:
                    raise UserError(
                        f"hospitals: Expected each patient at one hospital, found {first!r} at {place} and {one!r} at "
                        f"{name}. Give two persons two ids. Leave the records of one person out at one hospital, or "
                        "give each hospital a run of its own: their account adds up what the patient spends."
                    )
        whole = [each for each in inputs if isinstance(each, Tensor)]
        before = np.cumsum([0, *(part.units for part in parts)])
        return cls._of(
            inputs=torch.cat(whole) if len(whole) == len(inputs) else LookedUp(_Joined(inputs)),
            targets=torch.cat([part.targets for part in parts]),
            ids=tuple(one for part in parts for one in part.ids),
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
        """The patients' ids, by the form in which they are compared (`zetadp.base.validation.name_key`)."""
        return {name_key(one): one for one in self.ids}

    @property
    def texts(self) -> list[str]:
        """For each patient, the text by which an account knows the patient, however the id is written."""
        return [id_text(key) for key in self.keys]

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        each = np.bincount(self.owner)
        shape = tuple(self.inputs.shape[1:])
        return (
            f"Records: {len(self)} items of shape {shape} ({str(self.inputs.dtype).removeprefix('torch.')}) of "
            f"{self.units} patients, {each.min()} to {each.max()} each"
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
        marks = [hashlib.sha256(f"{seed} {id_text(one)}".encode()).hexdigest() for one in self.ids]
        chosen = set(sorted(range(self.units), key=marks.__getitem__)[:test])
        within = np.isin(self.owner, list(chosen))
        return self._part(~within), self._part(within)

    @property
    def places(self) -> list[list[int]]:
        """For each patient, the positions of the items."""
        order = self.owner.argsort(kind="stable")
        ends = np.cumsum(np.bincount(self.owner, minlength=self.units))[:-1]
        return [part.tolist() for part in np.split(order, ends)]

    @property
    def nodes(self) -> list[list[list[int]]]:
        """For each holder and each of its patients, the positions of the items."""
        places = iter(self.places)
        return [[next(places) for _ in range(count)] for count in self.holders.values()]

    @property
    def items(self) -> LabelledItems:
        """Items and labels as training takes them."""
        return LabelledItems(self.inputs, self.targets)  # type: ignore[arg-type]

    def _part(self, of: np.ndarray) -> Self:
        """Return the records of some items; patients keep all or none of theirs."""
        positions = np.flatnonzero(of)
        inputs, places = self.inputs, torch.from_numpy(positions)
        kept, owner = np.unique(self.owner[of], return_inverse=True)
        return self._of(
            inputs=inputs[places] if isinstance(inputs, Tensor) else inputs.part(positions),
            targets=self.targets[places],
            ids=tuple(self.ids[code] for code in kept),
            owner=owner,
            holders={HERE: len(kept)},
            digest=hashlib.sha256(f"{self.digest} {positions.tolist()}".encode()).hexdigest(),
        )

    def _checked(self) -> str:
        """Look at every item once; return a hash of all of them. It is private: never write it without a key."""
        digest = hashlib.sha256()
        for start in range(0, len(self.inputs), CHECKED_AT_ONCE):
            places = torch.arange(start, min(start + CHECKED_AT_ONCE, len(self.inputs)))
            part = self.inputs[places]
            if not torch.isfinite(torch.view_as_real(part) if part.is_complex() else part).all():
                finite = torch.isfinite(part).flatten(1).all(dim=1)
                item = int(places[~finite][0])
                owner = shown(str(self.ids[self.owner[item]]))
                raise UserError(
                    f"items: Expected finite numbers, found NaN or infinity in item {item} (patient {owner}). Mend the "
                    "item, or leave this patient out and declare a smaller population."
                )
            digest.update(part.contiguous().numpy().data)
        if self.targets.is_floating_point() and not torch.isfinite(self.targets).all():
            raise UserError("labels: Expected finite numbers, found NaN or infinity. Leave those items out.")
        digest.update(self.targets.contiguous().numpy().data)
        return digest.hexdigest()


class LookedUp:
    """Inputs that stay where they are, on a disk or in a torch Dataset, and are looked up when they are needed.

    It has what training needs of a tensor of inputs: shape, type, device, and items by position.

    Parameters
    ----------
    source
        HDF5 dataset or map-style torch Dataset.
    places
        For each item, its position in the source; None takes all.
    device
        Device on which items arrive.

    Attributes
    ----------
    shape, dtype, device
        As of a tensor of all inputs.
    """

    def __init__(
        self,
        source: Any,  # noqa: ANN401  (many kinds)
        places: np.ndarray | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.source, self.device = source, torch.device(device)
        self.places = np.arange(len(source)) if places is None else places
        first = self._items([int(self.places[0])])
        self.dtype, self.shape = first.dtype, torch.Size((len(self.places), *first.shape[1:]))

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, wanted: Tensor | np.ndarray) -> Tensor:
        """Return the inputs at positions of any shape."""
        positions = np.asarray(wanted.cpu() if isinstance(wanted, Tensor) else wanted)
        unique, back = np.unique(self.places[positions], return_inverse=True)
        found = self._items(unique.tolist()).to(self.device)
        return found[torch.from_numpy(back.reshape(positions.shape)).to(self.device)]

    def part(self, positions: np.ndarray) -> Self:
        """Return some of the inputs."""
        return type(self)(self.source, self.places[positions])

    def to(self, device: torch.device) -> Self:
        """Return the same inputs, which arrive on another device."""
        return type(self)(self.source, self.places, device)

    def _items(self, places: list[int]) -> Tensor:
        """Return the items at places of the source, each once and in ascending order."""
        if isinstance(self.source, _Joined):
            return self.source.items(places)
        if not isinstance(self.source, torch.utils.data.Dataset):
            # HDF5 reads many items at once, several times as fast.
            return _usable(torch.from_numpy(np.asarray(self.source[places])))
        items = (self.source[place] for place in places)
        return _usable(
            torch.stack([torch.as_tensor(one[0] if isinstance(one, tuple | list) else one) for one in items])
        )


class _Joined(torch.utils.data.ConcatDataset[Any]):
    """Inputs of several holders, one after the other, of which each holder's are looked up at once."""

    def items(self, places: list[int]) -> Tensor:
        """Return the items at places in ascending order."""
        first = [0, *self.cumulative_sizes]
        parts = np.split(np.asarray(places), np.searchsorted(places, first[1:-1]))
        holders = zip(self.datasets, parts, first[:-1], strict=True)
        return torch.cat([own[torch.from_numpy(part - before)] for own, part, before in holders if len(part)])


@contextmanager
def _reading() -> Iterator[None]:
    """Turn any error of items that cannot be used or read into one message."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError, IndexError, KeyError, OSError) as error:
        raise UserError(
            "items: Expected a tensor, array or dataset of numbers, with items of one shape that can be looked up by "
            f"position. Reading them failed: {first_sentence(error)}"
        ) from error


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
    return _usable(_tensor(items, "items"))


def _labels_within(items: Any) -> list[Any]:  # noqa: ANN401  (a user may give anything)
    """Return the labels of a torch Dataset of (input, label)."""
    if not isinstance(items, torch.utils.data.Dataset) or not isinstance(items[0], tuple | list):
        raise UserError("labels: Expected labels, found none. Only a torch Dataset of (input, label) brings its own.")
    return [items[place][1] for place in range(len(items))]  # type: ignore[arg-type]


def _labels(labels: Any) -> Tensor:  # noqa: ANN401  (a user may give anything)
    """Return labels as a tensor: whole numbers and booleans as int64, others as items are."""
    found = _tensor(labels, "labels")
    return _usable(found) if found.is_floating_point() or found.is_complex() else found.long()


def _tensor(values: Any, name: str) -> Tensor:  # noqa: ANN401  (a user may give anything)
    """Return values as a tensor in memory."""
    try:
        if isinstance(values, Sequence) and values and isinstance(values[0], Tensor):
            return torch.stack(list(values))
        found = torch.as_tensor(values if isinstance(values, Tensor) else np.asarray(values))
    except (KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        remedy = " Number the names of classes: np.unique(names, return_inverse=True)[1]." if name == "labels" else ""
        raise UserError(
            f"{name}: Expected a tensor or an array of numbers, found {type(values).__name__}: {first_sentence(error)}"
            f"{remedy}"
        ) from error
    if found.ndim == 0:
        raise UserError(f"{name}: Expected one for each item, found a single number.")
    return found


def _usable(items: Tensor) -> Tensor:
    """Return items in a type that networks take."""
    if items.dtype in (torch.complex64, torch.float32):
        return items
    if items.dtype in NARROWER:
        return items.to(NARROWER[items.dtype])
    if items.dtype == torch.bool or not (items.is_floating_point() or items.is_complex()):
        return items.to(torch.float32)
    raise UserError(f"items: Expected numbers of type complex64 or float32, found {items.dtype}.")


def id_text(owner: str | bytes | int) -> str:
    """Return a text that stands for an id as it is written in every process."""
    return f"{type(owner).__name__} {owner!r}"
