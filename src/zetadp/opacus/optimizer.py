r"""Opacus's optimizer with the patient as the unit and noise for complex parameters, and checks of the network.

Each step sums the gradients of the patients that were drawn, each clipped to norm B over all parameters, adds noise of
standard deviation :math:`\sigma B` to every real part **and** to every imaginary part, and divides by the expected
number of patients. ``torch.normal`` with a complex dtype, as Opacus calls it, gives each part half that variance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import chain

import torch
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.grad_sample import AbstractGradSampleModule
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from zetadp.accounting.kinds import Kind, NoisySum
from zetadp.base.validation import UserError
from zetadp.mechanism.clipping import clip_factors
from zetadp.opacus.loader import BATCH_NOT_SPLIT, NOBODY, PatientLoader


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
    if any(name.rpartition(".")[2] == "_orig_mod" for name, _ in module.named_modules()):
        raise UserError("Expected a network that is not compiled. Pass the one that was given to torch.compile.")
    check_precision(*(p for p in module.parameters() if p.requires_grad))
    optimized = set(chain.from_iterable(group["params"] for group in optimizer.param_groups))
    if not optimized <= set(module.parameters()):
        raise UserError("Expected an optimizer of this network's parameters, found one that holds others too.")
    left_out = [name for name, p in module.named_parameters() if p.requires_grad and p not in optimized]
    if left_out:
        raise UserError(
            f"Expected an optimizer of all trained parameters, found one without {left_out[0]!r}. Freeze what is not "
            "trained: requires_grad_(False)."
        )


def check_precision(*tensors: Tensor) -> None:
    """Raise `UserError` for parameters or gradients in half precision, or if autocast would convert them to it."""
    for tensor in tensors:
        device = tensor.device.type
        dtypes = [tensor.dtype, *([torch.get_autocast_dtype(device)] if torch.is_autocast_enabled(device) else [])]
        for dtype in dtypes:
            if torch.finfo(dtype).bits < torch.finfo(torch.float32).bits:
                raise UserError(
                    f"zetadp.opacus refuses half precision, found {dtype}. After rounding to so few bits, a clipped "
                    "gradient can be longer than max_grad_norm. Use float32 or complex64 parameters without autocast."
                )


class PatientOptimizer(DPOptimizer):  # type: ignore[misc]
    """An optimizer that clips one gradient per patient and adds noise to real and imaginary parts alike.

    Parameters
    ----------
    optimizer
        The optimizer that changes the parameters.
    loader
        The loader of the batches.
    noise_multiplier
        sigma: standard deviation of the noise in each real component, in units of the clipping norm.
    max_grad_norm
        The clipping norm B of one patient's gradient over all parameters.
    expected_patients
        Expected number R of patients in a batch, a public constant, by which the noisy sum is divided.
    rounds
        Number of releases so far of each kind; every step adds one.

    Notes
    -----
    A patient whose gradient is not finite contributes zero. The clipping factor is rounded down by about 1e-6, as in
    Opacus, so that rounding never makes a clipped gradient longer than B.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        loader: PatientLoader,
        noise_multiplier: float,
        max_grad_norm: float,
        expected_patients: float,
        rounds: Counter[Kind],
    ) -> None:
        super().__init__(
            optimizer,
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            expected_batch_size=expected_patients,
        )
        self.loader, self.rounds = loader, rounds

    def pre_step(self, closure: Callable[[], float] | None = None) -> bool:
        """Set the gradient of each parameter to the noisy sum over the patients drawn, divided by R."""
        owners, sampling_probability = self.loader.take()
        gradients = self._patient_gradients(owners)
        # Counted here and not in Opacus's hook, which users can replace, and with the values that this step uses.
        self.rounds[NoisySum(sampling_probability, self.noise_multiplier)] += 1
        factors, finite = clip_factors(gradients, self.max_grad_norm)
        for p, gradient in zip(self.params, gradients, strict=True):
            # Zero times infinity is not zero, so the values of gradients that are not finite are replaced by zero.
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
        has_owner = owners != NOBODY
        patients, row, counts = torch.unique(owners[has_owner], return_inverse=True, return_counts=True)
        gradients = []
        for p in self.params:
            per_sample = getattr(p, "grad_sample", None)
            samples = per_sample if torch.is_tensor(per_sample) else p.new_zeros(0)
            # Checked again in every step: a network can be converted, and autocast entered, after make_private.
            check_precision(p, samples)
            samples = samples.to(p.dtype)
            if len(samples) != len(owners):
                raise UserError(
                    f"Expected one gradient for each of the {len(owners)} samples of the batch, found {len(samples)}. "
                    "Pass the network the loader's batches whole, with samples along the first axis of every layer."
                )
            parts = torch.view_as_real(samples.resolve_conj()) if p.is_complex() else samples
            parts = parts.flatten(1)[has_owner.to(parts.device)]
            sums = parts.new_zeros(len(patients), parts.shape[1]).index_add_(0, row.to(parts.device), parts)
            gradients.append(sums / counts.to(sums)[:, None])
        return gradients

    def signal_skip_step(self, do_skip: bool = True) -> None:
        """Refuse to split a batch into several passes: a split patient would be clipped and counted twice."""
        if do_skip:
            raise UserError(BATCH_NOT_SPLIT)
