"""Opacus's privacy engine for complex-valued networks and for patients with several samples.

As in Opacus, the engine takes a network, an optimizer and data, and returns private versions of them. There are three
differences: the sampling probability is explicit, samples can belong to patients, who are drawn independently with that
probability, and the engine takes no settings that are wrong for complex parameters. docs/opacus.md lists these and has
an example.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from opacus.optimizers import DPOptimizer
from opacus.validators import ModuleValidator
from torch import nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from zetadp.base.validation import UserError, in_range, positive, whole
from zetadp.core.records import checked_owners
from zetadp.opacus.gradients import ComplexGradSampleModule, FirstBatches
from zetadp.opacus.optimizer import NOBODY, CurrentBatch, PatientOptimizer, check_network
from zetadp.privacy.accounting import epsilon
from zetadp.privacy.calibration import noise_for_epsilon
from zetadp.privacy.kinds import Kind, NoisySum


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
    current
        Where the optimizer finds the batch and the owners of its samples.
    """

    def __init__(
        self,
        source: DataLoader[Any] | Dataset[Any],
        patients: Sequence[str | bytes | int] | torch.Tensor | None,
        *,
        sampling_probability: float,
        rounds: int | None,
        current: CurrentBatch,
    ) -> None:
        given = source if isinstance(source, DataLoader) else DataLoader(source)
        dataset: Any = given.dataset
        if isinstance(dataset, IterableDataset):
            raise UserError("Expected a dataset whose items can be drawn by number, found an IterableDataset.")
        self.dataset: Any = dataset
        self.collate = default_collate if given is not source else given.collate_fn
        self.generator, self.sampling_probability, self.current = given.generator, sampling_probability, current
        labels = range(len(dataset)) if patients is None else checked_owners(patients, "patients")
        if len(labels) != len(dataset) or not labels:
            raise UserError(
                f"Expected a patient for each of the {len(dataset)} items of the dataset, found {len(labels)} labels."
            )
        samples: dict[Hashable, list[int]] = {}
        for sample, label in enumerate(labels):
            samples.setdefault(label, []).append(sample)
        self.samples = list(samples.values())
        self.rounds = max(1, round(1 / sampling_probability)) if rounds is None else rounds
        whole(1, 10**9, rounds=self.rounds)

    @property
    def batch_sampler(self) -> None:
        """Refuse to split a batch into several passes: a split patient would be clipped and counted twice."""
        raise UserError("Opacus's BatchMemoryManager cuts batches anywhere, also within a patient. Train without it.")

    @property
    def population(self) -> int:
        """Number of patients in the dataset."""
        return len(self.samples)

    def __len__(self) -> int:
        return self.rounds

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.rounds):
            # Double precision: single would round the probability to a multiple of 2^-24.
            uniform = torch.rand(self.population, dtype=torch.float64, generator=self.generator)
            drawn = (uniform < self.sampling_probability).nonzero().flatten().tolist()
            owners = [patient for patient in drawn for _ in self.samples[patient]]
            if drawn:
                batch = self.collate([self.dataset[sample] for patient in drawn for sample in self.samples[patient]])
            else:
                first = self.collate([self.dataset[0]])
                owners, batch = [NOBODY], tree_map(lambda x: torch.zeros_like(x) if torch.is_tensor(x) else x, first)
            self.current.owners, self.current.content = torch.tensor(owners), batch
            yield batch


class PrivacyEngine:
    """Makes a network, an optimizer and a dataset private, and tracks the privacy cost by privacy-loss distribution.

    Attributes
    ----------
    rounds
        Number of rounds so far of each kind of release, by this engine. After a restart, add the earlier rounds:
        ``engine.rounds[NoisySum(sampling_probability, noise_multiplier)] += done``.

    Notes
    -----
    PyTorch draws the noise in floating point. This is good enough for experiments, but not for a release of models that
    were trained on real patients.
    """

    def __init__(self) -> None:
        self.rounds: Counter[Kind] = Counter()

    def get_epsilon(self, delta: float) -> float:
        """Return epsilon for all rounds so far, as a tight upper bound."""
        return epsilon(self.rounds, delta)

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        data_loader: DataLoader[Any] | Dataset[Any],
        sampling_probability: float,
        noise_multiplier: float,
        max_grad_norm: float,
        patients: Sequence[str | bytes | int] | torch.Tensor | None = None,
        population: int | None = None,
        rounds: int | None = None,
        criterion: Callable[[Any, Any], torch.Tensor] | None = None,
    ) -> tuple[ComplexGradSampleModule, PatientOptimizer, PatientLoader]:
        """Return network, optimizer and loader for private training. The training loop needs no change.

        Parameters
        ----------
        module, optimizer
            The network, in training mode, and an optimizer of its parameters.
        data_loader
            A dataset, or a loader with a dataset. The new loader uses the given loader's generator and collation, but
            not its batch size, shuffling and worker processes.
        sampling_probability
            Chance p that a patient is drawn in a round.
        noise_multiplier
            sigma: standard deviation of the noise in each real part and in each imaginary part, divided by the clipping
            norm.
        max_grad_norm
            The clipping norm B of one patient's gradient over all parameters.
        patients
            Patient of each item of the dataset: texts or whole numbers, none of them missing. By default each item is a
            separate patient.
        population
            Declared number of patients N, a public constant. The divisor is ``p N``. The default is the number of
            patients in the data, which then becomes public: the guarantee does not hide how many patients there are.
        rounds
            Number of batches in one pass over the loader. The default is about ``1 / p``.
        criterion
            The loss that the training loop computes from outputs and targets, so that it can be checked: it must be a
            mean over samples. The engine cannot see a loss that is not passed here.

        Raises
        ------
        UserError
            If a setting is refused, or the arguments contradict each other.
        """
        positive(max_grad_norm=max_grad_norm, sampling_probability=sampling_probability)
        in_range(0, 1, sampling_probability=sampling_probability)
        in_range(0, math.inf, noise_multiplier=noise_multiplier)
        check_network(module, optimizer)
        ModuleValidator.validate(module, strict=True)

        current = CurrentBatch()
        loader = PatientLoader(
            data_loader, patients, sampling_probability=sampling_probability, rounds=rounds, current=current
        )
        if population is None:
            population = loader.population
        if population < loader.population:
            raise UserError(
                f"Expected at most population={population} patients in the dataset, found {loader.population}."
            )
        check = FirstBatches(module, criterion=criterion, current=current)
        private_module = ComplexGradSampleModule(module, check=check)
        private_module.forbid_grad_accumulation()
        private_optimizer = PatientOptimizer(
            optimizer.original_optimizer if isinstance(optimizer, DPOptimizer) else optimizer,
            current=current,
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            expected_patients=sampling_probability * population,
        )
        private_optimizer.attach_step_hook(
            lambda own: self.rounds.update([NoisySum(sampling_probability, own.noise_multiplier)])
        )
        return private_module, private_optimizer, loader

    def make_private_with_epsilon(
        self,
        *,
        target_epsilon: float,
        target_delta: float,
        rounds: int,
        sampling_probability: float,
        **settings: Any,  # noqa: ANN401  (a user's, or Opacus's)
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
