r"""K-space of images: the centred Fourier transform, whitening, and scanner effects that act there.

Each image is processed separately: no statistic crosses images or patients, so whitening costs no privacy.

The scanner effects do not change the pulse sequence, so they are variations for training on public images. All but the
flip act in k-space: a shift of the patient is a phase ramp, lower resolution is a filter, a shorter scan leaves lines
out, and receiver noise is complex. Only the magnitude of the image is returned, as in the volumes that hospitals store.
The magnitude removes the receiver's phase, so that phase is not varied.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from zetadp.base.complex_images import InverseRoot, Moments, fourier, inverse_fourier
from zetadp.base.storage import Items, present
from zetadp.base.validation import UserError, counted
from zetadp.mri.decathlon import AXES


def to_kspace(image: np.ndarray) -> np.ndarray:
    """Transform images to centred k-space.

    Parameters
    ----------
    image
        Real or complex array of shape (..., row, column).

    Returns
    -------
    Complex array of shape (..., ky, kx), complex64 for single-precision input. It has all coefficients, including
    those that are redundant for a real image by Hermitian symmetry.

    Examples
    --------
    >>> k = to_kspace(np.ones((4, 4), dtype=np.float32))
    >>> k.dtype, complex(k[2, 2])
    (dtype('complex64'), (4+0j))
    """
    return fourier(image, np)


def to_image(kspace: np.ndarray) -> np.ndarray:
    """Transform k-space to complex images of the same shape: the inverse and the adjoint of `to_kspace`."""
    return inverse_fourier(kspace, np)


def whiten(values: np.ndarray, epsilon: float = 1e-5) -> np.ndarray:
    """Whiten each complex image so that real and imaginary part are uncorrelated with unit variance.

    The mean over all coefficients of an image is subtracted; then real and imaginary part are multiplied by the inverse
    square root of their covariance (`zetadp.base.complex_images.InverseRoot`).

    Parameters
    ----------
    values
        Complex array of shape (..., ky, kx).
    epsilon
        Ridge, as a fraction of the image's mean variance per part. Because it is relative, the result does not depend
        on the arbitrary scale of MRI intensities.

    Returns
    -------
    complex64 array of the same shape.

    Raises
    ------
    UserError
        If an image is constant or not finite.

    Notes
    -----
    The k-space of a real image on an even grid has an even real and an odd imaginary part, so its covariance is
    diagonal to rounding, and whitening divides each part by its standard deviation.
    """
    moments = Moments.of(np.asarray(values, dtype=np.complex128))
    total = moments.variance_real + moments.variance_imaginary
    if not np.isfinite(total).all() or (total <= 0).any():
        bad = np.argwhere(~np.isfinite(total[..., 0, 0]) | (total[..., 0, 0] <= 0))
        first = bad[0].tolist()
        raise UserError(
            f"Cannot whiten {counted(len(bad), 'image that is', 'images that are')} constant or not finite; the first "
            f"is at index {first}."
        )
    root = InverseRoot.of(*moments[2:], epsilon * total / 2, np)
    real, imaginary = root.apply(moments.real, moments.imaginary)
    return np.asarray(real + 1j * imaginary, dtype=np.complex64)


def whiten_records(values: np.ndarray) -> np.ndarray:
    """Return `whiten` of the k-space of records, (record, sequence, ...). A sequence that a record lacks stays NaN."""
    available = present(values)
    if available.all():
        return whiten(values)
    whitened = np.full(values.shape, np.nan, dtype=np.complex64)
    whitened[available] = whiten(values[available])
    return whitened


def write_kspace(*, slices: Path, kspace: Path) -> None:
    """Write the centred unitary Fourier transform of every slice of a shard, with all coefficients."""
    items = Items.read(slices, ("values",))
    provenance = {**items.provenance, "fourier": "centred, orthonormal"}
    transformed = replace(items, arrays={"values": to_kspace(items.arrays["values"])}, provenance=provenance)
    transformed.write(kspace, (*AXES[:3], "ky", "kx"), "scanner intensity, arbitrary")


def write_whitened(*, kspace: Path, whitened: Path) -> None:
    """Write the k-space of a shard, in which real and imaginary part of every image are whitened."""
    items = Items.read(kspace, ("values",))
    provenance = {**items.provenance, "whitening": "per image, 2x2 covariance of real and imaginary part"}
    normalised = replace(items, arrays={"values": whiten_records(items.arrays["values"])}, provenance=provenance)
    normalised.write(whitened, (*AXES[:3], "ky", "kx"), "standard deviations")


FLIP = 0.5
"""Chance that left and right are exchanged."""
SHIFT = 3.0
"""Largest shift along each axis, in pixels, fractions included."""
BLURRED, BLUR = 0.4, 0.5
"""Chance of lower resolution, and the largest standard deviation of its Gaussian in pixels."""
UNDERSAMPLED, LINES = 0.1, 0.3
"""Chance that phase-encoding lines, rows of k-space, are left out, and their largest share outside the centre."""
NOISY, NOISE = 0.5, 0.06
"""Chance of noise, and its largest standard deviation in each part, as a fraction of the image's mean magnitude."""


def augment(images: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Return independent variations of magnitude images (image, row, column), as float32 of the same shape.

    The strengths are the constants above. All draws come from the generator.
    """
    count, rows, columns = images.shape
    random = generator.random((9, count, 1, 1), dtype=np.float32)
    images = np.where(random[0] < FLIP, images[..., ::-1], images).astype(np.float32)
    down, across = (_frequencies(side) for side in (rows, columns))
    down = down[:, None]
    # Unitary transform: noise in k-space has the same variance in the image.
    kspace = to_kspace(images)
    kspace = kspace * np.exp(-2j * np.pi * 2 * SHIFT * (down * (random[1] - 0.5) + across * (random[2] - 0.5)))
    width = (random[3] < BLURRED) * random[4] * BLUR
    kspace = kspace * np.exp(-2 * (np.pi * width) ** 2 * (down**2 + across**2))
    share = (random[5] < UNDERSAMPLED) * random[6] * LINES
    # The centre holds the contrast, and every protocol measures it.
    dropped = (generator.random((count, rows, 1), dtype=np.float32) < share) & (np.abs(down) > 1 / 8)
    kspace = np.where(dropped, 0, kspace)
    level = (random[7] < NOISY) * random[8] * NOISE * images.mean(axis=(1, 2), keepdims=True)
    parts = generator.standard_normal((2, *kspace.shape), dtype=np.float32)
    return np.asarray(np.abs(to_image(kspace + level * (parts[0] + 1j * parts[1]))), dtype=np.float32)


def _frequencies(side: int) -> np.ndarray:
    """Return the spatial frequency of each index of centred k-space, in cycles per pixel."""
    return np.asarray((np.arange(side) - side // 2) / side, dtype=np.float32)
