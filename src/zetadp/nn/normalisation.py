r"""Group normalisation, which keeps records apart: no statistic crosses images.

Batch normalisation must not be used under differential privacy, because it mixes records and leaves the gradient of one
record undefined.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from zetadp.nn.layers import per_image


class ComplexGroupNorm(nn.Module):
    r"""Whiten each group of complex channels, then scale and shift each channel by complex parameters.

    For each image and group, all :math:`n` complex values are centred and multiplied, as pairs of real and imaginary
    part, by the inverse square root of their 2x2 covariance (denominator n - 1) with ``epsilon`` on its diagonal. With
    :math:`a = \Sigma_{rr} + \epsilon`, :math:`b = \Sigma_{ii} + \epsilon`, :math:`c = \Sigma_{ri}`,
    :math:`s = \sqrt{ab - c^2}`, :math:`t = \sqrt{a + b + 2s}`,

    .. math:: W = \frac{1}{st} \begin{pmatrix} b + s & -c \\ -c & a + s \end{pmatrix}.

    The closed form equals the singular value decomposition in value, and unlike it has finite gradients where the two
    eigenvalues meet (circular groups, constant groups), so one degenerate image cannot poison a round.

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
    After whitening each part has unit variance. The scale starts at :math:`(1 + i)/\sqrt 2`, of modulus one.

    References
    ----------
    Riess et al., Complex-valued Federated Learning with Differential Privacy and MRI Applications, section 4.
    """

    def __init__(self, groups: int, channels: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        if channels % groups:
            msg = f"Expected groups to divide channels, found groups={groups}, channels={channels}."
            raise ValueError(msg)
        self.groups, self.epsilon = groups, epsilon
        self.scale = nn.Parameter(torch.full((channels,), complex(math.sqrt(0.5), math.sqrt(0.5))))
        self.shift = nn.Parameter(torch.zeros(channels, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise stacked images of shape (image, 2 * channel, row, column)."""
        images, stacked, rows, columns = x.shape
        channels = stacked // 2
        grouped = x.view(images, 2, self.groups, -1)
        n = grouped.shape[-1]
        centred = grouped - grouped.mean(dim=-1, keepdim=True)
        real, imaginary = centred.unbind(dim=1)
        var_real = real.square().sum(-1) / (n - 1)
        var_imaginary = imaginary.square().sum(-1) / (n - 1)
        c = (real * imaginary).sum(-1) / (n - 1)
        a, b = var_real + self.epsilon, var_imaginary + self.epsilon
        # This is ab - c^2, written so that rounding cannot make it zero or negative where all values lie on a line.
        determinant = (var_real * var_imaginary - c * c).clamp_min(0)
        s = torch.sqrt(determinant + self.epsilon * (var_real + b))
        t = torch.sqrt(a + b + 2 * s)
        # Whitening and complex scale are one real 2x2 matrix an image and channel: one pass over the data, not two.
        w11, w22, w12 = ((b + s) / (s * t), (a + s) / (s * t), -c / (s * t))
        w11, w22, w12 = (w.repeat_interleave(channels // self.groups, dim=1) for w in (w11, w22, w12))
        scale, shift = per_image(self.scale, images, 1), per_image(self.shift, images, 1)
        g, h = scale.real, scale.imag

        def spread(w: Tensor) -> Tensor:
            return w.view(-1, channels, 1, 1)

        real, imaginary = centred.view(images, 2, channels, rows, columns).unbind(dim=1)
        out_real = spread(g * w11 - h * w12) * real + spread(g * w12 - h * w22) * imaginary + spread(shift.real)
        out_imaginary = spread(h * w11 + g * w12) * real + spread(h * w12 + g * w22) * imaginary + spread(shift.imag)
        return torch.cat((out_real, out_imaginary), dim=1)


class GroupNorm(nn.Module):
    """Group normalisation of real channels, with scale and shift that accept a patient axis.

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
            msg = f"Expected groups to divide channels, found groups={groups}, channels={channels}."
            raise ValueError(msg)
        self.groups = groups
        self.scale = nn.Parameter(torch.ones(channels))
        self.shift = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise images of shape (image, channel, row, column)."""
        scale, shift = per_image(self.scale, len(x), 1), per_image(self.shift, len(x), 1)
        return functional.group_norm(x, self.groups) * scale[..., None, None] + shift[..., None, None]
