"""The head of noisy class means: an alternative to gradient descent if only a head is trained.

It is also the baseline of mixed rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from zetadp.mechanism.contributions import Statistic
from zetadp.nn.heads import to_real_weights

COMPONENT_VARIANCE = 2.0
"""Mean squared modulus of a complex component on public images, by the construction of
`zetadp.nn.heads.fit_projection`."""
# The reason for this value is not documented (docs/settings.md).
SPREAD = 0.05
"""Assumed standard deviation of a private class mean about the public one, in each real part."""


@dataclass(frozen=True)
class ClassMeans(Statistic):
    r"""Classification by the nearest class mean. Calling it computes the patients' contributions.

    A contribution is a mean over a patient's images, whose features z are each clipped to norm at most C: the crossed
    moments :math:`x_c`, which are the mean over all images of z for images of class c and of zero for other images.
    With :math:`s_c` the share of class c in a patient's images, a public constant, their norm over all classes together
    is at most :math:`C \sqrt{\sum_c s_c^2}`, which is C / 2 for four classes of equally many images.

    The vector is scaled so that its greatest norm is the clipping norm B of the run. The guarantee does not depend on
    this scale: the vector is clipped to B like a gradient. The head is computed from the mean of the nodes' messages,
    which is post-processing.

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
        Whether features are clipped. A guarantee requires clipping.
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
    def dimension(self) -> int:
        """Real numbers in a contribution."""
        return 2 * len(self.shares) * self.components

    @property
    def scale(self) -> float:
        """Factor of the crossed moments that gives a contribution norm at most B."""
        return self.bound / (self.feature_bound * math.hypot(*self.shares))

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return contributions of shape (patient, dimension), of norm at most B, up to rounding, if clipped.

        Parameters
        ----------
        images
            Complex features of shape (patient, image, 1, 1, component).
        labels
            Integer class labels of shape (patient, image).
        """
        features = self._clip(images)
        member = functional.one_hot(labels, len(self.shares)).to(features.dtype) / labels.shape[1]
        return self.scale * torch.view_as_real(member.mT @ features).flatten(1)

    def head(self, mean: Tensor, deviation: float, public: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the affine head whose scores fall with the squared distances to the class means.

        With a public head, each class mean is a posterior mean: the noisy and the public mean, weighted by the noise's
        variance and `SPREAD`.

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
        shares = torch.tensor(self.shares, dtype=torch.float64, device=mean.device)[:, None]
        moments = (mean.double() / self.scale).reshape(len(self.shares), self.components, 2)
        means = torch.view_as_complex(moments.contiguous()) / shares
        if public is not None:
            noise = (deviation / self.scale / shares).square()
            means = torch.lerp(means, public_means(public), (noise / (noise + SPREAD**2)).to(means.dtype))
        # |z|^2 - |z - m|^2 = 2 Re(conj(m) z) - |m|^2.
        return means.conj().resolve_conj(), (-0.5 * means.abs().square().sum(dim=1)).to(means.dtype)

    def _clip(self, images: Tensor) -> Tensor:
        """Return clipped features of shape (patient, image, component)."""
        features = images.flatten(2)[..., : self.components]
        if not self.clipped:
            return features
        norms = torch.linalg.vector_norm(features, dim=2, keepdim=True)
        factors: Tensor = self.feature_bound / norms.clamp_min(self.feature_bound)
        return features * factors


def public_means(weight: Tensor) -> Tensor:
    r"""Return the class means that a public head's weights imply, shape (class, component), complex128.

    Assume K classes of equal size that are Gaussian with means m and a common covariance, and features with mean zero
    and identity covariance over all classes, as components have on public images. The best weights are then
    :math:`W = (I - m m^T / K)^{-1} m`, up to a term that all classes share. Along the singular directions of
    :math:`m / \sqrt K`, a singular value s of the means becomes :math:`\sigma = s / (1 - s^2)` of the weights. This
    function solves for s.

    Parameters
    ----------
    weight
        Complex weights of shape (class, component).
    """
    pairs = to_real_weights(weight.to(torch.complex128))
    centred = pairs - pairs.mean(dim=0)
    root = math.sqrt(len(weight))
    left, sigma, right = torch.linalg.svd(centred / root, full_matrices=False)
    # The root in [0, 1) of s^2 sigma + s - sigma = 0, in a form without cancellation.
    values = 2 * sigma / (1 + (1 + 4 * sigma.square()).sqrt())
    means = root * (left * values) @ right
    return torch.view_as_complex(means.reshape(len(weight), -1, 2))
