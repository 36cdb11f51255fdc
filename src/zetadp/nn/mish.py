r"""Mish and operations that often follow it, each as one differentiable step with one saved tensor.

PyTorch's own Mish takes a logarithm, an exponential and a hyperbolic tangent of every number, in the forward pass and
again in the backward pass. One logistic function is enough: with :math:`s = 1/(1 + e^{-x})` and :math:`p = s (2 - s)`,

.. math:: \tanh(\log(1 + e^x)) = \frac{p}{2 - p} =: t, \qquad
   \mathrm{Mish}(x) = x t, \qquad \mathrm{Mish}'(x) = t + s x (1 - t^2),

without loss of relative accuracy for any sign of x. The slope is saved for the backward pass. On a CPU the work is
split into blocks that stay in cache.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from zetadp.nn.blocks import blocks
from zetadp.nn.vmapping import merged, split


def mish(x: Tensor) -> Tensor:
    """Return Mish of every number of a real tensor whose first axis is images."""
    value: Tensor = _Mish.apply(x)[0]  # type: ignore[no-untyped-call]
    return value


def conj_mish(x: Tensor) -> Tensor:
    """Return ``(1 + i) (Mish(x) + i Mish(y))`` of a stacked tensor."""
    return _turn(mish(x))


def pooled_conj_mish(x: Tensor) -> Tensor:
    """Return the 2x2 average pooling of `conj_mish` of a stacked tensor (image, 2 * channel, row, column), even sides.

    The product with ``1 + i`` is linear, so it comes after pooling, when a quarter of the numbers is left.
    """
    pooled: Tensor = _PooledMish.apply(x)[0]  # type: ignore[no-untyped-call]
    return _turn(pooled)


def pooled_mish(x: Tensor) -> Tensor:
    """Return the 2x2 average pooling of Mish of a real tensor (image, channel, row, column), even sides."""
    pooled: Tensor = _PooledMish.apply(x)[0]  # type: ignore[no-untyped-call]
    return pooled


def _keep_slope(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:  # noqa: ANN401  (untyped)
    """Save the slope, which is the second output and is never differentiated."""
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[1])


class _Mish(torch.autograd.Function):
    """Mish, and its slope for the backward pass."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.contiguous()
        value, slope = torch.empty_like(x), torch.empty_like(x)
        for part in blocks(x):
            _factor_and_slope(x[part], value[part], slope[part])
            value[part].mul_(x[part])
        return value, slope

    setup_context = staticmethod(_keep_slope)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None, _: None) -> Tensor | None:  # noqa: ANN401
        (slope,) = ctx.saved_tensors
        return None if gradient is None else gradient * slope

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], x: Tensor) -> Any:  # noqa: ANN401
        return split(_Mish.apply(merged(x, in_dims[0])), info.batch_size)  # type: ignore[no-untyped-call]


class _PooledMish(torch.autograd.Function):
    """The 2x2 average pooling of Mish, and the slope of Mish for the backward pass."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.contiguous()
        images, channels, rows, columns = x.shape
        half, slope = x.new_empty(images, channels, rows // 2, columns), torch.empty_like(x)
        for part in blocks(x):
            factor = torch.empty_like(x[part])
            _factor_and_slope(x[part], factor, slope[part])
            # Mish itself is never stored: the sum of each pair of rows is computed directly.
            upper, lower = _row_pairs(x[part]).unbind(3)
            upper_factor, lower_factor = _row_pairs(factor).unbind(3)
            torch.mul(upper, upper_factor, out=half[part])
            half[part].addcmul_(lower, lower_factor)
        return (half[..., 0::2] + half[..., 1::2]).mul_(0.25), slope

    setup_context = staticmethod(_keep_slope)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None, _: None) -> Tensor | None:  # noqa: ANN401
        (slope,) = ctx.saved_tensors
        if gradient is None:
            return None
        columns = (0.25 * gradient).repeat_interleave(2, dim=3)
        return (_row_pairs(slope) * columns.unsqueeze(3)).view(slope.shape)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], x: Tensor) -> Any:  # noqa: ANN401
        return split(_PooledMish.apply(merged(x, in_dims[0])), info.batch_size)  # type: ignore[no-untyped-call]


def _factor_and_slope(x: Tensor, factor: Tensor, slope: Tensor) -> None:
    """Write Mish(x) / x and Mish'(x)."""
    s = torch.sigmoid(x)
    p = torch.rsub(s, 2).mul_(s)
    torch.div(p, torch.rsub(p, 2), out=factor)
    # The middle factor of the slope's second term: x (1 - t^2) = x - x t t.
    torch.mul(x, factor, out=p)
    torch.addcmul(x, p, factor, value=-1, out=p)
    torch.addcmul(factor, s, p, out=slope)


def _row_pairs(x: Tensor) -> Tensor:
    images, channels, rows, columns = x.shape
    return x.view(images, channels, rows // 2, 2, columns)


def _turn(x: Tensor) -> Tensor:
    """Multiply a stacked tensor by ``1 + i``."""
    real, imaginary = x.chunk(2, dim=1)
    return torch.cat((real - imaginary, real + imaginary), dim=1)
