"""Complex-valued layers, activations and networks that compute one gradient per person at the cost of one in all.

docs/api.md lists the names below. Layers take complex tensors, or stacked real ones (`zetadp.nn.stacked`), which saves
conversions between layers.
"""

from __future__ import annotations

from zetadp.base import lazily

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
__getattr__, __dir__ = lazily(__name__, {name: f"zetadp.nn.{module}" for name, module in _PUBLIC.items()})
