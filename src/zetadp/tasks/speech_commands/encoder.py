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
    from zetadp.nn.settings import NetworkSettings


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

    @property
    def components(self) -> int:
        """Number of complex features."""
        return (self.settings.scattering + self.settings.learned) // 2

    def features(self, waves: np.ndarray) -> np.ndarray:
        """Return complex features of clips of norm one, shape (clip, 1, component); each of its own clip alone.

        Real components are taken two by two as real and imaginary part.
        """
        found = self.joined(torch.from_numpy(waves), self.settings.scattering, self.settings.learned)
        pairs = found.unflatten(1, (-1, 2))  # type: ignore[no-untyped-call]
        return np.asarray(torch.view_as_complex(pairs.contiguous())[:, None].numpy())

    def start(self, network: NetworkSettings) -> dict[str, Tensor]:
        r"""Return the network's own head as starting weights of a head on `features`.

        The hidden layer is :math:`c + V D^{1/4} n u`, up to axes that are left out, with centre :math:`c`, axes
        :math:`V`, variances :math:`D`, and :math:`u` of norm one, of which features hold :math:`u / \sqrt 2`. Its norm
        :math:`n` differs from clip to clip and is not among the features, so its root mean square over public words
        stands for it.

        Raises
        ------
        UserError
            If the head takes only some of the features.
        """
        if network.components not in (0, self.components):
            raise UserError(
                f"Expected a head on all {self.components} components to start publicly, found {network.components}."
            )
        own = self.settings
        part, head = self.parts[1], self.network.head
        spread = part.variances[: own.learned].sqrt()
        size = (2 * spread.sum()).sqrt()
        learned = head.weight @ part.axes[:, : own.learned] * spread.sqrt() * size
        real = torch.cat((torch.zeros(len(learned), own.scattering), learned), dim=1)
        # The score is the real part of a complex product, so imaginary parts count with the other sign.
        weight = torch.complex(real[:, ::2], -real[:, 1::2])
        bias = torch.complex(head.bias + head.weight @ part.centre, torch.zeros(len(head.bias)))
        return {"affine.weight": weight, "affine.bias": bias}


def _scattered(waves: Tensor) -> Tensor:
    return scattering(waves.numpy())
