"""The public encoder of images: scattering, and a network that was trained on simulated digits only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from zetadp.backbone.axes import fit_axes
from zetadp.backbone.encoder import PublicEncoder
from zetadp.base.validation import UserError, positive
from zetadp.tasks.phase_mnist.digit_network import CHUNK, DigitNetwork, fit_digit_network
from zetadp.tasks.phase_mnist.scattering import normalised, scattering
from zetadp.tasks.phase_mnist.simulated import simulated_digits

if TYPE_CHECKING:
    from torch import Tensor

    from zetadp.backbone.axes import Extract


@dataclass(frozen=True)
class DigitEncoderSettings:
    """Settings of an encoder.

    Attributes
    ----------
    digits
        Number of simulated digits that train the network, a multiple of 1600.
    axes_from
        Number of further simulated digits from which the principal axes are computed.
    scattering, learned
        Number of components from the scattering coefficients, and from the network's hidden layer.
    seed
        Seed of digits and weights.

    Raises
    ------
    UserError
        If `digits` is not a multiple of 1600.
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
    """An encoder of images: scattering coefficients, and the hidden layer of a network that classifies digits."""

    of = "digits"
    kinds = (DigitEncoderSettings, DigitNetwork)

    @staticmethod
    def maps(network: DigitNetwork) -> tuple[Extract, ...]:
        """Return the functions that compute scattering coefficients and the network's hidden layer."""
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
        """Return features of norm one, float32, shape (image, component). Those of an image depend on it alone.

        Parameters
        ----------
        images
            uint8, shape (image, 28, 28).
        """
        pixels = torch.from_numpy(images.astype(np.float32) / 255)
        return self.joined(pixels, self.settings.scattering, self.settings.learned)


def composite_features(real: Tensor, imaginary: Tensor | None) -> np.ndarray:
    """Join the features of both parts of examples to complex features of norm one.

    Parameters
    ----------
    real, imaginary
        Features of norm one for the real and the imaginary parts, shape (example, component). The imaginary part is
        None for plain digits.

    Returns
    -------
    complex64, shape (example, 1, 1, component).
    """
    found = real.to(torch.complex64) if imaginary is None else torch.complex(real, imaginary) / 2**0.5
    return np.asarray(found[:, None, None].numpy())


def _scattered(images: Tensor) -> Tensor:
    return normalised(scattering(images))
