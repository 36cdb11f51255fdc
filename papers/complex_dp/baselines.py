"""Reconstruction without a trained network: zero-filling, and compressed sensing with the library sigpy."""

from __future__ import annotations

import numpy as np

from zetadp.base.validation import UserError
from zetadp.mri.kspace import to_image

SQUARED_NORM = 9
"""Squared norm of the linear operator of compressed sensing: 1 for the unitary Fourier transform, 8 for the differences
along two axes. By default, sigpy estimates it from a random start, which gives a different image each time."""


def zero_filled(kspace: np.ndarray) -> np.ndarray:
    """Return the magnitude of the inverse Fourier transform of k-space (..., ky, kx) whose missing lines are zero."""
    return np.asarray(np.abs(to_image(kspace)))


def compressed_sensing(kspace: np.ndarray, weight: float, iterations: int) -> np.ndarray:
    """Reconstruct images with small total variation that agree with the measured lines.

    Parameters
    ----------
    kspace
        Shape (slice, ky, kx), missing lines zero.
    weight
        Weight of the total variation. Each image is first scaled so that its zero-filled reconstruction has maximum
        one.
    iterations
        Number of steps of the primal-dual algorithm.

    Returns
    -------
    Magnitudes in the scale of the input, float32, shape (slice, row, column).

    Raises
    ------
    UserError
        If sigpy is not installed.
    """
    try:
        from sigpy.mri.app import TotalVariationRecon
    except ImportError as error:
        raise UserError(f"Compressed sensing needs sigpy: pip install 'zetadp[reconstruction]' ({error}).") from error
    images = np.empty(kspace.shape, dtype=np.float32)
    everywhere = np.ones((1, *kspace.shape[1:]), dtype=np.complex64)
    for number, coils in enumerate(kspace):
        scale = np.abs(to_image(coils)).max()
        app = TotalVariationRecon(
            (coils / scale)[None],
            everywhere,
            weight,
            max_iter=iterations,
            tau=1 / SQUARED_NORM,
            sigma=1,
            show_pbar=False,
            leave_pbar=False,
        )
        images[number] = np.abs(app.run()) * scale
    return images
