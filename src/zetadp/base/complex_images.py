r"""Formulas for complex images that NumPy and PyTorch share: the centred Fourier transform, and 2x2 whitening.

Stages that prepare data run without PyTorch, and networks and attacks need derivatives. So each function takes the
library of its arrays, ``numpy`` or ``torch``, whose functions have the same names.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple, TypeVar

Array = TypeVar("Array")
"""An array of NumPy or a tensor."""

PLANE = (-2, -1)
"""Axes of an image in an array of images."""


def fourier(images: Array, library: ModuleType) -> Array:
    """Transform images, shape (..., row, column), to centred k-space by the unitary Fourier transform."""
    fft = library.fft
    kspace: Array = fft.fftshift(fft.fft2(fft.ifftshift(images, PLANE), norm="ortho"), PLANE)
    return kspace


def inverse_fourier(kspace: Array, library: ModuleType) -> Array:
    """Transform centred k-space to complex images: the inverse and the adjoint of `fourier`."""
    fft = library.fft
    images: Array = fft.fftshift(fft.ifft2(fft.ifftshift(kspace, PLANE), norm="ortho"), PLANE)
    return images


class Moments(NamedTuple):
    """The parts of each image less their means, and their second moments, with axes of length one for the image.

    Denominators are n - 1 for n values.
    """

    real: Any
    imaginary: Any
    variance_real: Any
    variance_imaginary: Any
    covariance: Any

    @classmethod
    def of(cls, values: Any) -> Moments:  # noqa: ANN401  (an array of either library)
        """Return the moments of complex images of shape (..., row, column)."""
        centred = values - values.mean(axis=PLANE, keepdims=True)
        real, imaginary, n = centred.real, centred.imag, values.shape[-2] * values.shape[-1]
        pairs = (real, real), (imaginary, imaginary), (real, imaginary)
        return cls(real, imaginary, *((x * y).sum(axis=PLANE, keepdims=True) / (n - 1) for x, y in pairs))


class InverseRoot(NamedTuple):
    r"""The inverse square root W of 2x2 covariances with a ridge on their diagonal, in closed form.

    With :math:`a = \Sigma_{rr} + \epsilon`, :math:`b = \Sigma_{ii} + \epsilon`, :math:`c = \Sigma_{ri}`,
    :math:`s = \sqrt{ab - c^2}` and :math:`t = \sqrt{a + b + 2s}`,

    .. math:: W = \frac{1}{st} \begin{pmatrix} b + s & -c \\ -c & a + s \end{pmatrix}.

    Attributes
    ----------
    s, t
        As above.
    real, mixed, imaginary
        The elements of W: those of the diagonal, and the other one.
    """

    s: Any
    t: Any
    real: Any
    mixed: Any
    imaginary: Any

    @classmethod
    def of(
        cls,
        variance_real: Any,  # noqa: ANN401  (arrays of either library)
        variance_imaginary: Any,  # noqa: ANN401
        covariance: Any,  # noqa: ANN401
        ridge: Any,  # noqa: ANN401
        library: ModuleType,
    ) -> InverseRoot:
        """Return the root for second moments of any shape, and a ridge that is added to both variances."""
        a, b, c = variance_real + ridge, variance_imaginary + ridge, covariance
        # This is ab - c^2, written so that rounding cannot make it zero or negative where all values lie on a line.
        determinant = library.clip(variance_real * variance_imaginary - c * c, 0, None)
        s = library.sqrt(determinant + ridge * (variance_real + b))
        t = library.sqrt(a + b + 2 * s)
        return cls(s, t, (b + s) / (s * t), -c / (s * t), (a + s) / (s * t))

    def apply(self, real: Array, imaginary: Array) -> tuple[Array, Array]:
        """Return W times pairs of real and imaginary parts."""
        return self.real * real + self.mixed * imaginary, self.mixed * real + self.imaginary * imaginary
