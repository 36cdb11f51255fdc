r"""Whitening of complex images by their own 2x2 covariance of real and imaginary part.

Each image is treated by itself: no statistic crosses images or patients, so whitening costs no privacy.
"""

from __future__ import annotations

import numpy as np

from zetadp.base.validation import UserError


def whiten(values: np.ndarray, epsilon: float = 1e-5) -> np.ndarray:
    r"""Whiten each complex image so that real and imaginary part are uncorrelated with unit variance.

    The mean over all coefficients of an image is subtracted; then real and imaginary part are multiplied by the inverse
    square root of their covariance :math:`\Sigma` (denominator n - 1). In closed form, with
    :math:`a = \Sigma_{rr}`, :math:`b = \Sigma_{ii}`, :math:`c = \Sigma_{ri}`, :math:`s = \sqrt{ab - c^2}` and
    :math:`t = \sqrt{a + b + 2s}`,

    .. math:: \Sigma^{-1/2} = \frac{1}{st} \begin{pmatrix} b + s & -c \\ -c & a + s \end{pmatrix}.

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
    diagonal to rounding, and whitening scales each part by its own standard deviation.
    """
    z = np.asarray(values, dtype=np.complex128)
    z = z - z.mean(axis=(-2, -1), keepdims=True)
    n = z.shape[-2] * z.shape[-1]
    real, imaginary = z.real, z.imag

    def covariance(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.asarray((x * y).sum(axis=(-2, -1), keepdims=True) / (n - 1))

    a, b, c = covariance(real, real), covariance(imaginary, imaginary), covariance(real, imaginary)
    total = a + b
    if not np.isfinite(total).all() or (total <= 0).any():
        bad = np.argwhere(~np.isfinite(total[..., 0, 0]) | (total[..., 0, 0] <= 0))
        first = bad[0].tolist()
        raise UserError(
            f"Cannot whiten {len(bad)} image(s) that are constant or not finite; the first is at index {first}."
        )
    ridge = epsilon * total / 2
    a, b = a + ridge, b + ridge
    s = np.sqrt(a * b - c * c)
    t = np.sqrt(a + b + 2 * s)
    whitened = ((b + s) * real - c * imaginary + 1j * ((a + s) * imaginary - c * real)) / (s * t)
    return np.asarray(whitened, dtype=np.complex64)
