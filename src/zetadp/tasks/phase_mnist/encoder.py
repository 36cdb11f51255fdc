"""The public encoder: scattering, and a network that learnt to read simulated digits. It saw no image of MNIST."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from zetadp.backbone.axes import fit_axes
from zetadp.backbone.encoder import PublicEncoder
from zetadp.tasks.phase_mnist.digit_network import CHUNK, DigitNetwork, fit_digit_network
from zetadp.tasks.phase_mnist.scattering import normalised, scattering
from zetadp.tasks.phase_mnist.simulated import simulated_digits
from zetadp.validation import UserError, positive

if TYPE_CHECKING:
    from torch import Tensor

    from zetadp.backbone.axes import Extract


@dataclass(frozen=True)
class DigitEncoderSettings:
    """What defines an encoder.

    Attributes
    ----------
    digits
        Simulated digits that the network learns from; a multiple of 1600.
    axes_from
        Simulated digits that principal axes are computed of.
    scattering, learned
        Components of the scattering coefficients, and of the network's hidden layer.
    seed
        Seed of digits and weights.
    """

    digits: int = 128_000
    axes_from: int = 20_000
    scattering: int = 150
    learned: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every setting."""
        positive(digits=self.digits, axes_from=self.axes_from, scattering=self.scattering, learned=self.learned)
        if self.digits % CHUNK:
            msg = f"Expected task.settings.encoder.digits to be a multiple of {CHUNK}, found {self.digits}."
            raise UserError(msg)


class DigitEncoder(PublicEncoder[DigitEncoderSettings, DigitNetwork]):
    """An encoder of images: of scattering coefficients, and of the hidden layer of a network that reads digits."""

    of = "digits"
    kinds = (DigitEncoderSettings, DigitNetwork)

    @staticmethod
    def maps(network: DigitNetwork) -> tuple[Extract, ...]:
        """Return scattering and the network's hidden layer."""
        return _scattered, network.features

    @classmethod
    def fit(cls, settings: DigitEncoderSettings) -> DigitEncoder:
        """Train the network and find the principal axes, on simulated digits alone."""
        network = fit_digit_network(settings.digits, settings.seed)
        images, _ = simulated_digits(settings.axes_from, settings.seed, settings.digits // CHUNK)
        counts = (settings.scattering, settings.learned)
        parts = [fit_axes(extract, images, n) for extract, n in zip(cls.maps(network), counts, strict=True)]
        return cls(settings, network, tuple(parts))

    def features(self, images: np.ndarray) -> Tensor:
        """Return features of norm one of uint8 images, shape (image, component); each of its own image alone."""
        pixels = torch.from_numpy(images.astype(np.float32) / 255)
        return self.joined(pixels, self.settings.scattering, self.settings.learned)


def composite_features(real: Tensor, imaginary: Tensor | None) -> np.ndarray:
    """Return complex features of examples of norm one, shape (example, 1, 1, component).

    Parameters
    ----------
    real, imaginary
        Features of each example's parts, of norm one, shape (example, component); None for plain digits.
    """
    found = real.to(torch.complex64) if imaginary is None else torch.complex(real, imaginary) / 2**0.5
    return np.asarray(found[:, None, None].numpy())


def _scattered(images: Tensor) -> Tensor:
    return normalised(scattering(images))
