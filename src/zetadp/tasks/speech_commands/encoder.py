"""The public encoder of clips: scattering, and a network that learnt to tell simulated words. It heard no recording."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from zetadp.backbone.axes import fit_axes
from zetadp.backbone.encoder import PublicEncoder
from zetadp.tasks.speech_commands.scattering import scattering
from zetadp.tasks.speech_commands.simulated import simulated_words
from zetadp.tasks.speech_commands.word_network import CHUNK, WordNetwork, fit_word_network, log_mel
from zetadp.validation import UserError, positive

if TYPE_CHECKING:
    from torch import Tensor

    from zetadp.backbone.axes import Extract


@dataclass(frozen=True)
class WordEncoderSettings:
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


class WordEncoder(PublicEncoder[WordEncoderSettings, WordNetwork]):
    """An encoder of clips: of scattering coefficients, and of the hidden layer of a network that tells words."""

    of = "words"
    key = "word_encoder"
    kinds = (WordEncoderSettings, WordNetwork)

    @staticmethod
    def maps(network: WordNetwork) -> tuple[Extract, ...]:
        """Return scattering and the network's hidden layer."""
        return _scattered, lambda waves: network.features(log_mel(waves.numpy()))

    @classmethod
    def fit(cls, settings: WordEncoderSettings) -> WordEncoder:
        """Train the network and find the principal axes, on simulated words alone."""
        network = fit_word_network(settings.words, settings.passes, settings.seed)
        first = settings.words // CHUNK
        pieces = [
            simulated_words(min(CHUNK, settings.axes_from - start), settings.seed, first + number)[0]
            for number, start in enumerate(range(0, settings.axes_from, CHUNK))
        ]
        sounds = torch.from_numpy(np.concatenate(pieces))
        counts = (settings.scattering, settings.learned)
        parts = [fit_axes(extract, sounds, n) for extract, n in zip(cls.maps(network), counts, strict=True)]
        return cls(settings, network, tuple(parts))

    def features(self, waves: np.ndarray) -> np.ndarray:
        """Return complex features of clips of norm one, shape (clip, 1, component); each of its own clip alone.

        Real components are taken two by two as real and imaginary part.
        """
        found = self.joined(torch.from_numpy(waves), self.settings.scattering, self.settings.learned)
        pairs = found.unflatten(1, (-1, 2))  # type: ignore[no-untyped-call]
        return np.asarray(torch.view_as_complex(pairs.contiguous())[:, None].numpy())


def _scattered(waves: Tensor) -> Tensor:
    return scattering(waves.numpy())
