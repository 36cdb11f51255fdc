"""Complex convolutional networks from ordinary operations: slower, in any precision, and differentiable twice.

The layers of `zetadp.nn` have hand-written backward passes for speed, and can be differentiated only once. Gradient
inversion needs the derivative of a gradient, and benchmarks need a straightforward implementation for comparison.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from zetadp.base.validation import UserError
from zetadp.nn.activations import ConjMish
from zetadp.nn.layers import Conv2d, Linear, per_image
from zetadp.nn.models import ConvolutionalClassifier
from zetadp.nn.normalisation import ComplexGroupNorm
from zetadp.nn.stacked import block_weight, modulus, stack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class TwiceDifferentiable(nn.Module):
    """A complex convolutional network that shares the parameters of another and can be differentiated twice.

    Parameters
    ----------
    model
        A network of family ``complex`` with the default activation and without low-rank updates.

    Raises
    ------
    UserError
        If the network has layers of other kinds.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        if not isinstance(model, ConvolutionalClassifier) or model.transform == "fourier":
            raise UserError(f"Expected a convolutional network without a Fourier layer, found {type(model).__name__}.")
        self.model = model
        known = (*_LAYERS, nn.Identity)
        # Exact types: a subclass, such as a convolution with a low-rank update, computes something else.
        strange = [type(module).__name__ for module in (*model.blocks, *model.head) if type(module) not in known]
        if strange:
            raise UserError(
                f"Expected only complex convolutions, group normalisation and ConjMish, found {strange[0]}."
            )

    def forward(self, images: Tensor) -> Tensor:
        """Return real class scores of shape (image, class) for complex images of shape (image, 1, row, column)."""
        x = stack(images)
        for module in self.model.blocks:
            x = _applied(module, x)
        x = x.mean(dim=(2, 3)) if self.model.pooled else x.flatten(1)
        for module in self.model.head:
            x = _applied(module, x)
        return modulus(x)


def plain_norm(x: Tensor, groups: int, epsilon: float, parts: Sequence[Tensor]) -> Tensor:
    """Return the complex group normalisation of stacked images (`zetadp.nn.normalisation.ComplexGroupNorm`).

    Parameters
    ----------
    x
        Shape (image, 2 * channel, row, column).
    groups, epsilon
        As in the layer.
    parts
        Real and imaginary part of the scale, then of the shift, each of shape (1 or image, channel, 1, 1).
    """
    g, h, left, right = parts
    grouped = x.view(len(x), 2, groups, -1)
    n = grouped.shape[-1]
    real, imaginary = (grouped - grouped.mean(dim=-1, keepdim=True)).unbind(1)
    a, b = (part.square().sum(-1, keepdim=True) / (n - 1) + epsilon for part in (real, imaginary))
    c = (real * imaginary).sum(-1, keepdim=True) / (n - 1)
    s = torch.sqrt(a * b - c * c)
    k = 1 / (s * torch.sqrt(a + b + 2 * s))
    real, imaginary = ((b + s) * k * real - c * k * imaginary), ((a + s) * k * imaginary - c * k * real)
    real, imaginary = (p.view(len(x), -1, *x.shape[2:]) for p in (real, imaginary))
    return torch.cat((g * real - h * imaginary + left, h * real + g * imaginary + right), dim=1)


def scale_and_shift(module: ComplexGroupNorm, images: int) -> tuple[Tensor, ...]:
    """Return real and imaginary parts of a layer's scale and shift, for `plain_norm`."""
    spread = (per_image(p, images, 1)[..., None, None] for p in (module.scale, module.shift))
    return tuple(part for z in spread for part in (z.real, z.imag))


def _norm(module: ComplexGroupNorm, x: Tensor) -> Tensor:
    return plain_norm(x, module.groups, module.epsilon, scale_and_shift(module, len(x)))


def _activate(module: ConjMish, x: Tensor) -> Tensor:
    real, imaginary = functional.mish(x).chunk(2, dim=1)
    turned = torch.cat((real - imaginary, real + imaginary), dim=1)
    return functional.avg_pool2d(turned, 2) if module.pooled else turned


def _convolve(module: Conv2d, x: Tensor) -> Tensor:
    return functional.conv2d(x, block_weight(module.weight), padding=module.padding)


def _linear(module: Linear, x: Tensor) -> Tensor:
    return functional.linear(x, block_weight(module.weight), torch.cat((module.bias.real, module.bias.imag)))


_LAYERS: dict[type[nn.Module], Callable[..., Tensor]] = {
    ComplexGroupNorm: _norm,
    ConjMish: _activate,
    Conv2d: _convolve,
    Linear: _linear,
}


def _applied(module: nn.Module, x: Tensor) -> Tensor:
    apply = _LAYERS.get(type(module))
    return x if apply is None else apply(module, x)
