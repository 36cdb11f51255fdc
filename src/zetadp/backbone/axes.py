"""Public features of single items: principal components of the outputs of a public function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Extract = Callable[[Tensor], Tensor]

WHITENING = 0.5
"""Strength of whitening: 0 leaves the components' variances on public images as they are, 1 makes them all equal."""
AT_ONCE = 1000
"""Number of images whose coefficients are in memory at once; for scattering they take 16 MB."""


@dataclass(frozen=True)
class Axes:
    """A public map from an image to features.

    Attributes
    ----------
    extract
        Function from images, or other items, of shape (image, ...) to coefficients of shape (image, coefficient). The
        coefficients of an image depend on that image only.
    centre
        Mean of the coefficients of public images, shape (coefficient,).
    axes
        Principal axes of these coefficients, the one of largest variance first, shape (coefficient, component).
    variances
        Variance of the coefficients along each axis, shape (component,).
    """

    extract: Extract
    centre: Tensor
    axes: Tensor
    variances: Tensor

    @torch.no_grad()
    def components(self, images: Tensor) -> Tensor:
        """Return principal components of images, shape (image, component)."""
        starts = range(0, len(images), AT_ONCE)
        return torch.cat([(self.extract(images[at : at + AT_ONCE]) - self.centre) @ self.axes for at in starts])

    def scaled(self, components: Tensor, count: int, whitening: float = WHITENING) -> Tensor:
        """Return features of norm one, shape (image, count), from components of shape (image, component).

        Parameters
        ----------
        components
            Output of `components`.
        count
            Number of components that are used, counted from the first.
        whitening
            As `WHITENING`.
        """
        return unit(components[:, :count] * self.variances[:count] ** (-whitening / 2))


@torch.no_grad()
def fit_axes(extract: Extract, images: Tensor, components: int) -> Axes:
    """Compute principal axes from public images.

    Parameters
    ----------
    extract
        As in `Axes`.
    images
        Public images, shape (image, ...). They must not come from the data set that is trained on.
    components
        Number of axes.
    """
    total, second = torch.zeros(()), torch.zeros(())
    for start in range(0, len(images), AT_ONCE):
        part = extract(images[start : start + AT_ONCE])
        total, second = total + part.sum(dim=0), second + part.T @ part
    centre = total / len(images)
    # In double precision, because for covariances of low rank MKL's float32 routine sometimes returns NaN or fails.
    variances, axes = torch.linalg.eigh((second / len(images) - torch.outer(centre, centre)).double())
    axes = axes.flip(1)[:, :components].float().contiguous()
    return Axes(extract, centre, axes, variances.flip(0)[:components].float().clamp_min(1e-6).contiguous())


def unit(vectors: Tensor) -> Tensor:
    """Return vectors of shape (image, component) scaled to norm one; a zero vector stays zero."""
    scaled: Tensor = vectors / vectors.norm(dim=1, keepdim=True).clamp_min(1e-12)
    return scaled
