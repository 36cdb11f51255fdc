"""The public encoder of images: scattering, and a network that was trained on simulated digits only."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from zetadp.base.storage import Items
from zetadp.base.validation import UserError, positive
from zetadp.tasks.encoder import ItemNetwork, PublicEncoder, ScatteringEncoderSettings
from zetadp.tasks.phase_mnist.simulated import simulated_digits
from zetadp.tasks.scattering import normalised, scattering_of_images

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from zetadp.tasks.encoder import Extract

logger = logging.getLogger(__name__)

BATCH = 64
RATE = 3e-3
SMOOTHING = 0.05
CHUNK = 25 * BATCH
"""Number of digits that are simulated together."""


@dataclass(frozen=True)
class DigitEncoderSettings(ScatteringEncoderSettings):
    """Settings of an encoder.

    Attributes
    ----------
    digits
        Number of simulated digits that train the network in a single pass, a multiple of 1600.

    Raises
    ------
    UserError
        If `digits` is not a multiple of 1600.
    """

    digits: int = 128_000
    axes_from: int = 20_000
    scattering: int = 150
    learned: int = 64

    def __post_init__(self) -> None:
        """Check every setting."""
        super().__post_init__()
        positive(digits=self.digits)
        if self.digits % CHUNK:
            msg = f"Expected task.settings.encoder.digits to be a multiple of {CHUNK}, found {self.digits}."
            raise UserError(msg)


class DigitNetwork(ItemNetwork):
    """A network that classifies images of shape (image, 28, 28) in [0, 1]."""

    widths = (24, 48, 96)
    flat = 96 * 9
    hidden_units = 128
    outputs = 10


class DigitEncoder(PublicEncoder[DigitEncoderSettings, DigitNetwork]):
    """An encoder of images: scattering coefficients, and the hidden layer of a network that classifies digits."""

    of = "digits"
    kinds = (DigitEncoderSettings, DigitNetwork)

    @staticmethod
    def maps(network: DigitNetwork) -> tuple[Extract, ...]:
        """Return the functions that compute scattering coefficients and the network's hidden layer."""
        return _scattered, network.features

    @classmethod
    def learned(cls, settings: DigitEncoderSettings) -> tuple[DigitNetwork, Tensor]:
        """Return a network trained on simulated digits, and further simulated digits."""
        logger.info("learning from %d simulated digits", settings.digits)
        chunks = settings.digits // CHUNK

        def losses(network: DigitNetwork, random: np.random.Generator) -> Iterator[Tensor]:
            for number in range(chunks):
                images, labels = simulated_digits(CHUNK, settings.seed, number)
                for part, wanted in zip(images.split(BATCH), labels.split(BATCH), strict=True):  # type: ignore[no-untyped-call]
                    moved = torch.roll(part, tuple(random.integers(-1, 2, 2).tolist()), (1, 2))
                    grey = moved * torch.from_numpy(random.uniform(0.7, 1, (BATCH, 1, 1))).float()
                    yield functional.cross_entropy(network(grey), wanted, label_smoothing=SMOOTHING)

        network = DigitNetwork.learned(settings.seed, RATE, settings.digits // BATCH, losses)
        return network, simulated_digits(settings.axes_from, settings.seed, chunks)[0]

    def features(self, images: np.ndarray) -> Tensor:
        """Return features of norm one, float32, shape (image, component), for uint8 images of shape (image, 28, 28)."""
        return self.joined(torch.from_numpy(images.astype(np.float32) / 255))

    @classmethod
    def encode(cls, *, examples: Path, encoder: Path, features: Path, composite: str) -> None:
        """Write complex features of every example, each image encoded once."""
        found = Items.read(examples, ("images", "real", "imaginary", "labels"))
        images, real, imaginary, labels = found.arrays.values()
        parts = [real] if composite == "none" else [real, imaginary]
        used, places = np.unique(np.concatenate(parts), return_inverse=True)
        encoded = cls.load(encoder).features(images[used])
        first, *second = (encoded[part] for part in np.split(places, len(parts)))
        values = composite_features(first, second[0] if second else None)
        Items({"values": values, "labels": labels}, found.names).write(
            features, ("example", "channel", "row", "component"), "1"
        )
        logger.info("computed the features of %d examples", len(values))


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
    return normalised(scattering_of_images(images))
