"""What the network that a user brings must be like to be trained and stored, whatever its layers compute."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from zetadp.base.tensors import packed
from zetadp.base.usercode import user_code
from zetadp.base.validation import UserError
from zetadp.mechanism.dropout import LAYERS
from zetadp.training.stateless import copied, embedded, same

COMPILED = "_orig_mod"
"""Name under which `torch.compile` has the network that it wraps."""
PRECISE = (torch.float32, torch.complex64)


def check_own(model: nn.Module) -> None:
    """Raise `UserError` for a user's own network that cannot be trained privately.

    It has trained weights, of type float32 or complex64; each weight is finite and has one name; draws of dropout are a
    unit's own; and no autocast is on.
    """
    if not isinstance(model, nn.Module):
        raise UserError(f"model: Expected a torch.nn.Module, found {type(model).__name__}.")
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise UserError(
            "model: Expected a network in Python, found one of torch.jit, which has no gradients for single patients. "
            "Give the network from before torch.jit.script or torch.jit.trace."
        )
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            raise UserError(
                f"model: Expected training in float32, found torch.autocast for {device}. After rounding to few bits a "
                "clipped gradient can be longer than the clip. Train outside torch.autocast."
            )
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise UserError(
            "model: Expected trained weights, found none that requires a gradient. Call "
            "model.requires_grad_() first: a trained model comes frozen."
        )
    for name, value in model.state_dict(keep_vars=True).items():
        if not isinstance(value, Tensor):
            raise UserError(
                f"model: Expected a network whose state is tensors, found {type(value).__name__} as {name!r}, which no "
                "file of weights holds. Leave get_extra_state out, or keep it as a buffer."
            )
        if isinstance(value, nn.parameter.UninitializedParameter) or value.is_meta:
            raise UserError(
                f"model: Expected weights with values, found {name!r} without. Evaluate an item, or load it."
            )
        if not torch.isfinite(value).all():
            raise UserError(f"model: Expected finite starting weights, found NaN or infinity in {name!r}.")
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        other = names.setdefault(id(parameter), name)
        if other != name:
            raise UserError(
                f"model: Expected each weight once, found {name!r} tied to {other!r}. Use the module twice instead, or "
                "give each its own weight."
            )
    for name, module in model.named_modules():
        if isinstance(module, _DropoutNd) and not isinstance(module, LAYERS) and module.p > 0 and module.training:
            kind = type(module).__name__
            raise UserError(
                f"model: Expected layers whose draws are each unit's own, found {kind} as {name!r}. Use "
                "torch.nn.Dropout, or set p to 0."
            )
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype not in PRECISE:
            conversion = "to(torch.complex64)" if parameter.is_complex() else "float()"
            raise UserError(
                f"model: Expected parameters of type float32 or complex64, found {parameter.dtype} as {name!r}. "
                f"Convert them, for instance with model.{conversion}."
            )


def embedding_hint(model: nn.Module) -> str:
    """Return what to do about an error of a network with embeddings, which take whole numbers."""
    if embedded(model) is None:
        return ""
    return " Items are float32 or complex64. Let an embedding of n rows take items.long().clamp(0, n - 1)."


def plain_name(name: str) -> str:
    """Return the name of a parameter or buffer without the names that `torch.compile` puts in front."""
    return ".".join(part for part in name.split(".") if part != COMPILED)


def uncompiled(model: nn.Module) -> nn.Module:
    """Return a network without the wrappers of `torch.compile`, which it and its layers may have; it is changed."""
    while isinstance(inner := getattr(model, COMPILED, None), nn.Module):
        model = inner
    for name, layer in model.named_children():
        if (plain := uncompiled(layer)) is not layer:
            setattr(model, name, plain)
    return model


def state_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return weights and buffers of a network by their plain names, in the processor's memory."""
    return {plain_name(name): value.detach().cpu() for name, value in model.state_dict().items()}


def take_tensors(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give a network the weights and buffers of a file, by their plain names, whether it is compiled or not.

    Raises
    ------
    RuntimeError
        If names or shapes are those of another network.
    """
    names = {plain_name(name): name for name in model.state_dict()}
    values = {plain_name(name): value for name, value in tensors.items()}
    model.load_state_dict({names.get(name, name): value for name, value in values.items()})


def check_storable(model: nn.Module) -> None:
    """Raise `UserError` for a network that a file of weights would not give back, before anything is spent on it."""
    tensors = state_tensors(model)
    for name, value in tensors.items():
        failed = f"model: Expected weights and buffers that safetensors stores, found {value.dtype} as {name!r}: "
        with user_code(failed, " Convert it to float32 or complex64."):
            packed({name: value}, {})
    twin = copied(model)
    failed = "model: Expected a network that takes its own state back (load_state_dict), found an error: "
    with user_code(failed, " No file of its weights could be loaded."):
        take_tensors(twin, tensors)
        again = state_tensors(twin)
    if again.keys() != tensors.keys() or not same([*again.values()], [*tensors.values()]):
        raise UserError(
            "model: Expected a network that takes its own state back (load_state_dict), found other weights after it. "
            "No file of its weights could be loaded."
        )
