"""Complex-valued layers, activations and networks that compute one gradient per person at the cost of one in all.

docs/api.md lists the names below. Layers take complex tensors, or stacked real ones (`zetadp.nn.stacked`), which saves
conversions between layers.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PUBLIC = {
    "Cardioid": "activations",
    "ComplexGroupNorm": "normalisation",
    "ConjMish": "activations",
    "Conv2d": "layers",
    "GroupNorm": "normalisation",
    "Linear": "layers",
    "MagnitudeMaxPool2d": "spectral",
    "Mish": "activations",
    "ModReLU": "activations",
    "NetworkSettings": "settings",
    "activation": "activations",
    "build": "models",
    "initialise": "models",
    "modulus": "stacked",
    "ordinary_operations": "stacked",
    "stack": "stacked",
    "unstack": "stacked",
}

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:  # noqa: ANN401  (whatever the name stands for)
    """Import a public name when it is first used. A module that needs one layer then depends on no other."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'zetadp.nn' has no attribute {name!r}")
    return getattr(import_module(f"zetadp.nn.{_PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_PUBLIC]
