"""Similarity of an image to its target: NMSE, PSNR and SSIM, as fastMRI defines them (arXiv:1811.08839).

PSNR and SSIM of a volume are relative to the largest intensity of the target volume.
"""

from __future__ import annotations

import numpy as np
from scipy.ndimage import uniform_filter

WINDOW = 7
"""Side of the window of SSIM, in pixels (Wang et al., doi:10.1109/TIP.2003.819861)."""


def nmse(target: np.ndarray, image: np.ndarray) -> float:
    """Return the squared error divided by the squared norm of the target. Zero is best."""
    return float(np.square(target - image).sum() / np.square(target).sum())


def psnr(target: np.ndarray, image: np.ndarray) -> float:
    """Return the peak signal-to-noise ratio in dB, relative to the largest intensity of the target."""
    return float(10 * np.log10(float(target.max()) ** 2 / np.square(target - image).mean()))


def ssim(target: np.ndarray, image: np.ndarray, peak: float | None = None) -> np.ndarray:
    """Return the structural similarity of each slice. The SSIM of a volume is the mean over its slices.

    Parameters
    ----------
    target, image
        Magnitude images, shape (slice, row, column).
    peak
        Largest intensity. By default that of the target.

    Returns
    -------
    Shape (slice,), at most one. Each value is the mean over all windows inside the image, with sample covariances.
    """
    peak = float(target.max()) if peak is None else peak
    x, y = (np.asarray(values, dtype=np.float64) for values in (target, image))

    def mean(values: np.ndarray) -> np.ndarray:
        return np.asarray(uniform_filter(values, (0, WINDOW, WINDOW)))

    sample = WINDOW**2 / (WINDOW**2 - 1)
    of_x, of_y = mean(x), mean(y)
    var_x, var_y = sample * (mean(x * x) - of_x**2), sample * (mean(y * y) - of_y**2)
    covariance = sample * (mean(x * y) - of_x * of_y)
    c1, c2 = (0.01 * peak) ** 2, (0.03 * peak) ** 2
    similarity = (2 * of_x * of_y + c1) * (2 * covariance + c2)
    similarity /= (of_x**2 + of_y**2 + c1) * (var_x + var_y + c2)
    edge = WINDOW // 2
    return np.asarray(similarity[:, edge:-edge, edge:-edge].mean(axis=(1, 2)))
