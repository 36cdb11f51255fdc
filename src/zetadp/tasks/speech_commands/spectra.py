"""The complex spectrogram of a clip, with the conventions of ``tf.signal.stft``."""

from __future__ import annotations

import numpy as np

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
