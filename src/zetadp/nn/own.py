"""Networks that a user of the library brings: what is refused of them, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from zetadp.nn.settings import OWN
from zetadp.validation import UserError

if TYPE_CHECKING:
    from torch import nn

    from zetadp.core.plan import Plan

PRECISE = (torch.float32, torch.complex64)


def check_own(model: nn.Module, plan: Plan) -> None:
    """Refuse a network that private training cannot be true for.

    Parameters
    ----------
    model
        The network.
    plan
        The plan that it is to be trained by.

    Raises
    ------
    UserError
        If the plan is not for a network of one's own; if a layer mixes units, by its statistics over a batch; if a
        layer draws at random, which no seed of the plan could repeat; or if a parameter is not float32 or complex64.
    """
    if plan.network.family != OWN:
        raise UserError(
            f"Expected a plan whose network is NetworkSettings('{OWN}') for a model of one's own, found family "
            f"{plan.network.family}."
        )
    for name, module in model.named_modules():
        kind = type(module).__name__
        if isinstance(module, _BatchNorm) or (isinstance(module, _InstanceNorm) and module.track_running_stats):
            raise UserError(
                f"Expected layers that keep units apart, found {kind} as {name!r}: its statistics mix the images of "
                "different units. Use group normalisation (zetadp.nn.normalisation has a complex one)."
            )
        if isinstance(module, torch.nn.modules.dropout._DropoutNd) and module.p > 0:
            raise UserError(f"Expected layers without draws of their own, found {kind} as {name!r}. Set its p to 0.")
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype not in PRECISE:
            raise UserError(f"Expected parameters of type float32 or complex64, found {parameter.dtype} as {name!r}.")
