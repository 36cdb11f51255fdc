"""Features of Opacus that are wrong for complex parameters or for patients, each with its reason."""

from __future__ import annotations

from itertools import chain

import torch
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.grad_sample import AbstractGradSampleModule
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from zetadp.base.validation import UserError

_GHOST = (
    "Ghost clipping computes the norm of a complex gradient from sum g^2 instead of sum |g|^2. That can be zero, and "
    "then nothing is clipped and there is no bound. Use hooks or functorch."
)
REFUSED: dict[tuple[str, object], str] = {
    ("secure_mode", True): (
        "Its noise is real, so imaginary parts would be released without noise. And sums of float draws do not hide "
        "their low-order bits. Leave it out."
    ),
    ("accountant", "gdp"): (
        "Its central-limit formula is not a bound: the true epsilon can be larger. Use pld, prv or rdp."
    ),
    ("poisson_sampling", False): "Without Poisson sampling no accountant here is valid. Leave it on.",
    ("clipping", "per_layer"): "Clipping layer by layer stops with a type error on complex parameters. Use flat.",
    ("clipping", "adaptive"): "Adaptive clipping stops with a type error on complex parameters. Use flat.",
    ("grad_sample_mode", "ew"): (
        "Expanded weights pass gradients on without conjugating them, so all layers but the last get wrong gradients. "
        "Use hooks or functorch."
    ),
    ("grad_sample_mode", "ghost"): _GHOST,
    ("grad_sample_mode", "ghost_fsdp"): _GHOST,
    ("grad_sample_mode", "no_op"): "Gradients from other code cannot be checked here. Use hooks or functorch.",
}


def refuse(**settings: object) -> None:
    """Raise `UserError` if a setting with its value is in `REFUSED`."""
    for setting in settings.items():
        if setting in REFUSED:
            raise UserError(f"zetadp.opacus refuses {setting[0]}={setting[1]!r}. {REFUSED[setting]}")


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
        # Several libraries have complex batch normalisations. Their classes have only the name in common.
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
