"""All parameters of a network as one flat real vector, and back.

Clipping, noise and the optimiser see this vector: every real and every imaginary part exactly once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Layout:
    """The position of each parameter in the flat vector.

    Attributes
    ----------
    names
        Names of the parameters, in the order of the vector.
    shapes
        Shape of each parameter.
    complex
        Whether each parameter is complex. A complex number takes two neighbouring positions, real part first.
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    complex: tuple[bool, ...]

    @classmethod
    def of(cls, model: nn.Module) -> Layout:
        """Return the layout of a network's trainable parameters, complex ones first.

        A complex view must begin at an even position of the vector, and the number of real parameters can be odd.
        """
        trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        named = sorted(trained, key=lambda entry: not entry[1].is_complex())
        return cls(
            names=tuple(name for name, _ in named),
            shapes=tuple(p.shape for _, p in named),
            complex=tuple(p.is_complex() for _, p in named),
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of real components of each parameter."""
        return tuple(s.numel() * (2 if c else 1) for s, c in zip(self.shapes, self.complex, strict=True))

    @property
    def dimension(self) -> int:
        """Number of real components of the whole vector."""
        return sum(self.sizes)

    def flatten(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return the flat vector of shape (dimension,) that holds the parameters."""
        return torch.cat([self._real(parameters[name]).reshape(-1) for name in self.names])

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """Return parameters that are views of a flat vector of shape (dimension,)."""
        parts = torch.split(vector, list(self.sizes))
        entries = zip(self.names, self.shapes, self.complex, parts, strict=True)
        return {
            name: torch.view_as_complex(part.view(*shape, 2)) if is_complex else part.view(shape)
            for name, shape, is_complex, part in entries
        }

    @staticmethod
    def _real(tensor: Tensor) -> Tensor:
        return torch.view_as_real(tensor) if tensor.is_complex() else tensor
