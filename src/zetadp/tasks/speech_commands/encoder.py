"""The public encoder of clips: scattering, and a network that learnt to tell simulated words. It heard no recording."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from zetadp.tasks.phase_mnist.features import Encoder, fit_encoder, unit
from zetadp.tasks.speech_commands.scattering import scattering
from zetadp.tasks.speech_commands.simulated import simulated_words
from zetadp.tasks.speech_commands.word_network import CHUNK, WordNetwork, fit_word_network, log_mel
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
    words
        Simulated words that the network learns from; a multiple of 640.
    passes
        How often it hears each.
    axes_from
        Simulated words that principal axes are computed of.
    scattering, learned
        Components of the scattering coefficients, and of the network's hidden layer; together an even number.
    seed
        Seed of words and weights.
    """

    words: int = 9600
    passes: int = 4
    axes_from: int = 3200
    scattering: int = 136
    learned: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every setting."""
        positive(words=self.words, passes=self.passes)
        positive(axes_from=self.axes_from, scattering=self.scattering, learned=self.learned)
        if self.words % CHUNK:
            raise UserError(f"Expected task.settings.encoder.words to be a multiple of {CHUNK}, found {self.words}.")
        if (self.scattering + self.learned) % 2:
            raise UserError("Expected task.settings.encoder.scattering and learned to be an even number together.")


@dataclass(frozen=True)
class PublicEncoder:
    """An encoder of clips.

    Attributes
    ----------
    settings
        What it was made by.
    network
        The network that tells simulated words.
    parts
        What makes components of scattering coefficients, and of the network's hidden layer.
    """

    settings: EncoderSettings
    network: WordNetwork
    parts: tuple[Encoder, Encoder]

    @classmethod
    def fit(cls, settings: EncoderSettings) -> PublicEncoder:
        """Train the network and find the principal axes, on simulated words alone."""
        network = fit_word_network(settings.words, settings.passes, settings.seed)
        starts = range(0, settings.axes_from, CHUNK)
        counts = [min(CHUNK, settings.axes_from - start) for start in starts]
        first = settings.words // CHUNK
        sounds = torch.cat(
            [
                torch.from_numpy(simulated_words(count, settings.seed, first + number)[0])
                for number, count in enumerate(counts)
            ]
        )
        found = (
            fit_encoder(_scattered, sounds, settings.scattering),
            fit_encoder(_heard_by(network), sounds, settings.learned),
        )
        return cls(settings, network, found)

    def features(self, waves: np.ndarray) -> np.ndarray:
        """Return complex features of clips of norm one, shape (clip, 1, component); each of its own clip alone.

        Real components are taken two by two as real and imaginary part.
        """
        sounds = torch.from_numpy(waves)
        counts = (self.settings.scattering, self.settings.learned)
        scaled = [part.scaled(part.components(sounds), n) for part, n in zip(self.parts, counts, strict=True)]
        pairs = unit(torch.cat(scaled, dim=1)).unflatten(1, (-1, 2))  # type: ignore[no-untyped-call]
        return np.asarray(torch.view_as_complex(pairs.contiguous())[:, None].numpy())

    def save(self, path: Path) -> None:
        """Write the encoder to a safetensors file, whole or not at all."""
        tensors = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        for number, part in enumerate(self.parts):
            tensors |= {f"{number}.centre": part.centre, f"{number}.axes": part.axes}
            tensors |= {f"{number}.variances": part.variances}
        save_tensors(path, tensors, {"word_encoder": asdict(self.settings)})

    @classmethod
    def load(cls, path: Path) -> PublicEncoder:
        """Read an encoder that `save` wrote.

        Raises
        ------
        UserError
            If the file is absent, damaged or not an encoder of words.
        """
        tensors, content = load_tensors(path)
        try:
            network = WordNetwork().eval().requires_grad_(requires_grad=False)
            own = {name.removeprefix("network."): t for name, t in tensors.items() if name.startswith("network.")}
            network.load_state_dict(own)
            parts = [
                Encoder(extract, *(tensors[f"{number}.{name}"] for name in ("centre", "axes", "variances")))
                for number, extract in enumerate((_scattered, _heard_by(network)))
            ]
            return cls(EncoderSettings(**content["word_encoder"]), network, (parts[0], parts[1]))
        except (KeyError, TypeError, RuntimeError) as error:
            raise UserError(f"Expected {path} to be an encoder of words, found another file: {error}.") from error


def about(settings: dict[str, Any]) -> EncoderSettings:
    """Return the encoder's settings from a section of a configuration."""
    try:
        return EncoderSettings(**settings)
    except TypeError as error:
        raise UserError(f"task.settings.encoder: {error}.") from error


def _scattered(waves: Tensor) -> Tensor:
    return scattering(waves.numpy())


def _heard_by(network: WordNetwork) -> Any:  # noqa: ANN401  (a function of tensors)
    def extract(waves: Tensor) -> Tensor:
        return network.features(log_mel(waves.numpy()))

    return extract
