"""Spectra of clips: the complex spectrogram with the conventions of ``tf.signal.stft``, and the energy in mel bands."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from zetadp.tasks.items import Items
from zetadp.tasks.speech_commands.clips import RATE

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

BANDS = 32
"""Number of mel bands."""
FRAME, STEP, FOURIER = 255, 128, 256
"""Samples in a frame, samples between the starts of two frames, and length of the zero-padded Fourier transform."""


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
    found: np.ndarray = np.fft.rfft(frames * window(), n=FOURIER, axis=2).astype(np.complex64)
    return found


def window() -> np.ndarray:
    """Return the Hann window of ``tf.signal.hann_window(255)``, float32, shape (`FRAME`,).

    TensorFlow's periodic window has the period L if the length L is even, and L - 1 if it is odd.
    """
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FRAME) / (FRAME - 1))).astype(np.float32)


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


def transform_clips(*, clips: Path, spectra: Path, magnitudes: Path) -> None:
    """Write spectrograms and magnitudes, each computed from one clip alone."""
    found = Items.read(clips, names=("clip", "speaker"))
    waves = found.arrays["values"]
    values = np.concatenate([spectrogram(part) for part in np.array_split(waves, 1 + len(waves) // 500)])
    for path, each in ((spectra, values), (magnitudes, np.abs(values))):
        Items({**found.arrays, "values": each}, found.names).write(path, ("clip", "frame", "frequency"), "1")
    logger.info("%d spectrograms of %d x %d", *values.shape)
