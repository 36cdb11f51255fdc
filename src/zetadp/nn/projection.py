"""Directions of a feature space that separate the classes, and the best public affine head on the first of them."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

RIDGE = 1e-3


def fit_projection(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the centre of features and a matrix to uncorrelated components, the most informative first.

    The first components are Fisher's discriminants, one fewer than there are classes: the generalised eigenvectors of
    the covariance of class means against the covariance within classes. The other components are the principal
    components of the remaining space. All have unit variance.

    Parameters
    ----------
    features
        Real vectors, shape (image, feature).
    labels
        Class of each image, shape (image,).

    Returns
    -------
    centre, projection
        Shapes (feature,) and (feature, feature): ``(x - centre) @ projection`` are the components.
    """
    x = features.double()
    centre = x.mean(dim=0)
    x = x - centre
    covariance = x.T @ x / len(x)
    covariance += RIDGE * covariance.diagonal().mean() * torch.eye(len(centre), dtype=torch.float64)
    variances, axes = torch.linalg.eigh(covariance)
    sphere = axes * variances.rsqrt()  # to unit covariance, where class means vary most along the discriminants
    means = torch.stack([(x[labels == c] @ sphere).mean(dim=0) for c in range(int(labels.max()) + 1)])
    between = means.T @ means
    count = len(means) - 1
    telling = torch.linalg.eigh(between)[1].flip(1)[:, :count]
    # The space orthogonal to the discriminants, ordered by the variance of the features themselves.
    rest = torch.linalg.svd(telling, full_matrices=True)[0][:, count:]
    spread = rest.T @ torch.diag(variances) @ rest
    order = torch.linalg.eigh(spread)[1].flip(1)
    projection = sphere @ torch.cat((telling, rest @ order), dim=1)
    return centre.float(), projection.float()


def head_scores(components: Tensor, head: tuple[Tensor, Tensor]) -> Tensor:
    """Return the scores of an affine head, shape (..., class), for complex components of shape (..., component).

    The head takes as many components as its weight has columns, counted from the first.
    """
    weight, bias = head
    return (components[..., : weight.shape[1]] @ weight.T + bias).real


def head_on(components: Tensor, labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the affine head of least cross-entropy, with a small ridge, on the first components.

    Parameters
    ----------
    components
        Real components, shape (image, 2 * component); neighbours are real and imaginary part.
    labels
        Class of each image, shape (image,).
    count
        Number of complex components that the head takes.

    Returns
    -------
    weight, bias
        complex64 of shapes (class, count) and (class,). The real parts of their outputs are the scores.
    """
    x = components[:, : 2 * count]
    classes = int(labels.max()) + 1
    weight = torch.zeros(2 * count, classes, requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = functional.cross_entropy(x @ weight + bias, labels) + 1e-4 * weight.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    # Re((a + ib)(x + iy)) = a x - b y.
    pairs = weight.detach().T.reshape(classes, count, 2)
    head = torch.complex(pairs[..., 0], -pairs[..., 1]).contiguous()
    return head, torch.complex(bias.detach(), torch.zeros(classes))


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
    pairs = torch.view_as_real(weight.to(torch.complex128).conj().resolve_conj()).flatten(1)
    centred = pairs - pairs.mean(dim=0)
    root = math.sqrt(len(weight))
    left, sigma, right = torch.linalg.svd(centred / root, full_matrices=False)
    # The root in [0, 1) of s^2 sigma + s - sigma = 0, in a form without cancellation.
    values = 2 * sigma / (1 + (1 + 4 * sigma.square()).sqrt())
    means = root * (left * values) @ right
    return torch.view_as_complex(means.reshape(len(weight), -1, 2))
