"""Opacus's privacy engine for complex-valued networks and for patients with several samples.

As in Opacus, the engine takes a network, an optimizer and data, and returns private versions of them. There are three
differences: the sampling probability is explicit, samples can belong to patients, who are drawn independently with that
probability, and the engine refuses settings that are wrong for complex parameters (`zetadp.opacus.optimizer.REFUSED`).
An example is in docs/opacus.md.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Literal

import opacus
import torch
from opacus.accountants import IAccountant
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, default_collate

from zetadp.base.validation import UserError, in_range, one_of, positive
from zetadp.core.records import checked_owners
from zetadp.opacus.gradients import ComplexGradSampleModule, FirstBatches
from zetadp.opacus.optimizer import NOBODY, BatchOwners, PatientOptimizer, check_network, refuse
from zetadp.privacy.accounting import epsilon
from zetadp.privacy.calibration import noise_for_epsilon
from zetadp.privacy.kinds import Kind, NoisySum


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


KEPT = (
    "collate_fn",
    "generator",
    "num_workers",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "prefetch_factor",
    "persistent_workers",
)
"""Settings of a data loader that are kept. Batch size, sampler and shuffling are not: patients are drawn instead."""


class PrivacyEngine(opacus.PrivacyEngine):  # type: ignore[misc]
    """Makes a network, an optimizer and a dataset private, and tracks the privacy cost.

    Parameters
    ----------
    accountant
        ``"pld"`` for zetadp's own tight accountant, or ``"prv"`` or ``"rdp"`` for those of Opacus.
    secure_mode
        Refused.

    Notes
    -----
    PyTorch draws the noise in floating point. This is good enough for experiments, but not for a release of models that
    were trained on real patients.
    """

    def __init__(self, *, accountant: Literal["pld", "prv", "rdp"] = "pld", secure_mode: bool = False) -> None:
        refuse(secure_mode=secure_mode, accountant=accountant)
        one_of(("pld", "prv", "rdp"), accountant=accountant)
        with warnings.catch_warnings():
            # Opacus advises its secure mode, which would leave imaginary parts without noise.
            warnings.filterwarnings("ignore", "Secure RNG turned off", UserWarning)
            super().__init__(accountant="prv" if accountant == "pld" else accountant)
        if accountant == "pld":
            self.accountant = PLDAccountant()

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        data_loader: DataLoader[Any] | Dataset[Any],
        sampling_probability: float,
        noise_multiplier: float,
        max_grad_norm: float,
        patients: Sequence[Hashable] | torch.Tensor | None = None,
        population: int | None = None,
        rounds: int | None = None,
        loss_reduction: Literal["mean", "sum"] = "mean",
        noise_generator: torch.Generator | None = None,
        criterion: Callable[[Any, Any], torch.Tensor] | None = None,
        poisson_sampling: bool = True,
        clipping: str = "flat",
        grad_sample_mode: str = "hooks",
    ) -> tuple[ComplexGradSampleModule, PatientOptimizer, PatientLoader]:
        """Return network, optimizer and loader for private training. The training loop needs no change.

        Parameters
        ----------
        module, optimizer
            The network, in training mode, and an optimizer of its parameters.
        data_loader
            A dataset, or a loader with a dataset. The new loader uses the given loader's generator, collation and
            workers, but not its batch size and shuffling.
        sampling_probability
            Chance p that a patient is drawn in a round.
        noise_multiplier
            sigma: standard deviation of the noise in each real part and in each imaginary part, divided by the clipping
            norm.
        max_grad_norm
            The clipping norm B of one patient's gradient over all parameters.
        patients
            Patient of each item of the dataset, by any labels, none of them missing. By default each item is a separate
            patient.
        population
            Declared number of patients N, a public constant. The divisor is ``p N``. The default is the number of
            patients in the data, which then becomes public: the guarantee does not hide how many patients there are.
        rounds
            Number of batches in one pass over the loader. The default is about ``1 / p``.
        loss_reduction
            ``"mean"`` or ``"sum"``, as in `PatientOptimizer`.
        noise_generator
            Generator of the noise. The default is PyTorch's global generator.
        criterion
            The loss that the training loop computes from outputs and targets, so that it can be checked: it must be a
            mean or a sum over samples. The engine cannot see a loss that is not passed here.
        poisson_sampling, clipping, grad_sample_mode
            Same as in Opacus. The accepted values are True, ``"flat"``, and ``"hooks"`` or ``"functorch"``.

        Raises
        ------
        UserError
            If a setting is refused, or the arguments contradict each other.
        """
        refuse(poisson_sampling=poisson_sampling, clipping=clipping, grad_sample_mode=grad_sample_mode)
        one_of(("flat",), clipping=clipping)
        one_of(("hooks", "functorch"), grad_sample_mode=grad_sample_mode)
        one_of(("mean", "sum"), loss_reduction=loss_reduction)
        if isinstance(max_grad_norm, list | tuple):
            refuse(clipping="per_layer")
        positive(max_grad_norm=max_grad_norm, sampling_probability=sampling_probability)
        in_range(0, 1, sampling_probability=sampling_probability)
        in_range(0, math.inf, noise_multiplier=noise_multiplier)
        check_network(module, optimizer)
        self.validate(module=module, optimizer=None, data_loader=None)

        batch_owners = BatchOwners()
        loader = _loader(data_loader, patients, sampling_probability, rounds, batch_owners)
        if population is None:
            population = loader.population
        if population < loader.population:
            raise UserError(
                f"Expected at most population={population} patients in the dataset, found {loader.population}."
            )
        automatic = grad_sample_mode == "functorch"
        check = FirstBatches(module, automatic=automatic, criterion=criterion, batch_owners=batch_owners)
        private_module = ComplexGradSampleModule(
            module, loss_reduction=loss_reduction, force_functorch=automatic, check=check
        )
        private_module.forbid_grad_accumulation()
        private_optimizer = PatientOptimizer(
            optimizer.original_optimizer if isinstance(optimizer, DPOptimizer) else optimizer,
            batch_owners=batch_owners,
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            expected_patients=sampling_probability * population,
            loss_reduction=loss_reduction,
            generator=noise_generator,
        )
        private_optimizer.attach_step_hook(self.accountant.get_optimizer_hook_fn(sample_rate=sampling_probability))
        return private_module, private_optimizer, loader

    def make_private_with_epsilon(
        self,
        *,
        target_epsilon: float,
        target_delta: float,
        rounds: int,
        sampling_probability: float,
        **settings: Any,  # noqa: ANN401
    ) -> tuple[ComplexGradSampleModule, PatientOptimizer, PatientLoader]:
        """Return what `make_private` returns, with the least noise for which ``rounds`` rounds cost ``target_epsilon``.

        Parameters
        ----------
        target_epsilon, target_delta
            Guarantee for all of these rounds together, by privacy-loss distribution. Earlier rounds of this engine are
            not included.
        rounds
            Number of batches in one pass over the loader. The whole training is one pass.
        sampling_probability
            Chance that a patient is drawn in a round.
        **settings
            The other arguments of `make_private`, except ``noise_multiplier``.
        """
        noise = noise_for_epsilon(target_epsilon, target_delta, sampling_probability, rounds)
        return self.make_private(
            noise_multiplier=noise, rounds=rounds, sampling_probability=sampling_probability, **settings
        )


def _loader(
    source: DataLoader[Any] | Dataset[Any],
    patients: Sequence[Hashable] | torch.Tensor | None,
    sampling_probability: float,
    rounds: int | None,
    batch_owners: BatchOwners,
) -> PatientLoader:
    """Return a loader of Poisson-sampled patients over the dataset of `source`."""
    settings = {name: getattr(source, name) for name in KEPT} if isinstance(source, DataLoader) else {}
    dataset: Any = source.dataset if isinstance(source, DataLoader) else source
    if isinstance(dataset, IterableDataset):
        raise UserError("Expected a dataset whose items can be drawn by number, found an IterableDataset.")
    numbers: dict[Hashable, int] = {}
    labels = range(len(dataset)) if patients is None else checked_owners(patients, "patients")
    owners = [numbers.setdefault(label, len(numbers)) for label in labels]
    if len(owners) != len(dataset) or not owners:
        raise UserError(
            f"Expected a patient for each of the {len(dataset)} items of the dataset, found {len(owners)} labels."
        )
    if rounds is None:
        rounds = max(1, round(1 / sampling_probability))
    positive(rounds=rounds)
    if rounds != int(rounds):
        raise UserError(f"Expected a whole number of rounds, found {rounds}.")
    return PatientLoader(
        dataset,
        owners,
        sampling_probability=sampling_probability,
        rounds=rounds,
        batch_owners=batch_owners,
        **settings,
    )


class PLDAccountant(IAccountant):  # type: ignore[misc]
    """Composes rounds by privacy-loss distribution. Its epsilon is a tight upper bound."""

    def __init__(self) -> None:
        self.history: list[tuple[float, float, int]] = []

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Record one round."""
        steps = 1
        if self.history and self.history[-1][:2] == (noise_multiplier, sample_rate):
            steps += self.history.pop()[2]
        self.history.append((noise_multiplier, sample_rate, steps))

    def get_epsilon(self, delta: float, **_: Any) -> float:  # noqa: ANN401
        """Return epsilon for all rounds so far, as an upper bound; other keywords are ignored."""
        rounds: Counter[Kind] = Counter()
        for noise_multiplier, sample_rate, steps in self.history:
            rounds[NoisySum(sample_rate, noise_multiplier)] += steps
        return epsilon(rounds, delta)

    def __len__(self) -> int:
        return sum(steps for _, _, steps in self.history)

    @classmethod
    def mechanism(cls) -> str:
        """Return the name of the accountant."""
        return "pld"
