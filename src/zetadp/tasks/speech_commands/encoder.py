"""The public encoder of clips: scattering, and a network that was trained on simulated words only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from zetadp.backbone.axes import fit_axes
from zetadp.backbone.encoder import PublicEncoder
from zetadp.base.validation import UserError, positive
from zetadp.tasks.speech_commands.scattering import scattering
from zetadp.tasks.speech_commands.simulated import simulated_words
from zetadp.tasks.speech_commands.word_network import CHUNK, WordNetwork, fit_word_network, log_mel

if TYPE_CHECKING:
    from torch import Tensor

    from zetadp.backbone.axes import Extract
    from zetadp.nn.settings import NetworkSettings


@dataclass(frozen=True)
class WordEncoderSettings:
    """Settings of an encoder.

    Attributes
    ----------
    words
        Number of simulated words that train the network, a multiple of 640.
    passes
        Number of passes over these words.
    axes_from
        Number of further simulated words from which the principal axes are computed.
    scattering, learned
        Number of real components from the scattering coefficients, and from the network's hidden layer. Their sum must
        be even.
    seed
        Seed of words and weights.

    Raises
    ------
    UserError
        If `words` is not a multiple of 640, or the number of components is odd.
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
    """An encoder of clips: scattering coefficients, and the hidden layer of a network that classifies words."""

    of = "words"
    key = "word_encoder"
    kinds = (WordEncoderSettings, WordNetwork)

    @staticmethod
    def maps(network: WordNetwork) -> tuple[Extract, ...]:
        """Return the functions that compute scattering coefficients and the network's hidden layer."""
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
        """Return complex features of norm one, complex64, shape (clip, 1, component).

        The features of a clip depend on this clip alone. Each pair of real components gives the real and the imaginary
        part of one complex component.

        Parameters
        ----------
        waves
            int16 samples, shape (clip, sample).
        """
        found = self.joined(torch.from_numpy(waves), self.settings.scattering, self.settings.learned)
        pairs = found.unflatten(1, (-1, 2))  # type: ignore[no-untyped-call]
        return np.asarray(torch.view_as_complex(pairs.contiguous())[:, None].numpy())

    def start(self, network: NetworkSettings) -> dict[str, Tensor]:
        r"""Return the encoder network's own head as starting weights for a head on `features`.

        The hidden layer equals :math:`c + V D^{1/4} n u`, apart from axes that were left out. Here :math:`c` is the
        centre, :math:`V` are the axes, :math:`D` the variances, and :math:`u` has norm one. The features contain
        :math:`u / \sqrt 2`. The norm :math:`n` differs between clips and is not part of the features, so it is replaced
        by its root mean square over public words.

        Raises
        ------
        UserError
            If the head uses only some of the features.
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
        # The score is the real part of a complex product, so imaginary parts need the opposite sign.
        weight = torch.complex(real[:, ::2], -real[:, 1::2])
        bias = torch.complex(head.bias + head.weight @ part.centre, torch.zeros(len(head.bias)))
        return {"affine.weight": weight, "affine.bias": bias}


def _scattered(waves: Tensor) -> Tensor:
    return scattering(waves.numpy())
