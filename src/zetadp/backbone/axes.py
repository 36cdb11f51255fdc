"""Public features: principal components of a public map's output for single images, clips or beats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Extract = Callable[[Tensor], Tensor]

WHITENING = 0.5
"""Components are divided by their variance on public images to half this power: 0 leaves it, 1 makes all equal."""
AT_ONCE = 1000
"""Images whose coefficients are held in memory together: 16 MB of scattering."""


@dataclass(frozen=True)
class Axes:
    """A public map from an image to features.

    Attributes
    ----------
    extract
        Takes images, or other items, of shape (image, ...) to coefficients of shape (image, coefficient), each of its
        own image alone.
    centre
        Mean of the coefficients of public images, shape (coefficient,).
    axes
        Their principal axes, the one of largest variance first, shape (coefficient, component).
    variances
        Variance of public images along each, shape (component,).
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
        """Return the first components of images, partly whitened, as a vector of norm one for each image."""
        return unit(components[:, :count] * self.variances[:count] ** (-whitening / 2))


@torch.no_grad()
def fit_axes(extract: Extract, images: Tensor, components: int) -> Axes:
    """Learn principal axes from public images.

    Parameters
    ----------
    extract
        As of `Axes`.
    images
        Public images, shape (image, ...): never of the data set that is trained on.
    components
        Axes that are kept.
    """
    total, second = torch.zeros(()), torch.zeros(())
    for start in range(0, len(images), AT_ONCE):
        part = extract(images[start : start + AT_ONCE])
        total, second = total + part.sum(dim=0), second + part.T @ part
    centre = total / len(images)
    # In double precision: for covariances of low rank MKL's float32 routine now and then gives NaN, or gives up.
    variances, axes = torch.linalg.eigh((second / len(images) - torch.outer(centre, centre)).double())
    axes = axes.flip(1)[:, :components].float().contiguous()
    return Axes(extract, centre, axes, variances.flip(0)[:components].float().clamp_min(1e-6).contiguous())


def unit(vectors: Tensor) -> Tensor:
    """Return vectors of norm one, shape (image, component)."""
    scaled: Tensor = vectors / vectors.norm(dim=1, keepdim=True).clamp_min(1e-12)
    return scaled
