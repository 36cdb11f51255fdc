"""The networks: complex ones, their real twins, and the linear baseline.

Every network takes images of shape (image, 1, row, column) — complex64 k-space or float32 images, as its ``domain``
says — and returns real class scores of shape (image, class).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from zetadp.nn.activations import ConjMish, Mish, activation
from zetadp.nn.initialisation import initialise
from zetadp.nn.layers import Conv2d, Linear
from zetadp.nn.normalisation import ComplexGroupNorm, GroupNorm
from zetadp.nn.stacked import stack
from zetadp.validation import one_of, positive

if TYPE_CHECKING:
    import numpy as np

Domain = Literal["kspace", "image"]
FAMILIES = ("complex", "real", "linear")


@dataclass(frozen=True)
class NetworkSettings:
    """What defines a network.

    Attributes
    ----------
    family
        ``complex``; ``real`` (the same shape with real weights, widths times the square root of two so that it has
        about as many real numbers); or ``linear`` (softmax regression on log magnitude).
    domain
        What it sees: whitened ``kspace`` or the ``image``.
    widths
        Filters of each block; each block halves the image side by average pooling.
    convolutions
        3x3 convolutions a block, each followed by group normalisation and activation.
    head
        ``hidden``: flatten, affine to ``hidden`` units, activation, affine to the classes.
        ``pooled``: global average, affine to the classes.
    hidden
        Units of the hidden layer.
    groups
        Groups of the group normalisation.
    activation
        Name of the activation of a complex network; real networks use Mish.
    """

    family: str = "complex"
    domain: str = "kspace"
    widths: tuple[int, ...] = (32, 64, 128)
    convolutions: int = 2
    head: str = "hidden"
    hidden: int = 128
    groups: int = 16
    activation: str = "conj_mish"

    def __post_init__(self) -> None:
        """Check every setting; lists from configuration files become tuples."""
        object.__setattr__(self, "widths", tuple(self.widths))
        one_of(FAMILIES, family=self.family)
        one_of(("kspace", "image"), domain=self.domain)
        one_of(("hidden", "pooled"), head=self.head)
        positive(convolutions=self.convolutions, hidden=self.hidden, groups=self.groups)
        if self.family == "complex" and self.domain == "image":
            msg = "Expected family real or linear for domain image: slices have no phase, found family complex."
            raise ValueError(msg)
        for width in self.widths:
            positive(width=width)
            if self.family != "linear" and width % self.groups:
                msg = f"Expected every width to be a multiple of groups={self.groups}, found {width}."
                raise ValueError(msg)


class ConvolutionalClassifier(nn.Module):
    """Convolution blocks and a classification head, complex or real.

    A complex network ends in the modulus of its complex scores, a real one in the scores themselves.
    """

    def __init__(self, settings: NetworkSettings, classes: int, size: int) -> None:
        super().__init__()
        self.complex = settings.family == "complex"
        dtype = torch.complex64 if self.complex else torch.float32
        # A real network on k-space sees real and imaginary part as two channels.
        channels = 2 if not self.complex and settings.domain == "kspace" else 1
        widths = settings.widths if self.complex else tuple(_real_width(w, settings.groups) for w in settings.widths)
        norm = ComplexGroupNorm if self.complex else GroupNorm
        blocks: list[nn.Module] = []
        for before, width in pairwise((channels, *widths)):
            for index in range(settings.convolutions):
                blocks += [
                    Conv2d(before if index == 0 else width, width, dtype=dtype),
                    norm(settings.groups, width),
                    self._activation(settings, width),
                ]
            last = blocks[-1]
            if isinstance(last, (ConjMish, Mish)):
                last.pooled = True
                blocks.append(nn.Identity())
            else:
                blocks.append(nn.AvgPool2d(2))
        self.blocks = nn.Sequential(*blocks)
        if settings.head == "hidden":
            features = widths[-1] * (size // 2 ** len(widths)) ** 2
            hidden = settings.hidden if self.complex else _real_width(settings.hidden, 1)
            self.head = nn.Sequential(
                Linear(features, hidden, dtype=dtype),
                self._activation(settings, hidden),
                Linear(hidden, classes, dtype=dtype),
            )
            self.pooled = False
        else:
            self.head = nn.Sequential(Linear(widths[-1], classes, dtype=dtype))
            self.pooled = True

    def _activation(self, settings: NetworkSettings, channels: int) -> nn.Module:
        return activation(settings.activation, channels) if self.complex else Mish()

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores of shape (image, class) for images of shape (image, 1, row, column)."""
        x: Tensor = self.blocks(stack(images) if images.is_complex() else images)
        # Stacked tensors keep all real parts before all imaginary parts, so flattening and averaging act on both alike.
        x = self.head(x.mean(dim=(2, 3)) if self.pooled else x.flatten(1))
        if not self.complex:
            return x
        real, imaginary = x.chunk(2, dim=1)
        return (real.square() + imaginary.square()).clamp_min(1e-12).sqrt()


class LinearClassifier(nn.Module):
    """Softmax regression on the log magnitude of every coefficient (or pixel), standardised per image."""

    def __init__(self, classes: int, size: int) -> None:
        super().__init__()
        self.affine = Linear(size * size, classes, dtype=torch.float32)

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores of shape (image, class) for images of shape (image, 1, row, column)."""
        features = (images.abs() + 1e-3).log().flatten(1)
        return self.affine(functional.layer_norm(features, features.shape[1:]))  # type: ignore[no-any-return]


def build(settings: NetworkSettings, classes: int, size: int, generator: np.random.Generator) -> nn.Module:
    """Return a network with freshly drawn weights.

    Parameters
    ----------
    settings
        What defines the network.
    classes
        Number of classes.
    size
        Side of the square images.
    generator
        Source of the starting weights.
    """
    if settings.family == "linear":
        model: nn.Module = LinearClassifier(classes, size)
    else:
        if size % 2 ** len(settings.widths):
            msg = f"Expected an image side divisible by 2 for each of {len(settings.widths)} blocks, found {size}."
            raise ValueError(msg)
        model = ConvolutionalClassifier(settings, classes, size)
    initialise(model, generator)
    return model


def _real_width(width: int, groups: int) -> int:
    """Return the real width whose squared count of numbers is nearest to that of a complex ``width``."""
    return max(1, round(width * 2**0.5 / groups)) * groups
