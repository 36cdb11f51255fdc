"""Items of a batch must not change each other's gradients: looked for in network and loss before every training."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from zetadp.core.records import Records
from zetadp.privacy.clipping import Losses, one_an_item
from zetadp.validation import UserError


@torch.no_grad()
def check_apart(model: nn.Module, losses: Losses, records: Records) -> None:
    """Refuse a network, or a loss, by which items change each other's gradients: then no clip bounds one unit.

    The first item goes through beside the second and beside the third. Whatever differs has looked at its neighbour.

    Parameters
    ----------
    model
        The network.
    losses
        Loss of each item.
    records
        Items; where there are fewer than three, nothing is found.

    Raises
    ------
    UserError
        Names the layer, or the loss.
    """
    if len(records.inputs) < 3:
        return
    # Of a copy whose weights are away from zero, where nothing would show.
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
    # In the order of calls: layers are done before what they are part of.
    for name, found in seen.items():
        half = len(found) // 2
        pairs = zip(found[:half], found[half:], strict=True)
        if all(torch.allclose(one, other, rtol=1e-4, equal_nan=True) for one, other in pairs):
            continue
        whose = f"layer {name!r} ({type(twin.get_submodule(name)).__name__})" if name else "loss, or network as a whole"
        raise UserError(
            f"Expected items that do not change each other's gradients, found a {whose} that mixes those of a batch."
        )
