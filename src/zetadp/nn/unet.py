"""A complex or real U-Net that turns accelerated k-space into an image, and its layer for data consistency.

Blocks of convolutions, normalisation and activation act on ever coarser images, then on ever finer ones. Each block on
the way up also takes the output of the block of the same size on the way down (Ronneberger et al., arXiv:1505.04597).
The result is added to the zero-filled image. Then the measured lines partly replace those of the image.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from zetadp.base.complex_images import PLANE, fourier, inverse_fourier
from zetadp.mechanism.contributions import unit_layer
from zetadp.nn.activations import activation
from zetadp.nn.layers import Conv2d, per_image, real_width
from zetadp.nn.normalisation import ComplexGroupNorm, GroupNorm
from zetadp.nn.stacked import stack, unstack

if TYPE_CHECKING:
    from zetadp.nn.settings import NetworkSettings


@unit_layer
class DataConsistency(nn.Module):
    """Move the k-space of an image towards the measured lines.

    A weight of 1 inserts the measured values, a weight of 0 leaves the image unchanged. The weight is trained, because
    noisy measurements are better averaged with the network's prediction.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, image: Tensor, measured: Tensor) -> Tensor:
        """Return complex images for complex images and measured k-space, all of shape (image, row, column).

        A line is a column of k-space. Lines that were not measured are zero.
        """
        weight = per_image(self.weight, len(image))[..., None]
        line = (measured != 0).any(dim=1, keepdim=True)
        predicted = fourier(image, torch)
        return inverse_fourier(predicted + weight * line * (measured - predicted), torch)


class UNet(nn.Module):
    """A U-Net for accelerated k-space, complex or real.

    Parameters
    ----------
    settings
        ``widths`` are the channels at each size, the full size first. Family ``unet`` is complex. ``real_unet`` is its
        twin: it has about as many real numbers, takes real and imaginary part as two channels, and uses LeakyReLU as
        activation.
    """

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        self.complex = settings.family == "unet"
        self.settings = settings
        widths = settings.widths if self.complex else tuple(map(real_width, settings.widths))
        ends = 1 if self.complex else 2
        self.down = nn.ModuleList(self._block(before, width) for before, width in pairwise((ends, *widths)))
        steps = list(pairwise(reversed(widths)))
        self.raise_ = nn.ModuleList(self._convolution(coarse, fine, 1) for coarse, fine in steps)
        self.up = nn.ModuleList(self._block(2 * fine, fine) for _, fine in steps)
        self.last = self._convolution(widths[0], ends, 3)
        self.consistency = DataConsistency()

    def _convolution(self, before: int, width: int, kernel: int) -> Conv2d:
        return Conv2d(before, width, kernel, dtype=torch.complex64 if self.complex else torch.float32)

    def _block(self, before: int, width: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for number in range(self.settings.convolutions):
            layers.append(self._convolution(before if number == 0 else width, width, 3))
            if self.complex:
                layers += [ComplexGroupNorm(width, width), activation(self.settings.activation, width)]
            else:
                layers += [GroupNorm(width, width), nn.LeakyReLU(0.2)]
        return nn.Sequential(*layers)

    def _concatenate(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the channels of both tensors; all real parts of complex channels stay before all imaginary parts."""
        if not self.complex:
            return torch.cat((first, second), dim=1)
        (real, imaginary), (second_real, second_imaginary) = first.chunk(2, dim=1), second.chunk(2, dim=1)
        return torch.cat((real, second_real, imaginary, second_imaginary), dim=1)

    def correction(self, x: Tensor) -> Tensor:
        """Return the network's addition to stacked images, both of shape (image, 2, row, column)."""
        sizes = []
        for number, block in enumerate(self.down):
            x = block(functional.avg_pool2d(x, 2) if number else x)
            sizes.append(x)
        sizes.pop()
        for narrow, block in zip(self.raise_, self.up, strict=True):
            x = functional.interpolate(narrow(x), scale_factor=2, mode="nearest")
            x = block(self._concatenate(x, sizes.pop()))
        correction: Tensor = self.last(x)
        return correction

    def forward(self, kspace: Tensor) -> Tensor:
        """Return magnitude images of shape (image, row, column) for k-space of shape (image, 1, ky, kx).

        A line is a column of k-space; lines that were not measured are zero. The network sees every image divided by
        its standard deviation, and the output has the scale of the input.
        """
        measured = kspace[:, 0]
        zero_filled = inverse_fourier(measured, torch)
        scale = zero_filled.abs().std(dim=PLANE, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
        x = stack((zero_filled / scale)[:, None])
        image = unstack(x + self.correction(x))[:, 0]
        consistent = self.consistency(image, measured / scale)
        # The clamp gives the modulus a slope at zero, where it is not differentiable.
        magnitude: Tensor = (consistent.real.square() + consistent.imag.square()).clamp_min(1e-12).sqrt() * scale
        return magnitude
