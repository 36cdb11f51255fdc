"""A convolutional network for spectrograms: that of Ziller et al. for spoken commands, and its real twin.

Convolutions without padding, maximum pooling after the second convolution and over the whole image after the last, then
two affine layers. The paper gives the 3x3 filters, the positions of the poolings and the units. The sizes of the first
pooling (2x2) and of the adaptive one (1x1), and pooling by modulus, are our interpretation.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from zetadp.nn.activations import activation
from zetadp.nn.layers import Conv2d, Linear, real_width
from zetadp.nn.stacked import accepts_complex, modulus, stack

if TYPE_CHECKING:
    from zetadp.nn.settings import NetworkSettings

POOLED_AFTER = 1
"""Position of the convolution whose output is halved by pooling."""


class MagnitudeMaxPool2d(nn.Module):
    """Maximum pooling of complex images: of each window, the complex number of largest modulus.

    Of several equal numbers, the first is taken. The gradient flows only to that number.

    Parameters
    ----------
    side
        Side of the square windows, which do not overlap. None takes the whole image as one window.
    """

    def __init__(self, side: int | None = 2) -> None:
        super().__init__()
        self.side = side

    @accepts_complex
    def forward(self, x: Tensor) -> Tensor:
        """Pool a stacked or complex tensor (image, channel, row, column); remaining rows and columns are dropped."""
        parts = x.reshape(len(x), 2, -1, *x.shape[2:])
        power = parts.detach().square().sum(dim=1)
        if self.side is None:
            indices = power.flatten(2).argmax(dim=2)[..., None, None]
        else:
            indices = functional.max_pool2d(power, self.side, return_indices=True)[1]
        of_both_parts = indices.flatten(2).unsqueeze(1).expand(-1, 2, -1, -1)
        largest = parts.flatten(3).gather(3, of_both_parts)
        return largest.reshape(len(x), -1, *indices.shape[2:])


class SpectrogramClassifier(nn.Module):
    """Convolutions over time and frequency, and two affine layers, complex or real.

    A complex network applies its activation after every layer, including the last one, and returns the modulus of its
    scores. A real network takes magnitudes, has about as many real numbers and ReLU between its layers, and returns the
    scores themselves.

    Parameters
    ----------
    settings
        Domain ``complex`` makes a complex network, ``image`` a real one; ``widths`` are the filters of the
        convolutions, ``hidden`` the units of the first affine layer.
    classes
        Number of classes.
    """

    def __init__(self, settings: NetworkSettings, classes: int) -> None:
        super().__init__()
        self.complex = settings.domain == "complex"
        dtype = torch.complex64 if self.complex else torch.float32
        widths = [width if self.complex else real_width(width) for width in (*settings.widths, settings.hidden)]
        *filters, hidden = widths
        blocks: list[nn.Module] = []
        for number, (before, width) in enumerate(pairwise((1, *filters))):
            blocks.append(Conv2d(before, width, padding=0, dtype=dtype))
            if number in (POOLED_AFTER, len(filters) - 1):
                # Pooling comes before the activation because that is cheaper. It commutes with ReLU, and with an
                # activation that keeps the phase and grows with the modulus, such as the paper's.
                blocks.append(self._pool(None if number == len(filters) - 1 else 2))
            blocks.append(self._activation(settings, width))
        self.blocks = nn.Sequential(*blocks)
        self.hidden = nn.Sequential(Linear(filters[-1], hidden, dtype=dtype), self._activation(settings, hidden))
        last = [Linear(hidden, classes, dtype=dtype)]
        self.head = nn.Sequential(*last, *([self._activation(settings, classes)] if self.complex else []))

    def _activation(self, settings: NetworkSettings, channels: int) -> nn.Module:
        return activation(settings.activation, channels) if self.complex else nn.ReLU()

    def _pool(self, side: int | None) -> nn.Module:
        if self.complex:
            return MagnitudeMaxPool2d(side)
        return nn.AdaptiveMaxPool2d(1) if side is None else nn.MaxPool2d(side)

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores of shape (image, class) for spectrograms of shape (image, 1, frame, frequency)."""
        x: Tensor = self.head(self.hidden(self.blocks(stack(images) if self.complex else images).flatten(1)))
        return modulus(x) if self.complex else x
