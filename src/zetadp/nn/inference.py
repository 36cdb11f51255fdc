r"""Convolutions, normalisation and ConjMish of a complex network without gradients.

In training, most of the time is spent on values for the backward pass: the centred images and the slopes of Mish.
Without them, each block of images is normalised and activated in place while it is in cache, and Mish takes four
passes, as :math:`x - 2x / ((1 + e^x)^2 + 1)`. The linear factors, ``1 + i`` of ConjMish and a quarter of 2x2 pooling,
are multiplied into the weights of the next convolution.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

from zetadp.nn.activations import ConjMish
from zetadp.nn.blocks import blocks
from zetadp.nn.layers import Conv2d
from zetadp.nn.normalisation import ComplexGroupNorm, centre, transform, whitening
from zetadp.nn.stacked import block_weight, stack, unstack

BLOCK = 1 << 17
"""Approximate numbers in a block: a block and its copy take 1 MiB in float32, the L2 cache of common processors."""


def without_gradients(layers: Iterable[nn.Module], x: Tensor) -> Tensor | None:
    """Return the layers' output for stacked images; ``None`` with gradients, without a CPU, or for any other layer.

    Parameters
    ----------
    layers
        Repetitions of convolution, `ComplexGroupNorm` and `ConjMish`; identities are skipped.
    x
        Images of shape (image, 2 * channel, row, column).
    """
    steps = None if torch.is_grad_enabled() or x.device.type != "cpu" else _steps(layers)
    if steps is None:
        return None
    factor = 1 + 0j
    for convolution, norm, activation in steps:
        weight = block_weight(factor * convolution.weight)
        x = functional.conv2d(x, weight, stride=convolution.stride, padding=convolution.padding)
        x = _activated(x.contiguous(), norm, pooled=activation.pooled)
        factor = 0.25 + 0.25j if activation.pooled else 1 + 1j
    return stack(factor * unstack(x))


def _steps(layers: Iterable[nn.Module]) -> list[tuple[Conv2d, ComplexGroupNorm, ConjMish]] | None:
    """Return the layers in threes, or ``None`` if any is of another kind or has one weight per patient."""
    working = [layer for layer in layers if not isinstance(layer, nn.Identity)]
    steps = []
    while working:
        match working[:3]:
            case [Conv2d() as convolution, ComplexGroupNorm() as norm, ConjMish() as activation] if (
                type(convolution) is Conv2d and convolution.weight.ndim == 4 and norm.scale.ndim == 1
            ):
                steps.append((convolution, norm, activation))
            case _:
                return None
        working = working[3:]
    return steps


def _activated(x: Tensor, norm: ComplexGroupNorm, *, pooled: bool) -> Tensor:
    """Normalise, apply Mish to both parts and, if ``pooled``, sum 2x2 neighbours; ``x`` is overwritten."""
    images, channels, rows, columns = x.shape
    out = x.new_empty(images, channels, rows // 2, columns // 2) if pooled else x
    scale, shift = (torch.view_as_real(each).unsqueeze(0) for each in (norm.scale, norm.shift))
    one = x.new_ones(())
    parts = list(blocks(x, BLOCK))
    pairs = x.view(images, 2, channels // 2, -1)
    moments = x.new_empty(images, 3, norm.groups)
    for part in parts:
        moments[part] = centre(pairs[part], norm.groups, out=pairs[part])
    # For all images at once, because these are many operations on few numbers.
    matrix = whitening(moments, scale, norm.epsilon)
    for part in parts:
        own = x[part]
        value = torch.empty_like(own)
        transform(pairs[part], matrix[part], shift, out=value.view_as(pairs[part]))
        # The centred images are no longer needed, so Mish's divisor overwrites them. Where it overflows, Mish(x) is x.
        torch.exp(value, out=own).add_(1)
        torch.addcmul(one, own, own, out=own)
        if pooled:
            value.addcdiv_(value, own, value=-2)
            upper, lower = value.view(len(own), channels, rows // 2, 2, columns).unbind(3)
            half = upper.add_(lower)
            torch.add(half[..., 0::2], half[..., 1::2], out=out[part])
        else:
            torch.addcdiv(value, value, own, value=-2, out=own)
    return out
