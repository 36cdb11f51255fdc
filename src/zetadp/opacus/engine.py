"""Opacus's privacy engine for complex-valued networks and for patients with several samples.

As in Opacus, the engine takes a network, an optimizer and data, and returns private versions of them. There are three
differences: the sampling probability is explicit, samples can belong to patients, who are drawn independently with that
probability, and the engine takes no settings that are wrong for complex parameters. docs/opacus.md lists these and has
an example.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from opacus.optimizers import DPOptimizer
from opacus.validators import ModuleValidator
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from zetadp.accounting.calibration import noise_for_epsilon
from zetadp.accounting.composition import epsilon
from zetadp.accounting.kinds import Kind
from zetadp.base.validation import UserError, in_range, positive
from zetadp.opacus.checks import FirstBatches
from zetadp.opacus.gradients import ComplexGradSampleModule
from zetadp.opacus.loader import PatientLoader
from zetadp.opacus.optimizer import PatientOptimizer, check_network


class PrivacyEngine:
    """Makes a network, an optimizer and a dataset private, and tracks the privacy cost by privacy-loss distribution.

    Notes
    -----
    PyTorch draws the noise in floating point. This is good enough for experiments, but not for a release of models that
    were trained on real patients.
    """

    def __init__(self) -> None:
        self._rounds: Counter[Kind] = Counter()

    @property
    def rounds(self) -> Counter[Kind]:
        """Number of rounds so far of each kind of release, by this engine.

        After a restart, add the earlier rounds:
        ``engine.rounds[NoisySum(sampling_probability, noise_multiplier)] += done``.
        """
        return self._rounds

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
            A dataset, or a loader of all items of one. The new loader uses the given loader's generator and collation,
            but not its batch size, shuffling and worker processes. A loader that leaves items out, or gives some more
            often than others, is refused: pass ``torch.utils.data.Subset(dataset, indices)``.
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
            The loss that the training loop computes from outputs and targets, so that it can be checked: one number,
            which must be a mean over samples. The engine cannot see a loss that is not passed here. With a sum, one
            patient can change the released sum by many times ``max_grad_norm``.

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

        loader = PatientLoader(data_loader, patients, sampling_probability=sampling_probability, rounds=rounds)
        if population is None:
            population = loader.population
        if population < loader.population:
            raise UserError(
                f"Expected at most population={population} patients in the dataset, found {loader.population}."
            )
        check = FirstBatches(module, criterion=criterion, loader=loader)
        private_module = ComplexGradSampleModule(module, check=check)
        private_module.forbid_grad_accumulation()
        private_optimizer = PatientOptimizer(
            optimizer.original_optimizer if isinstance(optimizer, DPOptimizer) else optimizer,
            loader=loader,
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            expected_patients=sampling_probability * population,
            rounds=self.rounds,
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
