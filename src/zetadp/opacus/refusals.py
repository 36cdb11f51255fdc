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

from zetadp.validation import UserError

_GHOST = (
    "Ghost clipping takes the norm of a complex gradient as the root of sum g^2, not of sum |g|^2. That can be zero: "
    "nothing is clipped then, and there is no bound. Use hooks or functorch."
)
REFUSED: dict[tuple[str, object], str] = {
    ("secure_mode", True): (
        "Its noise is real: imaginary parts would be released bare. And summing float draws does not hide their "
        "low-order bits. Leave it out."
    ),
    ("accountant", "gdp"): (
        "The central-limit formula is no bound: epsilon can be larger than it says. Use pld, prv or rdp."
    ),
    ("poisson_sampling", False): "Without Poisson sampling none of the accountants is valid. Leave it on.",
    ("clipping", "per_layer"): "Clipping layer by layer stops with a type error on complex parameters. Use flat.",
    ("clipping", "adaptive"): "Adaptive clipping stops with a type error on complex parameters. Use flat.",
    ("grad_sample_mode", "ew"): (
        "Expanded weights hand gradients on without conjugating them, so every layer but the last learns from wrong "
        "ones. Use hooks or functorch."
    ),
    ("grad_sample_mode", "ghost"): _GHOST,
    ("grad_sample_mode", "ghost_fsdp"): _GHOST,
    ("grad_sample_mode", "no_op"): "Gradients that come from elsewhere cannot be checked here. Use hooks or functorch.",
}


def refuse(**settings: object) -> None:
    """Raise `UserError` where a setting is one of those in `REFUSED`."""
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
        # Complex batch normalisations are classes of their own, in several libraries; their name is what they share.
        if "batchnorm" in type(layer).__name__.lower() or getattr(layer, "track_running_stats", False):
            raise UserError(
                f"Layer {name!r} ({type(layer).__name__}) mixes the samples of a batch or keeps statistics of them, so "
                "no patient has a gradient of its own. Use group normalisation (zetadp.nn.normalisation)."
            )
    check_precision(*(p for p in module.parameters() if p.requires_grad))
    own = set(module.parameters())
    if any(p not in own for p in chain.from_iterable(group["params"] for group in optimizer.param_groups)):
        raise UserError("Expected an optimizer of this network's parameters, found one that holds others too.")


def check_precision(*tensors: Tensor) -> None:
    """Raise `UserError` for parameters or gradients in half precision, and where autocast would make them so."""
    for tensor in tensors:
        device = tensor.device.type
        kinds = [tensor.dtype, *([torch.get_autocast_dtype(device)] if torch.is_autocast_enabled(device) else [])]
        for kind in kinds:
            if torch.finfo(kind).bits < torch.finfo(torch.float32).bits:
                raise UserError(
                    f"zetadp.opacus refuses half precision, found {kind}. After rounding to so few bits, a clipped "
                    "gradient can be longer than max_grad_norm. Use float32 or complex64 parameters without autocast."
                )
