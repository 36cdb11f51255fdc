r"""Group normalisation, which never mixes records: no statistic crosses images.

Batch normalisation must not be used under differential privacy, because it mixes records and leaves the gradient of one
record undefined.

The complex layer is bound by memory, not by arithmetic. So its forward and backward passes are written by hand: one
pass over the data that reduces and one that maps, each in blocks of images that stay in cache. The backward pass needs
the centred images and a few numbers for each image and channel. Its reduction also gives the gradients of scale and
shift, one for each image.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from zetadp.base.complex_images import InverseRoot
from zetadp.mechanism.contributions import unit_layer
from zetadp.nn.layers import per_image
from zetadp.nn.stacked import accepts_complex, blocks, uses_ordinary_operations


@unit_layer
class ComplexGroupNorm(nn.Module):
    r"""Whiten each group of complex channels, then scale and shift each channel by complex parameters.

    For each image and group, all :math:`n` complex values are centred and multiplied, as pairs of real and imaginary
    part, by the inverse square root of their 2x2 covariance (denominator n - 1) with ``epsilon`` on its diagonal
    (`zetadp.base.complex_images.InverseRoot`).

    The closed form has the same value as a singular value decomposition. Unlike that, it has finite gradients where the
    two eigenvalues are equal (circular groups, constant groups), so one degenerate image cannot spoil a round.

    Parameters
    ----------
    groups
        Number of groups; divides ``channels``.
    channels
        Number of complex channels.
    epsilon
        Added to both variances.

    Notes
    -----
    After whitening each part has unit variance, up to ``epsilon``. The scale starts at :math:`(1 + i)/\sqrt 2`, of
    modulus one.

    References
    ----------
    Riess et al., Complex-valued Federated Learning with Differential Privacy and MRI Applications, section 4.
    """

    def __init__(self, groups: int, channels: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        if channels % groups:
            raise ValueError(f"Expected groups to divide channels, found groups={groups}, channels={channels}.")
        self.groups, self.epsilon = groups, epsilon
        self.scale = nn.Parameter(torch.full((channels,), complex(math.sqrt(0.5), math.sqrt(0.5))))
        self.shift = nn.Parameter(torch.zeros(channels, dtype=torch.complex64))

    @accepts_complex
    def forward(self, x: Tensor) -> Tensor:
        """Normalise stacked images of shape (image, 2 * channel, row, column)."""
        if uses_ordinary_operations():
            return plain_norm(x, self.groups, self.epsilon, _scale_and_shift(self, len(x)))
        scale, shift = (torch.view_as_real(per_image(p, len(x))) for p in (self.scale, self.shift))
        out: Tensor = _Whitened.apply(x, scale, shift, self.groups, self.epsilon)  # type: ignore[no-untyped-call]
        return out


def plain_norm(x: Tensor, groups: int, epsilon: float, parts: Sequence[Tensor]) -> Tensor:
    """Return the normalisation of `ComplexGroupNorm` by ordinary operations, for stacked images.

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
    var_real, var_imaginary = (part.square().sum(-1, keepdim=True) / (n - 1) for part in (real, imaginary))
    c = (real * imaginary).sum(-1, keepdim=True) / (n - 1)
    root = InverseRoot.of(var_real, var_imaginary, c, epsilon, torch)
    real, imaginary = (p.view(len(x), -1, *x.shape[2:]) for p in root.apply(real, imaginary))
    return torch.cat((g * real - h * imaginary + left, h * real + g * imaginary + right), dim=1)


def _scale_and_shift(module: ComplexGroupNorm, images: int) -> tuple[Tensor, ...]:
    """Return real and imaginary parts of a layer's scale and shift, for `plain_norm`."""
    spread = (per_image(p, images)[..., None, None] for p in (module.scale, module.shift))
    return tuple(part for z in spread for part in (z.real, z.imag))


class _Root(NamedTuple):
    """The inverse square root W of the covariance of each image and group, with s and t (`InverseRoot`).

    All have shape (image, group), except ``rows``, the elements of W row by row, which has shape (image, 4, group).
    """

    s: Tensor
    t: Tensor
    rows: Tensor

    @classmethod
    def of(cls, moments: Tensor, epsilon: float) -> _Root:
        """Return the root for variances of real and imaginary parts and their covariance, shape (image, 3, group)."""
        var_real, var_imaginary, c = moments.unbind(1)
        s, t, real, mixed, imaginary = InverseRoot.of(var_real, var_imaginary, c, epsilon, torch)
        return cls(s, t, rows=torch.stack((real, mixed, mixed, imaginary), dim=1))

    def moments_gradient(self, of_rows: Tensor, moments: Tensor, epsilon: float) -> Tensor:
        """Return the gradient of the moments, shape (image, 3, group), for that of ``rows``."""
        var_real, var_imaginary, c = moments.unbind(1)
        g11, g12, g21, g22 = of_rows.unbind(1)
        k = 1 / (self.s * self.t)
        # W = k (...): the gradient of k passes to s and t through k = 1 / (s t), and from t to a, b and s.
        of_k = -(of_rows * self.rows).sum(dim=1)
        of_t = of_k / self.t
        of_sum = of_t / (2 * self.t)
        of_determinant = (of_k / self.s + k * (g11 + g22) + 2 * of_sum) / (2 * self.s)
        # Where the determinant was clamped to zero, it does not depend on the moments.
        of_product = torch.where(var_real * var_imaginary > c * c, of_determinant, 0)
        of_both = of_sum + epsilon * of_determinant
        of_real = k * g22 + of_both + of_product * var_imaginary
        of_imaginary = k * g11 + of_both + of_product * var_real
        return torch.stack((of_real, of_imaginary, -k * (g12 + g21) - 2 * of_product * c), dim=1)


def centre(pairs: Tensor, groups: int, out: Tensor) -> Tensor:
    """Subtract the mean of each group and part from images, and return the second moments, shape (image, 3, group).

    Images have shape (image, 2, channel, position). The result is written to ``out``, which may be the images. The
    moments are the variances of real and imaginary parts and their covariance, as `whitening` takes them.
    """
    images, _, channels, positions = pairs.shape
    n = channels // groups * positions
    centred = out.view(images, 2 * groups, n)
    grouped = pairs.view(images, 2 * groups, n)
    torch.sub(grouped, grouped.mean(dim=2, keepdim=True), out=centred)
    real, imaginary = centred.view(images, 2, groups, n).unbind(1)
    variances = torch.linalg.vector_norm(centred, dim=2).square().view(images, 2, groups)
    return torch.cat((variances, (real * imaginary).sum(dim=2).unsqueeze(1)), dim=1).div_(n - 1)


def whitening(moments: Tensor, scale: Tensor, epsilon: float) -> Tensor:
    """Return the 2x2 matrix that whitens and scales each channel, row by row, shape (image, 4, channel).

    Moments have shape (image, 3, group), scales have shape (1 or image, channel, 2).
    """
    rows = _repeat_for_channels(_Root.of(moments, epsilon).rows, scale.shape[1])
    of_real, of_imaginary = rows.chunk(2, dim=1)
    g, h = scale.unsqueeze(1).unbind(3)
    return torch.cat((g * of_real - h * of_imaginary, h * of_real + g * of_imaginary), dim=1)


def transform(pairs: Tensor, matrix: Tensor, shift: Tensor, out: Tensor) -> None:
    """Apply the matrix and the shift of every channel to images of shape (image, 2, channel, position)."""
    m11, m12, m21, m22 = matrix.unsqueeze(3).unbind(1)
    shift_real, shift_imaginary = shift.unsqueeze(2).unbind(3)
    real, imaginary = pairs.unbind(1)
    out_real, out_imaginary = out.unbind(1)
    torch.mul(real, m11, out=out_real).addcmul_(imaginary, m12).add_(shift_real)
    torch.mul(real, m21, out=out_imaginary).addcmul_(imaginary, m22).add_(shift_imaginary)


class _Whitened(torch.autograd.Function):
    """Whitening, scale and shift of stacked images; scale and shift are pairs, shape (1 or image, channel, 2)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor, groups: int, epsilon: float) -> Tensor:  # noqa: ANN401  (PyTorch's)
        images, stacked, *sides = x.shape
        pairs = x.contiguous().view(images, 2, stacked // 2, -1)
        centred = torch.empty_like(pairs)
        moments = pairs.new_empty(images, 3, groups)
        for part in blocks(pairs):
            moments[part] = centre(pairs[part], groups, out=centred[part])
        # Whitening and complex scale are one real 2x2 matrix for each image and channel, so one pass does both.
        matrix = whitening(moments, scale, epsilon)
        out = torch.empty_like(pairs)
        for part in blocks(pairs):
            transform(centred[part], matrix[part], shift.expand(images, -1, -1)[part], out=out[part])
        ctx.epsilon, ctx.shared = epsilon, (len(scale) == 1, len(shift) == 1)
        ctx.save_for_backward(scale, centred, moments, matrix)
        return out.view(images, stacked, *sides)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401  (PyTorch's)
        scale, centred, moments, matrix = ctx.saved_tensors
        of_x, *of_parameters = _gradients(gradient.contiguous(), scale, centred, moments, matrix, ctx.epsilon)
        of_scale, of_shift = (
            parameter_gradient.sum(dim=0, keepdim=True) if shared else parameter_gradient
            for parameter_gradient, shared in zip(of_parameters, ctx.shared, strict=True)
        )
        return of_x, of_scale, of_shift, None, None


def _gradients(
    gradient: Tensor, scale: Tensor, pairs: Tensor, moments: Tensor, matrix: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of `_Whitened` for the images and, for each image, for scale and shift.

    Parameters
    ----------
    gradient
        Gradient of the output.
    scale, epsilon
        As in the forward pass.
    pairs, moments, matrix
        The centred images, shape (image, 2, channel, position), the moments of each group, and the 2x2 matrix of each
        channel, shape (image, 4, channel).
    """
    images, _, channels, positions = pairs.shape
    groups = moments.shape[2]
    parts = gradient.view_as(pairs)
    n = channels // groups * positions
    # The reduction: sums of the gradient, and of its products with both parts of the centred image.
    sums, products = (parts.new_empty(images, number, channels) for number in (2, 4))
    for part in blocks(parts):
        torch.sum(parts[part], dim=3, out=sums[part])
        product = torch.empty_like(parts[part, 0], memory_format=torch.contiguous_format)
        combined = ((left, right) for left in parts[part].unbind(1) for right in pairs[part].unbind(1))
        for index, pair in enumerate(combined):
            products[part, index] = torch.mul(*pair, out=product).sum(dim=2)
    with_real, with_imaginary = products.chunk(2, dim=1)
    # out = S W z + shift with S = [[g, -h], [h, g]].
    root = _Root.of(moments, epsilon)
    rows = _repeat_for_channels(root.rows, channels)
    of_g = (products * rows).sum(dim=1)
    of_h = (with_imaginary * rows[:, :2] - with_real * rows[:, 2:]).sum(dim=1)
    g, h = scale.unsqueeze(1).unbind(3)
    of_rows = torch.cat((g * with_real + h * with_imaginary, g * with_imaginary - h * with_real), dim=1)
    of_moments = root.moments_gradient(_sum_over_groups(of_rows, groups), moments, epsilon) / (n - 1)
    of_real, of_imaginary, of_product = _repeat_for_channels(of_moments, channels).unsqueeze(3).unbind(1)
    # Centring subtracts the mean of the arriving gradient; the mean of the centred image itself is zero.
    arriving = (matrix.view(images, 2, 2, channels) * sums.unsqueeze(2)).sum(dim=1)
    mean_real, mean_imaginary = (
        _repeat_for_channels(_sum_over_groups(arriving, groups) / n, channels).unsqueeze(3).unbind(1)
    )
    m11, m12, m21, m22 = matrix.unsqueeze(3).unbind(1)
    # The map.
    of_x = torch.empty_like(parts)
    twice_real, twice_imaginary = 2 * of_real, 2 * of_imaginary
    for part in blocks(parts):
        (g_real, g_imaginary), (real, imaginary) = parts[part].unbind(1), pairs[part].unbind(1)
        x_real, x_imaginary = of_x[part].unbind(1)
        torch.mul(g_real, m11[part], out=x_real)
        x_real.addcmul_(g_imaginary, m21[part]).addcmul_(real, twice_real[part])
        x_real.addcmul_(imaginary, of_product[part]).sub_(mean_real[part])
        torch.mul(g_real, m12[part], out=x_imaginary)
        x_imaginary.addcmul_(g_imaginary, m22[part]).addcmul_(imaginary, twice_imaginary[part])
        x_imaginary.addcmul_(real, of_product[part]).sub_(mean_imaginary[part])
    return of_x.view_as(gradient), torch.stack((of_g, of_h), dim=2), sums.mT.contiguous()


@unit_layer
class GroupNorm(nn.Module):
    """Group normalisation of real channels by PyTorch, with scale and shift that accept a patient axis.

    Parameters
    ----------
    groups
        Number of groups; divides ``channels``.
    channels
        Number of real channels.
    """

    def __init__(self, groups: int, channels: int) -> None:
        super().__init__()
        if channels % groups:
            raise ValueError(f"Expected groups to divide channels, found groups={groups}, channels={channels}.")
        self.groups = groups
        self.scale = nn.Parameter(torch.ones(channels))
        self.shift = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise images of shape (image, channel, row, column)."""
        if self.scale.ndim == 1:
            return functional.group_norm(x, self.groups, self.scale, self.shift)
        scale, shift = (per_image(p, len(x))[..., None, None] for p in (self.scale, self.shift))
        return torch.addcmul(shift, functional.group_norm(x, self.groups), scale)


def _repeat_for_channels(values: Tensor, channels: int) -> Tensor:
    """Repeat values of groups, shape (image, number, group), for their channels."""
    return values.repeat_interleave(channels // values.shape[2], dim=2)


def _sum_over_groups(values: Tensor, groups: int) -> Tensor:
    """Sum values of channels, shape (image, number, channel), over each group."""
    return values.view(*values.shape[:2], groups, -1).sum(dim=3)
