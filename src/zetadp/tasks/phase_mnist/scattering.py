"""The scattering transform: features of an image from a fixed formula. Nothing is learnt, so they cost no privacy.

The features are moduli of Morlet wavelet transforms up to order two, averaged over windows of 2^J pixels (Bruna and
Mallat 2013, doi:10.1109/TPAMI.2012.230). Filters, reflecting border and order of channels are the same as in Kymatio
(Andreux et al. 2020). Kymatio itself is not used, because its last release does not work with current versions of
SciPy.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

SCALES, ANGLES = 2, 8
SLANT = 4 / ANGLES
WIDTH, FREQUENCY = 0.8, 3 * np.pi / 4
"""Standard deviation and centre frequency of the finest wavelet, in pixels and radians per pixel."""
CHANNELS = 1 + SCALES * ANGLES + ANGLES**2 * SCALES * (SCALES - 1) // 2
GROUP = 3
"""Number of neighbouring channels that are normalised together."""
PASS = 32
"""Number of images in one pass. More would not fit into the processor's cache."""


def scattering(images: Tensor) -> Tensor:
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
    return torch.cat([_scattered(images[start : start + PASS].float()) for start in range(0, len(images), PASS)])


def normalised(coefficients: Tensor) -> Tensor:
    """Standardise each group of neighbouring channels to mean zero and variance one, within each image.

    Parameters
    ----------
    coefficients
        The result of `scattering`.

    Returns
    -------
    Shape (image, feature).
    """
    return functional.group_norm(coefficients, CHANNELS // GROUP).flatten(1)


def _scattered(images: Tensor) -> Tensor:
    padded = functional.pad(images.unsqueeze(1), (2**SCALES,) * 4, mode="reflect")
    wavelets = _wavelets(padded.shape[2], padded.shape[3])
    waves = torch.fft.fft2(padded)
    found, second = [_averaged(padded, 0)], []
    for scale in range(SCALES):
        moduli = _moduli(waves, wavelets[scale], scale)
        found.append(_averaged(moduli, scale))
        for coarser in range(scale + 1, SCALES):
            filters = _periodised(wavelets[coarser], scale)
            of_moduli = _moduli(torch.fft.fft2(moduli).unsqueeze(2), filters, coarser - scale)
            second.append(_averaged(of_moduli, coarser).flatten(1, 2))
    return torch.cat((*found, *second), dim=1)


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
    found = np.zeros((rows, columns), dtype=np.complex128)
    for up in range(-2, 3):
        for left in range(-2, 3):
            y, x = np.mgrid[up * rows : (up + 1) * rows, left * columns : (left + 1) * columns].astype(float)
            along, across = y * np.cos(angle) + x * np.sin(angle), x * np.cos(angle) - y * np.sin(angle)
            found += np.exp(-(along**2 + (slant * across) ** 2) / (2 * width**2) + 1j * frequency * along)
    return found * slant / (2 * np.pi * width**2)
