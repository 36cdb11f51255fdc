"""The centred, unitary, two-dimensional Fourier transform between image and k-space.

Convention: ``k = fftshift(fft2(ifftshift(x)))`` with orthonormal scaling over the last two axes. The zero frequency and
the origin of the image both sit at index ``n // 2``, so the energy of the image is the energy of its k-space, and
convolutions over k-space see neighbouring frequencies as neighbours.
"""

from __future__ import annotations

import numpy as np

AXES = (-2, -1)


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
    return np.fft.fftshift(np.fft.fft2(np.fft.ifftshift(image, axes=AXES), axes=AXES, norm="ortho"), axes=AXES)


def to_image(kspace: np.ndarray) -> np.ndarray:
    """Transform k-space to complex images of the same shape: the inverse and the adjoint of `to_kspace`."""
    return np.fft.fftshift(np.fft.ifft2(np.fft.ifftshift(kspace, axes=AXES), axes=AXES, norm="ortho"), axes=AXES)
