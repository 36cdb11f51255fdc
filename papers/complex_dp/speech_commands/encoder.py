"""Spectra of clips, and their public encoder: scattering, and a network that was trained on simulated words only.

The complex spectrogram has the conventions of ``tf.signal.stft``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from papers.complex_dp.encoder import PublicEncoder, learn
from papers.complex_dp.scattering import scattering_of_sounds
from papers.complex_dp.speech_commands.clips import NAMES, RATE, WORDS
from papers.complex_dp.speech_commands.simulated import simulated_words
from zetadp.base.storage import Items
from zetadp.base.validation import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from papers.complex_dp.encoder import Extract
    from zetadp.nn.settings import NetworkSettings

BANDS = 32
"""Number of mel bands."""
FRAME, STEP, FOURIER = 255, 128, 256
"""Samples in a frame, samples between the starts of two frames, and length of the zero-padded Fourier transform."""
WINDOW = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FRAME) / (FRAME - 1))).astype(np.float32)
"""The Hann window of ``tf.signal.hann_window(255)``: its period is L if the length L is even, L - 1 if it is odd."""
BATCH = 64
LEARNING_RATE = 3e-3
SMOOTHING = 0.05
CHUNK = 10 * BATCH
"""Number of words that are simulated together."""


def spectrogram(waves: np.ndarray) -> np.ndarray:
    """Return the short-time Fourier transform of each clip.

    Parameters
    ----------
    waves
        int16 samples, shape (clip, sample). They are scaled to [-1, 1).

    Returns
    -------
    complex64, shape (clip, frame, frequency). A clip of one second at 16 kHz gives 124 x 129 numbers. Frames that would
    extend past the end of the clip are left out.
    """
    scaled = waves.astype(np.float32) / 32768
    frames = np.lib.stride_tricks.sliding_window_view(scaled, FRAME, axis=1)[:, ::STEP]
    spectra: np.ndarray = np.fft.rfft(frames * WINDOW, n=FOURIER, axis=2).astype(np.complex64)
    return spectra


def log_mel(waves: np.ndarray) -> Tensor:
    """Return the logarithm of the energy in mel bands. Each clip is standardised to mean zero and variance one.

    Parameters
    ----------
    waves
        int16 samples, shape (clip, sample).

    Returns
    -------
    float32, shape (clip, frame, `BANDS`). The values of a clip depend on this clip alone.
    """
    power = np.abs(spectrogram(waves)) ** 2 @ _mel_bands()
    logarithms = torch.from_numpy(np.log(power + 1e-4 * power.mean(axis=(1, 2), keepdims=True) + 1e-9)).float()
    centred = logarithms - logarithms.mean(dim=(1, 2), keepdim=True)
    return centred / centred.square().mean(dim=(1, 2), keepdim=True).sqrt().clamp_min(1e-6)


@lru_cache
def _mel_bands() -> np.ndarray:
    """Return triangular filters of equal width on the mel scale, from 60 Hz to 7.8 kHz, shape (frequency, band)."""
    lowest, highest = (float(2595 * np.log10(1 + hertz / 700)) for hertz in (60, 7800))
    edges = np.linspace(lowest, highest, BANDS + 2)
    hertz = 700 * (10 ** (edges / 2595) - 1)
    frequency = np.arange(FOURIER // 2 + 1) * RATE / FOURIER
    # Low bands are narrower than the distance between two frequencies. Widen them to one distance at least.
    width = np.maximum(np.diff(hertz), RATE / FOURIER)
    rise = (frequency[:, None] - hertz[1:-1]) / width[:-1] + 1
    fall = (hertz[1:-1] - frequency[:, None]) / width[1:] + 1
    return np.asarray(np.minimum(rise, fall).clip(0).astype(np.float32))


class WordEncoder(PublicEncoder):
    """An encoder of clips: scattering coefficients, and the hidden layer of a network that classifies words.

    The network takes clips as `log_mel` returns them.
    """

    of = "words"
    # The number of words is a multiple of `CHUNK`. Components are taken in pairs, so they are an even number together.
    recipe: ClassVar = {"seed": 0, "axes_from": 3200, "scattering": 136, "learned": 64, "words": 9600, "passes": 4}
    component_keys = ("scattering", "learned")
    names = NAMES
    widths = (16, 32, 64, 64)
    flat = 64 * (BANDS // 8) * 4
    hidden_units = 128
    outputs = len(WORDS)

    def pooled(self, maps: Tensor) -> Tensor:
        """Return maxima over each third of the clip, which show the order of sounds, and over the whole clip."""
        thirds = functional.adaptive_max_pool2d(maps, (3, maps.shape[3]))
        return torch.cat((thirds, thirds.amax(dim=2, keepdim=True)), dim=2).flatten(1)

    def maps(self) -> tuple[Extract, ...]:
        """Return the functions that compute scattering coefficients and the network's hidden layer."""
        return scattering_of_sounds, lambda waves: self.hidden_layer(log_mel(waves.numpy()))

    def learn_simulated(self, random: np.random.Generator) -> Tensor:
        """Train the network on simulated words, and return further simulated words."""
        seed, words, passes, axes_from = (self.recipe[key] for key in ("seed", "words", "passes", "axes_from"))
        chunks, steps = words // CHUNK, words // BATCH
        chunks_made = [simulated_words(CHUNK, seed, number) for number in range(chunks)]
        inputs = torch.cat([log_mel(waves) for waves, _ in chunks_made])
        labels = torch.cat([torch.from_numpy(word_labels) for _, word_labels in chunks_made])

        def losses() -> Iterator[Tensor]:
            for _ in range(passes):
                for chosen in np.array_split(random.permutation(words), steps):
                    scores = self(_varied(inputs[chosen], random))
                    yield functional.cross_entropy(scores, labels[chosen], label_smoothing=SMOOTHING)

        learn(self, LEARNING_RATE, passes * steps, losses())
        pieces = [
            simulated_words(min(CHUNK, axes_from - start), seed, chunks + number)[0]
            for number, start in enumerate(range(0, axes_from, CHUNK))
        ]
        return torch.from_numpy(np.concatenate(pieces))

    @property
    def components(self) -> int:
        """Number of complex features."""
        return sum(len(part.variances) for part in self.parts) // 2

    def features(self, items: np.ndarray) -> np.ndarray:
        """Return features of norm one, complex64, shape (clip, 1, 1, component).

        Each pair of real components gives the real and the imaginary part of one complex component.

        Parameters
        ----------
        items
            int16 samples, shape (clip, sample).
        """
        pairs = self.unit_features(torch.from_numpy(items)).unflatten(1, (-1, 2))  # type: ignore[no-untyped-call]
        return np.asarray(torch.view_as_complex(pairs.contiguous())[:, None, None].numpy())

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
        scattered, part = self.parts
        head = self.head
        spread = part.variances.sqrt()
        size = (2 * spread.sum()).sqrt()
        learned = head.weight @ part.axes * spread.sqrt() * size
        real = torch.cat((torch.zeros(len(learned), len(scattered.variances)), learned), dim=1)
        # The score is the real part of a complex product, so imaginary parts need the opposite sign.
        weight = torch.complex(real[:, ::2], -real[:, 1::2])
        bias = torch.complex(head.bias + head.weight @ part.centre, torch.zeros(len(head.bias)))
        return {"affine.weight": weight, "affine.bias": bias}


def _varied(bands: Tensor, random: np.random.Generator) -> Tensor:
    """Return clips shifted by up to 0.1 s and one mel band, with some frames and bands hidden."""
    moved = torch.roll(bands, (int(random.integers(-12, 13)), int(random.integers(-1, 2))), (1, 2)).clone()
    for axis, most in ((1, 16), (2, 5)):
        for row in np.flatnonzero(random.random(len(moved)) < 0.5):
            width = int(random.integers(1, most + 1))
            start = int(random.integers(0, moved.shape[axis] - width))
            moved[row].narrow(axis - 1, start, width).zero_()
    return moved


def transform_clips(*, clips: Path, spectra: Path, magnitudes: Path) -> None:
    """Write spectrograms and magnitudes, each computed from one clip alone."""
    items = Items.read(clips, names=NAMES)
    waves = items.arrays["values"]
    values = np.concatenate([spectrogram(part) for part in np.array_split(waves, 1 + len(waves) // 500)])
    for path, array in ((spectra, values), (magnitudes, np.abs(values))):
        axes = ("clip", "channel", "frame", "frequency")
        Items({**items.arrays, "values": array[:, None]}, items.names).write(path, axes, "1")
