"""Batches of patients, each drawn independently with a given probability."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from zetadp.opacus.optimizer import NOBODY, BatchOwners


class PatientSampler(Sampler[list[int]]):
    """Draws every patient independently in every round, with all of its samples.

    Parameters
    ----------
    owners
        Number of the patient that each sample belongs to.
    sampling_probability
        Chance that a patient is drawn in a round.
    rounds
        Number of rounds in one pass.
    generator
        Generator of the draws. The default is PyTorch's global generator.
    """

    def __init__(
        self, owners: Sequence[int], sampling_probability: float, rounds: int, generator: torch.Generator | None
    ) -> None:
        self.samples: list[list[int]] = [[] for _ in range(max(owners) + 1)]
        for sample, owner in enumerate(owners):
            self.samples[owner].append(sample)
        self.sampling_probability, self.rounds, self.generator = sampling_probability, rounds, generator

    def __len__(self) -> int:
        return self.rounds

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(self.rounds):
            # Double precision: single would round the probability to a multiple of 2^-24.
            uniform = torch.rand(len(self.samples), dtype=torch.float64, generator=self.generator)
            drawn = (uniform < self.sampling_probability).nonzero().flatten().tolist()
            yield [sample for patient in drawn for sample in self.samples[patient]]


class PatientLoader(DataLoader[Any]):
    """A data loader of Poisson-sampled patients that reports the owners of each batch's samples to the optimizer.

    If a round draws no patient, the batch is a single sample of zeros. It has no owner and contributes nothing. The
    round still releases noise, and no layer gets an empty batch.

    Parameters
    ----------
    dataset
        A map-style dataset.
    owners
        Number of the patient that each item of the dataset belongs to, counted from 0.
    sampling_probability
        Chance that a patient is drawn in a round.
    rounds
        Number of batches in one pass over the loader.
    batch_owners
        Object that passes the owners of a batch's samples to the optimizer.
    generator
        Generator of the draws. The default is PyTorch's global generator.
    collate_fn
        Function that makes a batch from a list of items.
    **settings
        Passed on to `torch.utils.data.DataLoader`.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        owners: Sequence[int],
        *,
        sampling_probability: float,
        rounds: int,
        batch_owners: BatchOwners,
        generator: torch.Generator | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        **settings: Any,  # noqa: ANN401
    ) -> None:
        collate_fn = collate_fn or default_collate
        stand_in = tree_map(lambda x: torch.zeros_like(x) if torch.is_tensor(x) else x, collate_fn([dataset[0]]))
        super().__init__(
            _Owned(dataset, owners),
            batch_sampler=PatientSampler(owners, sampling_probability, rounds, generator),
            collate_fn=_Collate(collate_fn, stand_in),
            generator=generator,
            **settings,
        )
        self.sampling_probability, self.batch_owners, self.population = (
            sampling_probability,
            batch_owners,
            max(owners) + 1,
        )

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for owners, batch in super().__iter__():
            self.batch_owners.put(owners, batch)
            yield batch


class _Owned(Dataset[Any]):
    """A dataset whose items include their patient, so that worker processes keep the two together."""

    def __init__(self, dataset: Dataset[Any], owners: Sequence[int]) -> None:
        self.dataset, self.owners = dataset, owners

    def __len__(self) -> int:
        return len(self.owners)

    def __getitem__(self, index: int) -> tuple[int, Any]:
        return self.owners[index], self.dataset[index]


class _Collate:
    """Collates samples and their owners; a class, not a closure, because worker processes pickle it."""

    def __init__(self, collate: Callable[[list[Any]], Any], stand_in: Any) -> None:  # noqa: ANN401
        self.collate, self.stand_in = collate, stand_in

    def __call__(self, items: list[tuple[int, Any]]) -> tuple[Tensor, Any]:
        if not items:
            return torch.tensor([NOBODY]), self.stand_in
        return torch.tensor([owner for owner, _ in items]), self.collate([item for _, item in items])
