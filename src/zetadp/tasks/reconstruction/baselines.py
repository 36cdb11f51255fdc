"""Reconstruction without a trained network: zero-filling, and compressed sensing by the library sigpy."""

from __future__ import annotations

import numpy as np

from zetadp.kspace.fourier import to_image
from zetadp.validation import UserError

ITERATIONS = 100
SQUARED_NORM = 9
"""Squared norm of what measures an image (1, as the Fourier transform is unitary) and takes its differences along two
axes (8). Left to itself, sigpy estimates it from a random start, and gives another image each time."""


def zero_filled(kspace: np.ndarray) -> np.ndarray:
    """Return the magnitude of the inverse transform of k-space (..., ky, kx) whose missing lines are zero."""
    return np.asarray(np.abs(to_image(kspace)))


def compressed_sensing(kspace: np.ndarray, weight: float, iterations: int = ITERATIONS) -> np.ndarray:
    """Return magnitudes of images of small total variation that agree with the measured lines.

    Parameters
    ----------
    kspace
        Shape (slice, ky, kx), missing lines zero.
    weight
        Weight of the total variation, for images whose zero-filled reconstruction has maximum one.
    iterations
        Steps of the primal-dual algorithm.

    Raises
    ------
    UserError
        If sigpy is not installed.
    """
    try:
        from sigpy.mri.app import TotalVariationRecon
    except ImportError as error:
        raise UserError(f"Compressed sensing needs sigpy: pip install 'zetadp[reconstruction]' ({error}).") from error
    found = np.empty(kspace.shape, dtype=np.float32)
    everywhere = np.ones((1, *kspace.shape[1:]), dtype=np.complex64)
    for number, own in enumerate(kspace):
        scale = np.abs(to_image(own)).max()
        app = TotalVariationRecon(
            (own / scale)[None],
            everywhere,
            weight,
            max_iter=iterations,
            tau=1 / SQUARED_NORM,
            sigma=1,
            show_pbar=False,
            leave_pbar=False,
        )
        found[number] = np.abs(app.run()) * scale
    return found
