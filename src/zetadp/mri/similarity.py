"""How alike an image and its target are: NMSE, PSNR and SSIM, as fastMRI defines them (arXiv:1811.08839).

PSNR and SSIM of a volume are relative to the largest intensity of the target volume.
"""

from __future__ import annotations

import numpy as np
from scipy.ndimage import uniform_filter

WINDOW = 7
"""Side of the window of SSIM, in pixels (Wang et al., doi:10.1109/TIP.2003.819861)."""


def nmse(target: np.ndarray, found: np.ndarray) -> float:
    """Return the squared error divided by the squared norm of the target. Zero is best."""
    return float(np.square(target - found).sum() / np.square(target).sum())


def psnr(target: np.ndarray, found: np.ndarray) -> float:
    """Return the peak signal-to-noise ratio in dB, relative to the largest intensity of the target."""
    return float(10 * np.log10(float(target.max()) ** 2 / np.square(target - found).mean()))


def ssim(target: np.ndarray, found: np.ndarray, peak: float | None = None) -> np.ndarray:
    """Return the structural similarity of each slice. The SSIM of a volume is the mean over its slices.

    Parameters
    ----------
    target, found
        Magnitude images, shape (slice, row, column).
    peak
        Largest intensity. By default that of the target.

    Returns
    -------
    Shape (slice,), at most one. Each value is the mean over all windows inside the image, with sample covariances.
    """
    peak = float(target.max()) if peak is None else peak
    x, y = (np.asarray(values, dtype=np.float64) for values in (target, found))

    def mean(values: np.ndarray) -> np.ndarray:
        return np.asarray(uniform_filter(values, (0, WINDOW, WINDOW)))

    sample = WINDOW**2 / (WINDOW**2 - 1)
    of_x, of_y = mean(x), mean(y)
    var_x, var_y = sample * (mean(x * x) - of_x**2), sample * (mean(y * y) - of_y**2)
    covariance = sample * (mean(x * y) - of_x * of_y)
    one, two = (0.01 * peak) ** 2, (0.03 * peak) ** 2
    found_map = (2 * of_x * of_y + one) * (2 * covariance + two)
    found_map /= (of_x**2 + of_y**2 + one) * (var_x + var_y + two)
    edge = WINDOW // 2
    return np.asarray(found_map[:, edge:-edge, edge:-edge].mean(axis=(1, 2)))
