"""Scattering of sound over time: features of a clip from a fixed formula. Nothing is learnt, so they cost no privacy.

The first order is the modulus of a complex wavelet transform of the sound. The second order is the modulus of another
wavelet transform over time, applied to the first order. Both are averaged over windows (Anden and Mallat 2014,
doi:10.1109/TSP.2014.2326991). The second order is divided by the first. The features are the logarithms of both.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from zetadp.tasks.speech_commands.clips import RATE

SAMPLES = 1 << 14
"""Samples of a padded clip."""
HIGHEST, LOWEST, PER_OCTAVE = 7000.0, 180.0, 8
"""Highest and lowest centre frequency of the first order in Hz, and number of centre frequencies per octave."""
BROAD = 0.06
"""Standard deviation of a first-order filter in frequency, as a share of its centre."""
MODULATIONS = (4.0, 8.0, 16.0, 32.0, 64.0)
"""Centre frequencies of the second order in Hz."""
BAND = 1 << 12
"""Number of frequencies that are kept around the centre of each first-order filter: a band of 4 kHz."""
SLOW = 1 << 9
"""Number of frequencies that are kept of the moduli: up to 256 Hz."""
WINDOWS = (16, 8)
"""Number of windows for each order, over the 1.024 s of a padded clip."""
FLOOR = 1e-3
"""Constant that is added before the logarithm, as a share of the clip's mean."""
PASS = 32
"""Clips that are processed together."""


def scattering(waves: np.ndarray) -> Tensor:
    """Return the scattering coefficients of clips. Those of a clip depend on this clip alone.

    Parameters
    ----------
    waves
        int16, shape (clip, sample). Each clip is first shifted so that the centre of its energy is in the middle.

    Returns
    -------
    float32, shape (clip, coefficient). First-order coefficients come first, by frequency and window. Second-order
    coefficients follow, by frequency, modulation and window.
    """
    return torch.cat([_scattered(waves[start : start + PASS]) for start in range(0, len(waves), PASS)])


def _scattered(waves: np.ndarray) -> Tensor:
    spectra = torch.fft.fft(centred(torch.from_numpy(waves.astype(np.float32) / 32768)))
    filters, places = _first_filters()
    bands = spectra[:, places] * filters
    moduli = torch.fft.ifft(bands).abs()
    slow = _cropped(torch.fft.fft(moduli), SLOW)
    first = _averages(slow, WINDOWS[0]).clamp_min(0)
    waves_of_moduli = torch.fft.ifft(slow.unsqueeze(2) * _second_filters()).abs()
    second = _averages(torch.fft.fft(waves_of_moduli), WINDOWS[1]).clamp_min(0)
    whole = first.mean(dim=(1, 2), keepdim=True).clamp_min(1e-12)
    first = first + FLOOR * whole
    mean = _averages(slow, WINDOWS[1]).clamp_min(0) + FLOOR * whole
    return torch.cat((first.log().flatten(1), (second / mean.unsqueeze(2) + FLOOR).log().flatten(1)), dim=1)


def centred(waves: Tensor) -> Tensor:
    """Pad waves with zeros to `SAMPLES`, and shift each so that the centre of its energy is in the middle."""
    energy = waves.square()
    centre = (energy * torch.arange(waves.shape[1])).sum(dim=1) / energy.sum(dim=1).clamp_min(1e-12)
    found = torch.zeros(len(waves), SAMPLES)
    found[:, : waves.shape[1]] = waves
    moved = (SAMPLES // 2 - centre).round().long()
    at = (torch.arange(SAMPLES) - moved[:, None]) % SAMPLES
    moved_there: Tensor = found.gather(1, at)
    return moved_there


@lru_cache
def _first_filters() -> tuple[Tensor, Tensor]:
    """Return filters around their centres, shape (filter, `BAND`), and the positions of their frequencies."""
    count = int(np.log2(HIGHEST / LOWEST) * PER_OCTAVE) + 1
    centres = HIGHEST * 2 ** (-torch.arange(count) / PER_OCTAVE)
    offsets = torch.fft.fftfreq(BAND, 1 / BAND)
    step = RATE / SAMPLES
    places = (centres / step).round().long()[:, None] + offsets.long()
    frequency = places * step
    # Negative frequencies are left out: the wavelets are analytic.
    filters = torch.exp(-(((frequency - centres[:, None]) / (BROAD * centres[:, None])) ** 2) / 2) * (frequency > 0)
    return filters, places % SAMPLES


@lru_cache
def _second_filters() -> Tensor:
    frequency = torch.fft.fftfreq(SLOW, 1 / SLOW) * RATE / SAMPLES
    centres = torch.tensor(MODULATIONS)[:, None]
    filters: Tensor = torch.exp(-(((frequency - centres) / (0.35 * centres)) ** 2) / 2) * (frequency > 0)
    return filters


def _cropped(spectra: Tensor, size: int) -> Tensor:
    """Return the lowest frequencies of spectra, scaled as spectra of signals with `size` points."""
    half = size // 2
    kept = torch.cat((spectra[..., :half], spectra[..., -half:]), dim=-1)
    return kept * (size / spectra.shape[-1])


def _averages(spectra: Tensor, places: int) -> Tensor:
    """Return averages over equally spaced Gaussian windows. Their width equals the distance between two windows."""
    size = spectra.shape[-1]
    frequency = torch.fft.fftfreq(size, 1 / size)
    averaged = torch.fft.ifft(spectra * torch.exp(-((frequency * np.pi / places) ** 2) / 2)).real
    found: Tensor = averaged[..., size // (2 * places) :: size // places]
    return found
