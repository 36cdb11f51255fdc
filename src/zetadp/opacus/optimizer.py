r"""Opacus's optimizer with the patient as the unit and with noise for complex parameters, and what is refused.

Each step sums the gradients of the patients that were drawn, each clipped to norm B over all parameters, adds noise of
standard deviation :math:`\sigma B` to every real part **and** to every imaginary part, and divides by the expected
number of patients. ``torch.normal`` with a complex dtype, as Opacus calls it, gives each part half that variance.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.grad_sample import AbstractGradSampleModule
from opacus.optimizers import DPOptimizer
from opacus.optimizers.optimizer import _check_processed_flag, _mark_as_processed
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from zetadp.base.validation import UserError
from zetadp.privacy.clipping import clip_factors


def check_network(module: nn.Module, optimizer: Optimizer) -> None:
    """Raise `UserError` for networks that cannot be made private, and for optimizers of other networks."""
    if isinstance(module, AbstractGradSampleModule):
        raise UserError(
            "Expected a plain network, found one that Opacus has wrapped. Pass module.to_standard_module()."
        )
    if isinstance(module, DistributedDataParallel | DifferentiallyPrivateDistributedDataParallel | FSDPModule):
        raise UserError(
            f"Expected a network on one process, found {type(module).__name__}, which zetadp.opacus does not support."
        )
    for name, layer in module.named_modules():
        # A layer that is frozen, or in evaluation mode for now, keeps to itself only for now. Several libraries have
        # complex batch normalisations, whose classes have only the name in common.
        if "batchnorm" in type(layer).__name__.lower() or getattr(layer, "track_running_stats", False):
            raise UserError(
                f"Layer {name!r} ({type(layer).__name__}) mixes the samples of a batch or keeps statistics of them, so "
                "no patient has a separate gradient. Use group normalisation (zetadp.nn.normalisation)."
            )
    check_precision(*(p for p in module.parameters() if p.requires_grad))
    held = set(chain.from_iterable(group["params"] for group in optimizer.param_groups))
    if not held <= set(module.parameters()):
        raise UserError("Expected an optimizer of this network's parameters, found one that holds others too.")
    left_out = [name for name, p in module.named_parameters() if p.requires_grad and p not in held]
    if left_out:
        raise UserError(
            f"Expected an optimizer of all trained parameters, found one without {left_out[0]!r}. Freeze what is not "
            "trained: requires_grad_(False)."
        )


def check_precision(*tensors: Tensor) -> None:
    """Raise `UserError` for parameters or gradients in half precision, or if autocast would convert them to it."""
    for tensor in tensors:
        device = tensor.device.type
        kinds = [tensor.dtype, *([torch.get_autocast_dtype(device)] if torch.is_autocast_enabled(device) else [])]
        for kind in kinds:
            if torch.finfo(kind).bits < torch.finfo(torch.float32).bits:
                raise UserError(
                    f"zetadp.opacus refuses half precision, found {kind}. After rounding to so few bits, a clipped "
                    "gradient can be longer than max_grad_norm. Use float32 or complex64 parameters without autocast."
                )


NOBODY = -1
"""Owner of a sample that stands in for an empty batch; it contributes nothing."""


class BatchOwners:
    """Owners of the current batch's samples, written by the loader and taken once by the optimizer."""

    def __init__(self) -> None:
        self._owners: Tensor | None = None
        self.batch: Any = None

    def put(self, owners: Tensor, batch: Any) -> None:  # noqa: ANN401  (whatever the collation makes)
        """Set the batch, and the patient of each of its samples, as integers of shape (sample,)."""
        self._owners, self.batch = owners, batch

    @property
    def current(self) -> Tensor | None:
        """Owners of the current batch's samples; None before its loader gave one, and after the optimizer's step."""
        return self._owners

    def take(self) -> Tensor:
        """Return the owners of the samples, and forget them.

        Raises
        ------
        UserError
            If no batch came from the loader since the last step: the owners of the gradients and their sampling
            probability would be unknown.
        """
        if self._owners is None:
            raise UserError(
                "Expected one batch of the data loader that make_private returned before each optimizer step, found "
                "none since the last step. Train on that loader, one step a batch; BatchMemoryManager is not supported."
            )
        owners, self._owners, self.batch = self._owners, None, None
        return owners


class PatientOptimizer(DPOptimizer):  # type: ignore[misc]
    """An optimizer that clips one gradient per patient and adds noise to real and imaginary parts alike.

    Parameters
    ----------
    optimizer
        The optimizer that takes the steps.
    batch_owners
        Owners of each batch's samples.
    noise_multiplier
        sigma: standard deviation of the noise in each real component, in units of the clipping norm.
    max_grad_norm
        The clipping norm B of one patient's gradient over all parameters.
    expected_patients
        Expected number R of patients in a batch, a public constant. It is the divisor if the loss is a mean.
    loss_reduction
        ``"mean"``: a patient's gradient is the mean over the patient's samples, and the noisy sum is divided by R.
        ``"sum"``: the gradient is the sum over the samples, and the noisy sum is not divided.

    Notes
    -----
    A patient whose gradient is not finite contributes zero. The clipping factor is rounded down by about 1e-6, as in
    Opacus, so that rounding never makes a clipped gradient longer than B.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        batch_owners: BatchOwners,
        noise_multiplier: float,
        max_grad_norm: float,
        expected_patients: float,
        loss_reduction: str = "mean",
    ) -> None:
        super().__init__(
            optimizer,
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            expected_batch_size=expected_patients,
            loss_reduction=loss_reduction,
        )
        self.batch_owners = batch_owners

    def clip_and_accumulate(self) -> None:
        """Put the sum of the clipped gradients of the patients drawn into ``summed_grad`` of each parameter."""
        owners = self.batch_owners.take()
        for p in self.params:
            _check_processed_flag(p.grad_sample)
        gradients = self._patient_gradients(owners)
        factors, finite = clip_factors(gradients, self.max_grad_norm)
        for p, gradient in zip(self.params, gradients, strict=True):
            # Zero times infinity is not zero, so the values of a gradient that is not finite go too.
            total = factors.to(gradient.dtype) @ torch.where(finite[:, None], gradient, 0.0)
            p.summed_grad = torch.view_as_complex(total.view(*p.shape, 2)) if p.is_complex() else total.view(p.shape)
            _mark_as_processed(p.grad_sample)

    def _patient_gradients(self, owners: Tensor) -> list[Tensor]:
        """Return for each parameter one real tensor of shape (patient, size), complex parameters as pairs."""
        known = owners != NOBODY
        patients, row, counts = torch.unique(owners[known], return_inverse=True, return_counts=True)
        gradients = []
        for p in self.params:
            samples = self._get_flat_grad_sample(p)
            # Checked again in every step: a network can be converted, and autocast entered, after make_private.
            check_precision(p, samples)
            samples = samples.to(p.dtype)
            if len(samples) != len(owners):
                raise UserError(
                    f"Expected one gradient for each of the {len(owners)} samples of the batch, found {len(samples)}. "
                    "Pass the network the loader's batches whole, with samples along the first axis of every layer."
                )
            parts = torch.view_as_real(samples.resolve_conj()) if p.is_complex() else samples
            parts = parts.flatten(1)[known.to(parts.device)]
            sums = parts.new_zeros(len(patients), parts.shape[1]).index_add_(0, row.to(parts.device), parts)
            gradients.append(sums / counts.to(sums)[:, None] if self.loss_reduction == "mean" else sums)
        return gradients

    def add_noise(self) -> None:
        """Add noise of standard deviation ``noise_multiplier * max_grad_norm`` to every real component."""
        for p in self.params:
            _check_processed_flag(p.summed_grad)
            parts = torch.view_as_real(p.summed_grad) if p.is_complex() else p.summed_grad
            if self.noise_multiplier > 0:
                parts = parts + torch.normal(
                    mean=0.0,
                    std=self.noise_multiplier * self.max_grad_norm,
                    size=parts.shape,
                    device=parts.device,
                    dtype=parts.dtype,
                )
            p.grad = torch.view_as_complex(parts) if p.is_complex() else parts.clone()
            _mark_as_processed(p.summed_grad)

    def signal_skip_step(self, do_skip: bool = True) -> None:
        """Refuse to split a batch into several passes: a split patient would be clipped and counted twice."""
        if do_skip:
            raise UserError(
                "Opacus's BatchMemoryManager cuts batches anywhere, also within a patient. Train without it."
            )
