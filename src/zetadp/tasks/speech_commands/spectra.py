"""The complex spectrogram of a clip, by the conventions of ``tf.signal.stft``."""

from __future__ import annotations

import numpy as np

FRAME, STEP, FOURIER = 255, 128, 256
"""Samples of a frame and between frames, and length of its Fourier transform, which pads the frame with zeros."""


def spectrogram(waves: np.ndarray) -> np.ndarray:
    """Return short-time Fourier transforms of clips, each of its own clip alone.

    Parameters
    ----------
    waves
        int16 samples of shape (clip, sample), which become numbers in [-1, 1).

    Returns
    -------
    complex64, shape (clip, frame, frequency): 124 x 129 of a clip of one second at 16 kHz. Frames that would reach
    beyond the end are left out.
    """
    scaled = waves.astype(np.float32) / 32768
    frames = np.lib.stride_tricks.sliding_window_view(scaled, FRAME, axis=1)[:, ::STEP]
    found: np.ndarray = np.fft.rfft(frames * window(), n=FOURIER, axis=2).astype(np.complex64)
    return found


def window() -> np.ndarray:
    """Return the Hann window, shape (`FRAME`,), as ``tf.signal.hann_window(255)`` gives it.

    TensorFlow's periodic window has the period L only where the length L is even; at an odd one it is L - 1.
    """
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FRAME) / (FRAME - 1))).astype(np.float32)
