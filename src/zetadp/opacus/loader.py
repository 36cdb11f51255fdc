"""Batches of Poisson-sampled patients in place of a data loader's batches, and checks of the user's data loader."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    default_collate,
)

from zetadp.base.owners import checked_owners
from zetadp.base.validation import UserError, whole
from zetadp.training.stateless import same

BATCH_NOT_SPLIT = "Opacus's BatchMemoryManager cuts batches anywhere, also within a patient. Train without it."
NOBODY = -1
"""Owner of a sample that stands in for an empty batch; it contributes nothing."""
ADVICE = (
    "zetadp.opacus draws patients itself, from all items of the dataset. Pass the dataset, or a plain DataLoader of "
    "it. To train on some items only, pass torch.utils.data.Subset(dataset, indices)."
)


def checked_sampler(loader: DataLoader[Any]) -> Sampler[int]:
    """Return a loader's sampler; refuse a loader that chooses items, or makes batches, in a special way.

    Batch size, order and worker processes do not affect the items that training uses. The new loader replaces them.

    Raises
    ------
    UserError
        If the loader leaves items out, repeats some more often than others, or makes batches in a special way.
    """
    size = len(loader.dataset)  # type: ignore[arg-type]
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise UserError(
            f"data_loader: Expected a DataLoader that makes batches as PyTorch's does, found {type(loader).__name__}, "
            f"which has an __iter__ of its own. {ADVICE}"
        )
    batches: Any = loader.batch_sampler
    if batches is None:
        raise UserError(
            f"data_loader: Expected a DataLoader that collates items, found batch_size=None. {ADVICE} Each item is a "
            "sample."
        )
    if type(batches) is not BatchSampler:
        raise UserError(f"data_loader: Expected no batch_sampler, found {type(batches).__name__}. {ADVICE}")
    sampler: Any = batches.sampler
    plain = type(sampler) is SequentialSampler or (type(sampler) is RandomSampler and not sampler.replacement)
    if not plain:
        raise UserError(
            f"data_loader: Expected every item with the same chance, found the sampler {type(sampler).__name__}"
            f"{' with replacement' if type(sampler) is RandomSampler else ''}. {ADVICE}"
        )
    if not len(sampler) == len(sampler.data_source) == size:
        raise UserError(
            f"data_loader: Expected a sampler of all {size} items of the dataset, found one of "
            f"{min(len(sampler), len(sampler.data_source))}. {ADVICE}"
        )
    left_out = size % batches.batch_size if batches.drop_last else 0
    # In a random order, other items are dropped in each pass.
    if left_out and (left_out == size or type(sampler) is SequentialSampler):
        raise UserError(
            f"data_loader: Expected a DataLoader of all {size} items of the dataset, found drop_last=True, which "
            f"always drops the last {left_out}. {ADVICE}"
        )
    if loader.num_workers and loader.worker_init_fn is not None:
        raise UserError(
            "data_loader: Expected a DataLoader without worker_init_fn, which would not be called, because items are "
            "read without worker processes. Prepare the dataset before it is passed."
        )
    checked: Sampler[int] = sampler
    return checked


class PatientLoader:
    """Batches of Poisson-sampled patients: each is drawn in every round independently, with all of its samples.

    If a round draws no patient, the batch is a single sample of zeros. It has no owner and contributes nothing. The
    round still releases noise, and no layer gets an empty batch.

    Parameters
    ----------
    source
        A map-style dataset, or a data loader of one, whose generator and collation are taken over.
    patients
        Patient of each item of the dataset, by any labels. None makes each item a patient.
    sampling_probability
        Chance that a patient is drawn in a round.
    rounds
        Number of batches in one pass over the loader; None takes about ``1 / sampling_probability``.

    Attributes
    ----------
    owners
        Patient of each sample of the last batch, integers of shape (sample,). None before the first batch, and after
        each step.
    content
        The last batch, as the collation made it.
    checked
        Whether a network received the whole last batch in training, and was checked.
    """

    owners: Tensor | None = None
    content: Any = None
    checked: bool = False

    def __init__(
        self,
        source: DataLoader[Any] | Dataset[Any],
        patients: Sequence[str | bytes | int] | Tensor | None,
        *,
        sampling_probability: float,
        rounds: int | None,
    ) -> None:
        dataset: Any = source.dataset if isinstance(source, DataLoader) else source
        if isinstance(dataset, IterableDataset):
            raise UserError("Expected a dataset whose items can be drawn by number, found an IterableDataset.")
        if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
            raise UserError(
                f"data_loader: Expected a dataset with a length and numbered items, found {type(dataset).__name__}. "
                f"{ADVICE}"
            )
        self.dataset: Any = dataset
        self.collate: Callable[[list[Any]], Any] = default_collate
        self.generator: torch.Generator | None = None
        if isinstance(source, DataLoader):
            sampler = checked_sampler(source)
            self.collate = source.collate_fn
            # PyTorch draws the order of items with the sampler's generator if it has one.
            self.generator = getattr(sampler, "generator", None) or source.generator
        self._sampling_probability = sampling_probability
        labels = range(len(dataset)) if patients is None else checked_owners(patients, "patients")
        if len(labels) != len(dataset) or not labels:
            raise UserError(
                f"Expected a patient for each of the {len(dataset)} items of the dataset, found {len(labels)} labels."
            )
        samples: dict[Hashable, list[int]] = {}
        for sample, label in enumerate(labels):
            samples.setdefault(label, []).append(sample)
        self._samples = tuple(map(tuple, samples.values()))
        self.rounds = max(1, round(1 / sampling_probability)) if rounds is None else rounds
        whole(1, 10**9, rounds=self.rounds)
        self._largest = 1

    @property
    def sampling_probability(self) -> float:
        """Chance that a patient is drawn in a round. It cannot be set, because divisor and accounting depend on it."""
        return self._sampling_probability

    @property
    def batch_sampler(self) -> None:
        """Refuse to split a batch into several passes: a split patient would be clipped and counted twice."""
        raise UserError(BATCH_NOT_SPLIT)

    @property
    def population(self) -> int:
        """Number of patients in the dataset."""
        return len(self._samples)

    def __len__(self) -> int:
        return self.rounds

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.rounds):
            # Double precision: single would round the probability to a multiple of 2^-24.
            uniform = torch.rand(self.population, dtype=torch.float64, generator=self.generator)
            patients = (uniform < self.sampling_probability).nonzero().flatten().tolist()
            owners = [patient for patient in patients for _ in self._samples[patient]]
            if patients:
                batch = self._collated(
                    [self.dataset[sample] for patient in patients for sample in self._samples[patient]]
                )
            else:
                first = self.collate([self.dataset[0]])
                owners, batch = [NOBODY], tree_map(lambda x: torch.zeros_like(x) if torch.is_tensor(x) else x, first)
            self.owners, self.content, self.checked = torch.tensor(owners), batch, False
            yield batch

    def _collated(self, items: list[Any]) -> Any:  # noqa: ANN401  (as the user's collation makes it)
        """Return a batch. If it is at least twice as large as all earlier ones, check that its rows are the items.

        Raises
        ------
        UserError
            If the collation leaves out, reorders, pads or mixes items: gradients would then go to other patients, or
            depend on them.
        """
        if len(items) < 2 * self._largest:
            return self.collate(items)
        self._largest = len(items)
        single_items = [copy.copy(item) for item in items]  # a collation may change the items
        batch = self.collate(items)
        rows = [_tensors(self.collate([item])) for item in single_items]
        for index, tensor in enumerate(_tensors(batch)):
            if tensor.shape[:1] != (len(items),) or not all(
                len(row) > index
                and tensor[n : n + 1].shape == row[index].shape
                and same([tensor[n : n + 1]], [row[index]])
                for n, row in enumerate(rows)
            ):
                raise UserError(
                    "data_loader: Expected a collate_fn that gives each item of a batch one row, in the order of "
                    "items, with the same numbers whatever else is in the batch. Found another. Leave out, pad and "
                    "change items in the dataset, before they are collated."
                )
        return batch

    def take(self) -> tuple[Tensor, float]:
        """Return the owners of the batch's samples and the chance with which they were drawn, and forget the batch.

        Raises
        ------
        UserError
            If no batch was given since the last step, or if the network was not given it whole: the owners of the
            gradients and their sampling probability would be unknown.
        """
        if self.owners is None:
            raise UserError(
                "Expected one batch of the data loader that make_private returned before each optimizer step, found "
                "none since the last step. Train on that loader, one step a batch; BatchMemoryManager is not supported."
            )
        if not self.checked:
            raise UserError(
                f"Expected each of the {len(self.owners)} samples of the batch along the first axis of an argument of "
                "the network in training, found no such argument. Pass the network the loader's batches whole."
            )
        owners, self.owners, self.content = self.owners, None, None
        return owners, self.sampling_probability


def _tensors(batch: Any) -> list[Tensor]:  # noqa: ANN401  (as the user's collation makes it)
    return [leaf for leaf in tree_leaves(batch) if torch.is_tensor(leaf)]
