"""A small network that is trained to classify simulated words. Its hidden layer gives public features of real clips."""

from __future__ import annotations

import logging
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from zetadp.backbone.encoder import Learning, new
from zetadp.base.randomness import Purpose, stream
from zetadp.tasks.speech_commands.clips import RATE, WORDS
from zetadp.tasks.speech_commands.simulated import simulated_words
from zetadp.tasks.speech_commands.spectra import FOURIER, spectrogram

logger = logging.getLogger(__name__)

BANDS = 32
WIDTHS = (16, 32, 64, 64)
HIDDEN = 128
BATCH = 64
CHUNK = 10 * BATCH
"""Number of words that are simulated together."""
RATE_OF_LEARNING = 3e-3
SMOOTHING = 0.05


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
    found = torch.from_numpy(np.log(power + 1e-4 * power.mean(axis=(1, 2), keepdims=True) + 1e-9)).float()
    centred = found - found.mean(dim=(1, 2), keepdim=True)
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


class WordNetwork(nn.Module):
    """A network of four convolutions, normalised within each clip, and a hidden layer on maxima over time."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for number, (before, width) in enumerate(zip((1, *WIDTHS), WIDTHS, strict=False)):
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU()]
            layers += [nn.MaxPool2d(2)] if number < len(WIDTHS) - 1 else []
        self.blocks = nn.Sequential(*layers)
        # Maxima over each third of the clip, and over the whole clip. The thirds show the order of sounds in a word.
        self.hidden = nn.Linear(WIDTHS[-1] * (BANDS // 8) * 4, HIDDEN)
        self.head = nn.Linear(HIDDEN, len(WORDS))

    def features(self, bands: Tensor) -> Tensor:
        """Return the hidden layer, shape (clip, `HIDDEN`), for what `log_mel` returns."""
        found = self.blocks(bands.unsqueeze(1))
        thirds = functional.adaptive_max_pool2d(found, (3, found.shape[3]))
        pooled = torch.cat((thirds, thirds.amax(dim=2, keepdim=True)), dim=2)
        return functional.relu(self.hidden(pooled.flatten(1)))

    def forward(self, bands: Tensor) -> Tensor:
        """Return class scores of shape (clip, word)."""
        scores: Tensor = self.head(self.features(bands))
        return scores


def fit_word_network(words: int, passes: int, seed: int) -> WordNetwork:
    """Train the network on simulated words.

    Parameters
    ----------
    words
        Number of words, a multiple of `CHUNK`.
    passes
        Number of passes over the words. In each pass, words are shifted in time and pitch, and parts of them are
        hidden.
    seed
        Seed of words and weights.

    Returns
    -------
    The network in evaluation mode, without gradients.
    """
    random = stream(seed, Purpose.WEIGHTS)
    network = new(WordNetwork, random)
    made = []
    for number in range(words // CHUNK):
        waves, labels = simulated_words(CHUNK, seed, number)
        made.append((log_mel(waves), torch.from_numpy(labels)))
    inputs, wanted = (torch.cat(parts) for parts in zip(*made, strict=True))
    logger.info("simulated %d words", words)
    learning = Learning(network, RATE_OF_LEARNING, passes * (words // BATCH))
    for turn in range(passes):
        for chosen in np.array_split(random.permutation(words), words // BATCH):
            scores = network(_varied(inputs[chosen], random))
            loss = functional.cross_entropy(scores, wanted[chosen], label_smoothing=SMOOTHING)
            learning.step(loss)
        logger.info("pass %d of %d: loss %.3f", turn + 1, passes, float(loss.detach()))
    return network.eval().requires_grad_(requires_grad=False)


def _varied(bands: Tensor, random: np.random.Generator) -> Tensor:
    """Return clips shifted by up to 0.1 s and one mel band, with some frames and bands hidden."""
    moved = torch.roll(bands, (int(random.integers(-12, 13)), int(random.integers(-1, 2))), (1, 2)).clone()
    for axis, most in ((1, 16), (2, 5)):
        for row in np.flatnonzero(random.random(len(moved)) < 0.5):
            width = int(random.integers(1, most + 1))
            start = int(random.integers(0, moved.shape[axis] - width))
            moved[row].narrow(axis - 1, start, width).zero_()
    return moved
