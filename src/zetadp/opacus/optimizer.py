r"""Opacus's optimizer with the patient as the unit and with noise for complex parameters, and what is refused.

Each step sums the gradients of the patients that were drawn, each clipped to norm B over all parameters, adds noise of
standard deviation :math:`\sigma B` to every real part **and** to every imaginary part, and divides by the expected
number of patients. ``torch.normal`` with a complex dtype, as Opacus calls it, gives each part half that variance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.grad_sample import AbstractGradSampleModule
from opacus.optimizers import DPOptimizer
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


@dataclass
class CurrentBatch:
    """The batch that the loader gave last, until the optimizer takes its step on it.

    Attributes
    ----------
    owners
        Patient of each sample, integers of shape (sample,). None before the loader gave a batch, and after the step.
    content
        The batch, as the collation made it.
    """

    owners: Tensor | None = None
    content: Any = None

    def take(self) -> Tensor:
        """Return the owners of the samples, and forget the batch.

        Raises
        ------
        UserError
            If no batch came from the loader since the last step: the owners of the gradients and their sampling
            probability would be unknown.
        """
        if self.owners is None:
            raise UserError(
                "Expected one batch of the data loader that make_private returned before each optimizer step, found "
                "none since the last step. Train on that loader, one step a batch; BatchMemoryManager is not supported."
            )
        owners, self.owners, self.content = self.owners, None, None
        return owners


class PatientOptimizer(DPOptimizer):  # type: ignore[misc]
    """An optimizer that clips one gradient per patient and adds noise to real and imaginary parts alike.

    Parameters
    ----------
    optimizer
        The optimizer that takes the steps.
    current
        The batch that a step is taken on.
    noise_multiplier
        sigma: standard deviation of the noise in each real component, in units of the clipping norm.
    max_grad_norm
        The clipping norm B of one patient's gradient over all parameters.
    expected_patients
        Expected number R of patients in a batch, a public constant, by which the noisy sum is divided.

    Notes
    -----
    A patient whose gradient is not finite contributes zero. The clipping factor is rounded down by about 1e-6, as in
    Opacus, so that rounding never makes a clipped gradient longer than B.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        current: CurrentBatch,
        noise_multiplier: float,
        max_grad_norm: float,
        expected_patients: float,
    ) -> None:
        super().__init__(
            optimizer,
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            expected_batch_size=expected_patients,
        )
        self.current = current

    def pre_step(self, closure: Callable[[], float] | None = None) -> bool:
        """Set the gradient of each parameter to the noisy sum over the patients drawn, divided by R."""
        gradients = self._patient_gradients(self.current.take())
        factors, finite = clip_factors(gradients, self.max_grad_norm)
        for p, gradient in zip(self.params, gradients, strict=True):
            # Zero times infinity is not zero, so the values of a gradient that is not finite go too.
            total = factors.to(gradient.dtype) @ torch.where(finite[:, None], gradient, 0.0)
            if self.noise_multiplier > 0:
                noise = self.noise_multiplier * self.max_grad_norm
                total = total + torch.normal(0.0, noise, total.shape, device=total.device, dtype=total.dtype)
            p.grad = torch.view_as_complex(total.view(*p.shape, 2)) if p.is_complex() else total.view(p.shape)
            p.grad /= self.expected_batch_size
            p.grad_sample = None  # no step may use it again, with the owners of another batch
        if self.step_hook is not None:
            self.step_hook(self)
        return True

    def _patient_gradients(self, owners: Tensor) -> list[Tensor]:
        """Return each parameter's means over a patient's samples, real of shape (patient, size), complex as pairs."""
        known = owners != NOBODY
        patients, row, counts = torch.unique(owners[known], return_inverse=True, return_counts=True)
        gradients = []
        for p in self.params:
            found = getattr(p, "grad_sample", None)
            samples = found if torch.is_tensor(found) else p.new_zeros(0)
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
            gradients.append(sums / counts.to(sums)[:, None])
        return gradients
