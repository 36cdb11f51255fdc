"""The public encoder: scattering, and a network that learnt to read simulated digits. It saw no image of MNIST."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from zetadp.tasks.phase_mnist.digit_network import CHUNK, DigitNetwork, fit_digit_network
from zetadp.tasks.phase_mnist.features import Encoder, fit_encoder, unit
from zetadp.tasks.phase_mnist.scattering import normalised, scattering
from zetadp.tasks.phase_mnist.simulated import simulated_digits
from zetadp.tensors import load_tensors, save_tensors
from zetadp.validation import UserError, positive

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor


@dataclass(frozen=True)
class EncoderSettings:
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


@dataclass(frozen=True)
class PublicEncoder:
    """An encoder of images.

    Attributes
    ----------
    settings
        What it was made by.
    network
        The network that reads digits.
    parts
        What makes components of scattering coefficients, and of the network's hidden layer.
    """

    settings: EncoderSettings
    network: DigitNetwork
    parts: tuple[Encoder, Encoder]

    @classmethod
    def fit(cls, settings: EncoderSettings) -> PublicEncoder:
        """Train the network and find the principal axes, on simulated digits alone."""
        network = fit_digit_network(settings.digits, settings.seed)
        images, _ = simulated_digits(settings.axes_from, settings.seed, settings.digits // CHUNK)
        found = (
            fit_encoder(_scattered, images, settings.scattering),
            fit_encoder(network.features, images, settings.learned),
        )
        return cls(settings, network, found)

    def features(self, images: np.ndarray) -> Tensor:
        """Return features of norm one of uint8 images, shape (image, component); each of its own image alone."""
        pixels = torch.from_numpy(images.astype(np.float32) / 255)
        counts = (self.settings.scattering, self.settings.learned)
        return unit(
            torch.cat(
                [part.scaled(part.components(pixels), n) for part, n in zip(self.parts, counts, strict=True)], dim=1
            )
        )

    def save(self, path: Path) -> None:
        """Write the encoder to a safetensors file, whole or not at all."""
        tensors = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        for number, part in enumerate(self.parts):
            tensors |= {f"{number}.centre": part.centre, f"{number}.axes": part.axes}
            tensors |= {f"{number}.variances": part.variances}
        save_tensors(path, tensors, {"encoder": asdict(self.settings)})

    @classmethod
    def load(cls, path: Path) -> PublicEncoder:
        """Read an encoder that `save` wrote.

        Raises
        ------
        UserError
            If the file is absent, damaged or not an encoder.
        """
        tensors, content = load_tensors(path)
        try:
            network = DigitNetwork().eval().requires_grad_(requires_grad=False)
            own = {name.removeprefix("network."): t for name, t in tensors.items() if name.startswith("network.")}
            network.load_state_dict(own)
            parts = [
                Encoder(extract, *(tensors[f"{number}.{name}"] for name in ("centre", "axes", "variances")))
                for number, extract in enumerate((_scattered, network.features))
            ]
            return cls(EncoderSettings(**content["encoder"]), network, (parts[0], parts[1]))
        except (KeyError, TypeError, RuntimeError) as error:
            msg = f"Expected {path} to be an encoder of digits, found another file of zetadp: {error}."
            raise UserError(msg) from error


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


def about(settings: dict[str, Any]) -> EncoderSettings:
    """Return the encoder's settings from a section of a configuration."""
    try:
        return EncoderSettings(**settings)
    except TypeError as error:
        msg = f"task.settings.encoder: {error}."
        raise UserError(msg) from error
