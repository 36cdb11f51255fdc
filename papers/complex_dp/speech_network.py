"""The network of Ziller et al. for spoken commands, in all readings; `zetadp.nn.spectral` has one.

The paper leaves open how spectrograms are scaled, how complex numbers are pooled, the width of iGaussian, and whether
it also follows the last layer. In the shipped reading (raw scale, modulus, 0.4, also after the last layer) the network
stays at chance without noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from zetadp.nn.activations import Pointwise, igaussian
from zetadp.nn.layers import Conv2d, Linear
from zetadp.nn.models import initialise
from zetadp.nn.spectral import POOLED_AFTER, MagnitudeMaxPool2d
from zetadp.nn.stacked import modulus, stack

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

FILTERS, HIDDEN, WORDS = (8, 16, 32, 64), 64, 8
SILENCE = 1e-6
"""Root mean square below which a clip is not scaled up: it holds nothing but zeros."""


@dataclass(frozen=True)
class Reading:
    """One way to read the places that the paper leaves open.

    Attributes
    ----------
    scaled
        Whether each clip's spectrogram is divided by its root mean square, which concerns this clip alone.
    by_parts
        Whether maxima are taken of real and imaginary parts, each by itself, in place of the number of largest modulus.
    last
        Whether iGaussian also follows the last layer.
    width
        Width of iGaussian.
    """

    scaled: bool = True
    by_parts: bool = True
    last: bool = False
    width: float = 0.4


READINGS = {
    "shipped": Reading(scaled=False, by_parts=False, last=True),
    "learns": Reading(),
    "learns, width 1": Reading(width=1.0),
    "raw scale": Reading(scaled=False),
    "largest modulus": Reading(by_parts=False),
    "last layer bounded": Reading(last=True),
}
"""The shipped reading, the one that learns, and the latter with one thing changed back."""


class PartsMaxPool2d(MagnitudeMaxPool2d):
    """Maximum pooling of the real and of the imaginary parts, each by itself, over the same windows."""

    def forward(self, x: Tensor) -> Tensor:
        """Pool a stacked tensor (image, 2 * channel, row, column)."""
        return x.amax(dim=(2, 3), keepdim=True) if self.side is None else functional.max_pool2d(x, self.side)


class SpeechNetwork(nn.Module):
    """Four convolutions without padding, maximum pooling after the second and over all places after the last, 64 units.

    Parameters
    ----------
    reading
        How the paper is read.
    generator
        Source of the starting weights.
    """

    def __init__(self, reading: Reading, generator: np.random.Generator) -> None:
        super().__init__()
        self.reading = reading
        activation = partial(igaussian, width=reading.width)
        pool = PartsMaxPool2d if reading.by_parts else MagnitudeMaxPool2d
        layers: list[nn.Module] = []
        for number, (before, width) in enumerate(pairwise((1, *FILTERS))):
            layers.append(Conv2d(before, width, padding=0))
            if number == POOLED_AFTER:
                layers.append(pool(2))
            elif number == len(FILTERS) - 1:
                layers.append(pool(None))
            layers.append(Pointwise(activation))
        layers += [nn.Flatten(), Linear(FILTERS[-1], HIDDEN), Pointwise(activation), Linear(HIDDEN, WORDS)]
        self.layers = nn.Sequential(*layers, *([Pointwise(activation)] if reading.last else []))
        initialise(self, generator)

    def forward(self, spectrograms: Tensor) -> Tensor:
        """Return moduli of the scores, shape (clip, word), for spectrograms of shape (clip, 1, frame, frequency)."""
        x = spectrograms
        if self.reading.scaled:
            size = x.abs().square().mean(dim=(1, 2, 3), keepdim=True).sqrt()
            x = x / torch.where(size < SILENCE, 1.0, size)
        return modulus(self.layers(stack(x)))
