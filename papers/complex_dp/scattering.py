"""The scattering transform: features of images and of sounds by fixed formulas. Nothing is learnt, so they are public.

The features are moduli of wavelet transforms up to order two, averaged over windows.

*Images* (Bruna and Mallat 2013, doi:10.1109/TPAMI.2012.230): Morlet wavelets, and windows of 2^J pixels. Filters,
reflecting border and order of channels are the same as in Kymatio (Andreux et al. 2020). Kymatio itself is not used,
because its last release does not work with current versions of SciPy.

*Sounds* (Anden and Mallat 2014, doi:10.1109/TSP.2014.2326991): the first order is the modulus of a complex wavelet
transform of the sound. The second order is the modulus of another wavelet transform over time, applied to the first
order, and is divided by it. The features are the logarithms of both.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

PASS = 32
"""Number of items in one pass. More would not fit into the processor's cache."""

SCALES, ANGLES = 2, 8
SLANT = 4 / ANGLES
WIDTH, FREQUENCY = 0.8, 3 * np.pi / 4
"""Standard deviation and centre frequency of the finest wavelet, in pixels and radians per pixel."""
CHANNELS = 1 + SCALES * ANGLES + ANGLES**2 * SCALES * (SCALES - 1) // 2
GROUP = 3
"""Number of neighbouring channels that are normalised together."""

RATE = 16_000
"""Samples of a sound per second."""
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


def scattering_of_images(images: Tensor) -> Tensor:
    """Return the scattering coefficients of images. Those of an image depend on this image alone.

    Parameters
    ----------
    images
        Real images, shape (image, row, column). The numbers of rows and columns are multiples of 2^J = 4.

    Returns
    -------
    float32, shape (image, `CHANNELS`, row / 4, column / 4). The first channel is the local mean. Then comes one channel
    for each wavelet, by scale and angle, and one for each pair of a finer and a coarser wavelet.
    """
    return _in_passes(_of_images, images)


def normalised(coefficients: Tensor) -> Tensor:
    """Standardise each group of neighbouring channels to mean zero and variance one, within each image.

    Parameters
    ----------
    coefficients
        The result of `scattering_of_images`.

    Returns
    -------
    Shape (image, feature).
    """
    return functional.group_norm(coefficients, CHANNELS // GROUP).flatten(1)


def _of_images(images: Tensor) -> Tensor:
    padded = functional.pad(images.float().unsqueeze(1), (2**SCALES,) * 4, mode="reflect")
    wavelets = _wavelets(padded.shape[2], padded.shape[3])
    waves = torch.fft.fft2(padded)
    first, second = [_averaged(padded, 0)], []
    for scale in range(SCALES):
        moduli = _moduli(waves, wavelets[scale], scale)
        first.append(_averaged(moduli, scale))
        for coarser in range(scale + 1, SCALES):
            filters = _periodised(wavelets[coarser], scale)
            of_moduli = _moduli(torch.fft.fft2(moduli).unsqueeze(2), filters, coarser - scale)
            second.append(_averaged(of_moduli, coarser).flatten(1, 2))
    return torch.cat((*first, *second), dim=1)


def _moduli(waves: Tensor, filters: Tensor, halvings: int) -> Tensor:
    """Filter images, given as spectra, and return their moduli with the sides halved `halvings` times."""
    factor = 2**halvings
    rows, columns = (side // factor for side in waves.shape[-2:])
    # Keeping every factor-th point of an image is the same as folding its spectrum.
    folded = torch.zeros(())
    for up in range(factor):
        for left in range(factor):
            part = (..., slice(up * rows, (up + 1) * rows), slice(left * columns, (left + 1) * columns))
            folded = folded + waves[part] * filters[part]
    moduli: Tensor = torch.fft.ifft2(folded / factor**2).abs()
    return moduli


def _averaged(images: Tensor, scale: int) -> Tensor:
    """Return local means of images whose sides were halved `scale` times: one for 2^J pixels, without the border."""
    over_rows, over_columns = (_window(side * 2**scale, scale) for side in images.shape[-2:])
    means: Tensor = over_rows @ images @ over_columns.T
    return means


@lru_cache
def _window(side: int, scale: int) -> Tensor:
    """Return the matrix that averages along one axis, which was halved `scale` times. The window is separable."""
    spectrum = _periodised(_spectrum(_gabor(side, side, WIDTH * 2 ** (SCALES - 1), 0.0, 0.0, 1.0)), scale)
    root = spectrum[0, 0].abs().sqrt()
    of_axis: Tensor = torch.fft.ifft(
        torch.fft.fft(torch.eye(len(spectrum)), dim=0) * (spectrum[:, :1] / root), dim=0
    ).real
    return of_axis[:: 2 ** (SCALES - scale)][1:-1].contiguous()


def _periodised(filters: Tensor, halvings: int) -> Tensor:
    """Return filters, given as spectra, for images with halved sides: without frequencies that are then too high."""
    for axis in (-2, -1) if halvings else ():
        side = filters.shape[axis]
        left = side // 2 ** (halvings + 1)
        filters = torch.cat((filters.narrow(axis, 0, left), filters.narrow(axis, side - left, left)), dim=axis)
    return filters


@lru_cache
def _wavelets(rows: int, columns: int) -> list[Tensor]:
    """Return the wavelets of each scale as spectra, shape (angle, row, column)."""
    angles = [(ANGLES // 2 - 1 - number) * np.pi / ANGLES for number in range(ANGLES)]
    return [
        torch.stack(
            [_spectrum(_morlet(rows, columns, WIDTH * 2**scale, angle, FREQUENCY / 2**scale)) for angle in angles]
        )
        for scale in range(SCALES)
    ]


def _spectrum(values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.fft.fft2(values).real).float()


def _morlet(rows: int, columns: int, width: float, angle: float, frequency: float) -> np.ndarray:
    """Return a plane wave under an elongated Gaussian, corrected to have mean zero."""
    wave = _gabor(rows, columns, width, angle, frequency, SLANT)
    envelope = _gabor(rows, columns, width, angle, 0.0, SLANT)
    morlet: np.ndarray = wave - wave.sum() / envelope.sum() * envelope
    return morlet


def _gabor(rows: int, columns: int, width: float, angle: float, frequency: float, slant: float) -> np.ndarray:
    """Return a plane wave under a Gaussian around the first pixel, repeated with the image's period."""
    wavelet = np.zeros((rows, columns), dtype=np.complex128)
    for up in range(-2, 3):
        for left in range(-2, 3):
            y, x = np.mgrid[up * rows : (up + 1) * rows, left * columns : (left + 1) * columns].astype(float)
            along, across = y * np.cos(angle) + x * np.sin(angle), x * np.cos(angle) - y * np.sin(angle)
            wavelet += np.exp(-(along**2 + (slant * across) ** 2) / (2 * width**2) + 1j * frequency * along)
    return wavelet * slant / (2 * np.pi * width**2)


def scattering_of_sounds(waves: Tensor) -> Tensor:
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
    return _in_passes(_of_sounds, waves)


def _of_sounds(waves: Tensor) -> Tensor:
    spectra = torch.fft.fft(centred(waves.float() / 32768))
    filters, bins = _first_filters()
    bands = spectra[:, bins] * filters
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
    padded = torch.zeros(len(waves), SAMPLES)
    padded[:, : waves.shape[1]] = waves
    moved = (SAMPLES // 2 - centre).round().long()
    at = (torch.arange(SAMPLES) - moved[:, None]) % SAMPLES
    moved_there: Tensor = padded.gather(1, at)
    return moved_there


@lru_cache
def _first_filters() -> tuple[Tensor, Tensor]:
    """Return filters around their centres, shape (filter, `BAND`), and the positions of their frequencies."""
    count = int(np.log2(HIGHEST / LOWEST) * PER_OCTAVE) + 1
    centres = HIGHEST * 2 ** (-torch.arange(count) / PER_OCTAVE)
    offsets = torch.fft.fftfreq(BAND, 1 / BAND)
    step = RATE / SAMPLES
    bins = (centres / step).round().long()[:, None] + offsets.long()
    frequency = bins * step
    # Negative frequencies are left out: the wavelets are analytic.
    filters = torch.exp(-(((frequency - centres[:, None]) / (BROAD * centres[:, None])) ** 2) / 2) * (frequency > 0)
    return filters, bins % SAMPLES


@lru_cache
def _second_filters() -> Tensor:
    frequency = torch.fft.fftfreq(SLOW, 1 / SLOW) * RATE / SAMPLES
    centres = torch.tensor(MODULATIONS)[:, None]
    filters: Tensor = torch.exp(-(((frequency - centres) / (0.35 * centres)) ** 2) / 2) * (frequency > 0)
    return filters


def _cropped(spectra: Tensor, size: int) -> Tensor:
    """Return the lowest frequencies of spectra, scaled as spectra of signals with `size` points."""
    half = size // 2
    cropped = torch.cat((spectra[..., :half], spectra[..., -half:]), dim=-1)
    return cropped * (size / spectra.shape[-1])


def _averages(spectra: Tensor, count: int) -> Tensor:
    """Return averages over equally spaced Gaussian windows. Their width equals the distance between two windows."""
    size = spectra.shape[-1]
    frequency = torch.fft.fftfreq(size, 1 / size)
    averaged = torch.fft.ifft(spectra * torch.exp(-((frequency * np.pi / count) ** 2) / 2)).real
    averages: Tensor = averaged[..., size // (2 * count) :: size // count]
    return averages


def _in_passes(scattered: Callable[[Tensor], Tensor], items: Tensor) -> Tensor:
    return torch.cat([scattered(items[start : start + PASS]) for start in range(0, len(items), PASS)])
