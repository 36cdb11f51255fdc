"""Checks of networks and losses before a run. The main check: items do not change each other's gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from zetadp.base.validation import UserError
from zetadp.core.plan import Plan
from zetadp.core.records import Records
from zetadp.nn.settings import OWN
from zetadp.privacy.contributions import Losses, one_an_item


@torch.no_grad()
def check_apart(model: nn.Module, losses: Losses, records: Records) -> None:
    """Raise `UserError` if items change each other's gradients; clipping would then not bound a unit's influence.

    The first item is passed through the network together with the second item, then with the third. If its outputs
    differ, they depend on the other item.

    Parameters
    ----------
    model
        The network.
    losses
        Loss of each item.
    records
        Items. With fewer than three, nothing is checked.

    Raises
    ------
    UserError
        If items change each other's gradients. The message names the layer or the loss.
    """
    if len(records.inputs) < 3:
        return
    # A copy with its weights moved away from zero, because zero weights would hide a dependence.
    twin, random = copy.deepcopy(model), torch.Generator().manual_seed(0)
    for parameter in twin.parameters():
        moved = 0.1 * torch.randn(parameter.shape, dtype=parameter.dtype, generator=random)
        parameter.add_(moved.to(parameter.device))
    seen: dict[str, list[Tensor]] = {}

    def noting(name: str) -> Callable[[nn.Module, object, object], None]:
        def note(_: nn.Module, __: object, output: object) -> None:
            if isinstance(output, Tensor) and len(output) == 2:
                seen.setdefault(name, []).append(output[0])

        return note

    for name, module in twin.named_modules():
        module.register_forward_hook(noting(name))
    for pair in ([0, 1], [0, 2]):
        outputs = twin(records.inputs[pair])
        seen.setdefault("", []).append(one_an_item(losses, outputs, records.targets[pair])[0])
    # In the order of calls, a layer comes before the module that contains it, so the message names the layer.
    for name, found in seen.items():
        half = len(found) // 2
        pairs = zip(found[:half], found[half:], strict=True)
        if all(torch.allclose(one, other, rtol=1e-4, equal_nan=True) for one, other in pairs):
            continue
        whose = f"layer {name!r} ({type(twin.get_submodule(name)).__name__})" if name else "loss, or network as a whole"
        raise UserError(
            f"Expected items that do not change each other's gradients, found a {whose} that mixes items of a batch."
        )


PRECISE = (torch.float32, torch.complex64)


def check_own(model: nn.Module, plan: Plan) -> None:
    """Raise `UserError` for a user's own network that cannot be trained privately.

    Parameters
    ----------
    model
        The network.
    plan
        Plan of the run.

    Raises
    ------
    UserError
        If the plan's network is not of family ``own``, if a layer mixes units by its statistics over a batch, if a
        layer is a dropout, whose draws no seed of the plan repeats, or if a trained parameter is not float32 or
        complex64.
    """
    if plan.network.family != OWN:
        raise UserError(
            f"Expected a plan whose network is NetworkSettings('{OWN}') for your own model, found family "
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
