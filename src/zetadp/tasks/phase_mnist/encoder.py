"""The public encoder of images: scattering, and a network that was trained on simulated digits only."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from zetadp.base.storage import Items
from zetadp.tasks.encoder import PublicEncoder, learn
from zetadp.tasks.phase_mnist.simulated import simulated_digits
from zetadp.tasks.scattering import normalised, scattering_of_images

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from zetadp.tasks.encoder import Extract

BATCH = 64
RATE = 3e-3
SMOOTHING = 0.05
CHUNK = 25 * BATCH
"""Number of digits that are simulated together."""


class DigitEncoder(PublicEncoder):
    """An encoder of images of shape (image, 28, 28) in [0, 1].

    Its parts are scattering coefficients, and the hidden layer of a network that classifies digits.
    """

    of = "digits"
    # The network sees each digit once; their number is a multiple of `CHUNK`.
    recipe: ClassVar = {"seed": 0, "axes_from": 20_000, "scattering": 150, "learned": 64, "digits": 128_000}
    kept = ("scattering", "learned")
    widths = (24, 48, 96)
    flat = 96 * 9
    hidden_units = 128
    outputs = 10

    def maps(self) -> tuple[Extract, ...]:
        """Return the functions that compute scattering coefficients and the network's hidden layer."""
        return lambda images: normalised(scattering_of_images(images)), self.hidden_layer

    def learn_simulated(self, random: np.random.Generator) -> Tensor:
        """Train the network on simulated digits, and return further simulated digits."""
        seed, chunks = self.recipe["seed"], self.recipe["digits"] // CHUNK

        def losses() -> Iterator[Tensor]:
            for number in range(chunks):
                images, labels = simulated_digits(CHUNK, seed, number)
                for part, wanted in zip(images.split(BATCH), labels.split(BATCH), strict=True):  # type: ignore[no-untyped-call]
                    moved = torch.roll(part, tuple(random.integers(-1, 2, 2).tolist()), (1, 2))
                    grey = moved * torch.from_numpy(random.uniform(0.7, 1, (BATCH, 1, 1))).float()
                    yield functional.cross_entropy(self(grey), wanted, label_smoothing=SMOOTHING)

        learn(self, RATE, self.recipe["digits"] // BATCH, losses())
        return simulated_digits(self.recipe["axes_from"], seed, chunks)[0]

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
