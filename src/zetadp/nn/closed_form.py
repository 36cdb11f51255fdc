r"""Heads in closed form: each patient's contribution in one round, and the head from the noisy mean.

This is an alternative to gradient descent if only a head is trained. A patient's contribution is a mean over its
images, whose features z are each clipped to norm at most C. The head is computed from the mean of the nodes' messages,
which is post-processing. With :math:`s_c` the share of class c in a patient's images,
a public constant:

- Class means: the crossed moments :math:`x_c`, which are the mean over all images of z for images of class c and of
  zero for other images. Their norm over all classes together is at most :math:`C \sqrt{\sum_c s_c^2}`, which is C / 2
  for four classes of equally many images.
- Least squares: also the second moments, the mean of :math:`z z^H`, as a real vector (`to_vector`). Their Frobenius
  norm is at most :math:`C^2`. The moments of the intercept's constant feature are the sum of the crossed moments and
  the class shares, so they add no noise and no sensitivity.

Every vector is scaled so that its greatest norm is the clipping norm B of the run. The guarantee does not depend on
this scale: the vector is clipped to B like a gradient.

Ridge least squares from perturbed moments: Vu and Slavkovic 2009, doi:10.1109/ICDMW.2009.52; Wang 2018,
arXiv:1803.02596.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from zetadp.nn.projection import public_means
from zetadp.nn.settings import CLASS_MEANS, LEAST_SQUARES

COMPONENT_VARIANCE = 2.0
"""Mean squared modulus of a complex component on public images, by the construction of `zetadp.nn.projection`."""
# No record says how the following values were chosen (docs/settings.md).
BALANCE = 4.0
"""Greatest norm of the crossed moments relative to that of the second moments, after weighting; a public constant."""
SPREAD = 0.05
"""Assumed standard deviation of a private class mean about the public one, in each real part."""
RIDGE = 10.0
"""Ridge, in units of the approximate norm of the noise on the second moments."""
LEAST_RIDGE = 1e-3
"""Ridge where there is no noise."""


@dataclass(frozen=True)
class ClosedForm(ABC):
    """An estimator in closed form. Calling it computes the patients' contributions.

    Attributes
    ----------
    components
        Number of complex components that the head takes, counted from the first.
    shares
        Share of each class in a patient's images; public constants.
    norm
        Norm C of an image's features, in units of the root of `COMPONENT_VARIANCE` times their number.
    bound
        The clipping norm B of the run.
    clipped
        Whether features are clipped. Without clipping there is no guarantee.
    """

    components: int
    shares: tuple[float, ...]
    norm: float
    bound: float
    clipped: bool = True

    @property
    def feature_bound(self) -> float:
        """Largest norm C of an image's features."""
        return self.norm * math.sqrt(COMPONENT_VARIANCE * self.components)

    @property
    def crossed_bound(self) -> float:
        """Largest norm of a patient's crossed moments."""
        return self.feature_bound * math.hypot(*self.shares)

    @property
    @abstractmethod
    def dimension(self) -> int:
        """Real numbers in a contribution."""

    @property
    @abstractmethod
    def scale(self) -> float:
        """Factor of the moments that gives a contribution norm at most B."""

    @abstractmethod
    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return contributions of shape (patient, dimension), of norm at most B, up to rounding, if clipped.

        Parameters
        ----------
        images
            Complex features of shape (patient, image, 1, 1, component).
        labels
            Integer class labels of shape (patient, image).
        """

    @abstractmethod
    def head(self, mean: Tensor, deviation: float, public: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the affine head that follows from the mean contribution.

        Parameters
        ----------
        mean
            Mean of the nodes' messages, shape (dimension,).
        deviation
            Standard deviation of the noise in each of its coordinates, a public constant.
        public
            Weights of a public head, shape (class, component). More noise draws the result closer to it.

        Returns
        -------
        weight, bias
            Complex tensors of shapes (class, component) and (class,). The real parts of their outputs are the scores.
        """

    def _clipped(self, images: Tensor) -> Tensor:
        """Return clipped features of shape (patient, image, component)."""
        features = images.flatten(2)[..., : self.components]
        if not self.clipped:
            return features
        norms = torch.linalg.vector_norm(features, dim=2, keepdim=True)
        factors: Tensor = self.feature_bound / norms.clamp_min(self.feature_bound)
        return features * factors

    def _crossed(self, features: Tensor, labels: Tensor) -> Tensor:
        """Return crossed moments as real numbers, shape (patient, 2 * class * component)."""
        member = functional.one_hot(labels, len(self.shares)).to(features.dtype) / labels.shape[1]
        return torch.view_as_real(member.mT @ features).flatten(1)

    def _uncrossed(self, vector: Tensor) -> Tensor:
        """Return crossed moments, shape (class, component), from their real numbers."""
        return torch.view_as_complex(vector.reshape(len(self.shares), self.components, 2).contiguous())


class ClassMeans(ClosedForm):
    """Classification by the nearest class mean."""

    @property
    def dimension(self) -> int:
        """Real numbers in a contribution."""
        return 2 * len(self.shares) * self.components

    @property
    def scale(self) -> float:
        """Factor of the crossed moments."""
        return self.bound / self.crossed_bound

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return contributions of shape (patient, dimension)."""
        return self.scale * self._crossed(self._clipped(images), labels)

    def head(self, mean: Tensor, deviation: float, public: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the head whose scores fall with the squared distances to the class means.

        With a public head, each class mean is a posterior mean: the noisy and the public mean, weighted by the noise's
        variance and `SPREAD`.
        """
        shares = torch.tensor(self.shares, dtype=torch.float64, device=mean.device)[:, None]
        means = self._uncrossed(mean.double() / self.scale) / shares
        if public is not None:
            noise = (deviation / self.scale / shares).square()
            means = torch.lerp(means, public_means(public), (noise / (noise + SPREAD**2)).to(means.dtype))
        # |z|^2 - |z - m|^2 = 2 Re(conj(m) z) - |m|^2.
        return means.conj().resolve_conj(), (-0.5 * means.abs().square().sum(dim=1)).to(means.dtype)


class LeastSquares(ClosedForm):
    """Ridge regression of the classes, as numbers zero and one, on the features and an intercept."""

    @property
    def dimension(self) -> int:
        """Real numbers in a contribution."""
        return self.components**2 + 2 * len(self.shares) * self.components

    @property
    def scale(self) -> float:
        """Factor of the second moments."""
        return self.bound / (self.feature_bound**2 * math.hypot(1, BALANCE))

    @property
    def crossed_scale(self) -> float:
        """Factor of the crossed moments."""
        return self.scale * BALANCE * self.feature_bound**2 / self.crossed_bound

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return contributions of shape (patient, dimension)."""
        features = self._clipped(images)
        second = features.mT @ features.conj() / labels.shape[1]
        crossed = self._crossed(features, labels)
        return torch.cat((self.scale * to_vector(second), self.crossed_scale * crossed), dim=1)

    def head(self, mean: Tensor, deviation: float, public: Tensor | None) -> tuple[Tensor, Tensor]:
        r"""Return the head of least squared error, with a ridge about zero or about the public head.

        The ridge is `RIDGE` times :math:`2 s \sqrt d`, the norm of Hermitian noise of standard deviation s and side d.
        Negative eigenvalues, which only noise can cause, are set to zero before the ridge is added.
        """
        mean, size = mean.double(), self.components**2
        gram = to_matrix(mean[:size] / self.scale)
        moments = self._uncrossed(mean[size:] / self.crossed_scale)
        centre = moments.sum(dim=0)
        shares = torch.tensor(self.shares, dtype=moments.dtype, device=mean.device)
        # Moments are centred so that the ridge does not act on the intercept.
        covariance = gram - torch.outer(centre, centre.conj())
        slopes = (moments - torch.outer(shares, centre)).conj()
        ridge = LEAST_RIDGE + RIDGE * 2 * deviation / self.scale * math.sqrt(self.components)
        if public is not None:
            # On public images the covariance is a multiple of the identity.
            slopes = slopes + ridge * (shares[:, None] * public_means(public)).conj() / COMPONENT_VARIANCE
        values, axes = torch.linalg.eigh(covariance)
        weight = ((slopes @ axes) / (values.clamp_min(0) + ridge)) @ axes.mH
        return weight, shares - weight @ centre


def closed_form(
    estimator: str, *, components: int, shares: tuple[float, ...], norm: float, bound: float, clipped: bool
) -> ClosedForm:
    """Return the estimator of that name; parameters as in `ClosedForm`."""
    kind = {CLASS_MEANS: ClassMeans, LEAST_SQUARES: LeastSquares}[estimator]
    return kind(components=components, shares=shares, norm=norm, bound=bound, clipped=clipped)


def to_vector(matrices: Tensor) -> Tensor:
    r"""Return Hermitian matrices, shape (..., d, d), as real vectors of shape (..., d * d) and of the same norm.

    A Hermitian matrix of side d has d real numbers on its diagonal and d(d-1)/2 complex ones above it, each of which
    stands twice in the matrix. Scaled by :math:`\sqrt 2`, the numbers above the diagonal give a vector whose Euclidean
    norm is the Frobenius norm of the matrix. So one clipping norm bounds both. Noise of variance :math:`s^2` on every
    coordinate of the vector is noise of variance :math:`s^2` on the diagonal and :math:`s^2/2` in each part above it,
    mirrored below. Only here is half the variance in each part right, because every part counts twice.

    Only the real part of the diagonal and the numbers above it are read. The vector begins with the diagonal; then come
    pairs of real and imaginary part, row by row.
    """
    side = matrices.shape[-1]
    row, column = torch.triu_indices(side, side, offset=1, device=matrices.device)
    diagonal = matrices.diagonal(dim1=-2, dim2=-1).real
    above = torch.view_as_real(matrices[..., row, column]).flatten(-2)
    return torch.cat((diagonal, math.sqrt(2) * above), dim=-1)


def to_matrix(vector: Tensor) -> Tensor:
    """Return the Hermitian matrix of shape (d, d) for a real vector of shape (d * d,): the inverse of `to_vector`."""
    side = math.isqrt(len(vector))
    if side**2 != len(vector):
        raise ValueError(f"Expected as many numbers as a square matrix has, found {len(vector)}.")
    row, column = torch.triu_indices(side, side, offset=1, device=vector.device)
    pairs = vector[side:].reshape(-1, 2) / math.sqrt(2)
    above = torch.complex(pairs[:, 0], pairs[:, 1])
    matrix = torch.diag(torch.complex(vector[:side], torch.zeros_like(vector[:side])))
    matrix[row, column] = above
    matrix[column, row] = above.conj()
    return matrix
