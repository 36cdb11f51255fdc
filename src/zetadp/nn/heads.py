"""Affine heads of features: the best one on public images, and that of released rows.

Public features are first turned into components, in directions that separate the classes. A head on released rows is
post-processing of a release, so it costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from zetadp.base.tensors import fix_signs

RIDGE = 1e-3
"""Ridge added to the covariance of public features, as a fraction of the mean variance."""
RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Strengths of the ridge penalty that validation chooses from, for features of variance one: public components have
this variance, and other features are scaled to it."""
COMPARED = 10_000
"""Largest number of examples that validation uses."""
FACTORS = tuple(10 ** (step / 20) for step in range(-40, 41))
"""Strengths of the ridge penalty for known noise, in units of its variance; smaller ones than `smallest_ridge` count as
that."""
FOLDS = 4
STEPS = 100
"""Largest number of iterations of L-BFGS."""


class RowExamples(NamedTuple):
    """Training examples from released rows.

    Attributes
    ----------
    features
        Shape (example, component), complex64.
    labels
        Shape (example, class): shares of the classes. Noise can make them negative.
    noise
        Variance of the noise in each real number of the features; zero where it is not known.
    """

    features: Tensor
    labels: Tensor
    noise: float = 0.0


def fit_projection(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the centre of features and a matrix to uncorrelated components, the most informative first.

    The first components are Fisher's discriminants, one fewer than there are classes: the generalised eigenvectors of
    the covariance of class means against the covariance within classes. The other components are the principal
    components of the remaining space. All have unit variance, and the signs of `fix_signs`.

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
    discriminants = torch.linalg.eigh(between)[1].flip(1)[:, :count]
    # The space orthogonal to the discriminants, ordered by the variance of the features themselves.
    rest = torch.linalg.svd(discriminants, full_matrices=True)[0][:, count:]
    spread = rest.T @ torch.diag(variances) @ rest
    order = torch.linalg.eigh(spread)[1].flip(1)
    projection = fix_signs(sphere @ torch.cat((discriminants, rest @ order), dim=1))
    return centre.float(), projection.float()


def head_scores(components: Tensor, head: tuple[Tensor, Tensor]) -> Tensor:
    """Return the scores of an affine head, shape (..., class), for complex components of shape (..., component).

    The head takes as many components as its weight has columns, counted from the first.
    """
    weight, bias = head
    return (components[..., : weight.shape[1]] @ weight.T + bias).real


def fit_head(components: Tensor, labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Fit the affine head of least cross-entropy, with a small ridge, on the first components.

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

    def loss() -> Tensor:
        return functional.cross_entropy(x @ weight + bias, labels) + 1e-4 * weight.square().sum()

    _minimise(loss, [weight, bias], steps=200)
    return to_complex_weights(weight.detach().T).contiguous(), torch.complex(bias.detach(), torch.zeros(classes))


def fit_head_to_rows(examples: RowExamples, start: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
    """Fit an affine head to released examples.

    The loss is the generalised Kullback-Leibler divergence (arXiv:2202.06467, Section 3.2). Labels that noise made
    negative are clipped to zero and are not normalised. A ridge penalty pulls the weights towards the start. Its
    strength is chosen on the first `COMPARED` examples: a quarter of them is left out of the fit, and the strength with
    the smallest loss on this quarter wins. The head is then fitted to all examples.

    Without a start, the fit is to features over the root of their mean variance, so the scale of the features does not
    matter. Where the variance of the noise is known too, the head is that of least squares, with the noise subtracted
    from the features' second moments (`_Moments`). Its penalty is chosen on all examples.

    Parameters
    ----------
    examples
        Examples of the released rows.
    start
        Weight and bias of a public head. None starts from zero.

    Returns
    -------
    weight, bias
        complex64, of shapes (class, component) and (class,). The real parts of the head's outputs are the scores.
    """
    # If all imaginary parts are zero, so are their weights: leave these columns out.
    real = start is None and not examples.features.imag.any()
    x = examples.features.real if real else torch.view_as_real(examples.features).flatten(1)
    x, y = x.double(), examples.labels.double()
    if start is not None:
        weight, bias = start
        weights = _fit_with_best_ridge(x, y, torch.cat((to_real_weights(weight), bias.real[:, None]), dim=1).double())
    elif examples.noise:
        weights = _fit_denoised(x, y, examples.noise)
    else:
        unit = math.sqrt(x.var(dim=0, correction=0).mean()) or 1.0
        weights = _fit_with_best_ridge(x / unit, y, torch.zeros(y.shape[1], x.shape[1] + 1, dtype=torch.float64))
        weights[:, :-1] /= unit
    if real:
        return weights[:, :-1].to(torch.complex64), weights[:, -1].to(torch.complex64)
    return to_complex_weights(weights[:, :-1].float()), weights[:, -1].float().to(torch.complex64)


def _fit_with_best_ridge(x: Tensor, y: Tensor, centre: Tensor) -> Tensor:
    """Return weights, with the biases last, for the ridge penalty with the smallest loss on examples left out."""
    x = torch.cat((x, torch.ones(len(x), 1, dtype=x.dtype)), dim=1)
    # Rows have no order, so every fourth serves for validation. The examples of a row, one per class, stay together.
    subset = slice(None, COMPARED)
    validation = torch.arange(len(x[subset])) // y.shape[1] % 4 == 0
    losses = []
    for ridge in RIDGES:
        weights = _fit(x[subset][~validation], y[subset][~validation], centre, ridge)
        losses.append(float(_loss(weights, x[subset][validation], y[subset][validation])))
    return _fit(x, y, centre, RIDGES[losses.index(min(losses))])


class _Moments:
    r"""Second moments of features and labels around their means, without the noise, from sums over examples.

    Let T examples of d numbers have noise of variance v. The second moments of their noise differ from the expected v
    by a sampling error, whose eigenvalues have mean zero and root mean square :math:`v \sqrt{d / T}`, and reach down to
    :math:`-v (2 \sqrt{d / T} - d / T)` (Marchenko and Pastur, 1967). With few examples, second moments less v therefore
    have negative eigenvalues. A ridge penalty just above the most negative one gives weights that follow the sampling
    error. The squared error on examples left out does not rule it out, because a smaller penalty also shrinks the
    scores less, which the classes do not depend on.

    So a fit takes negative eigenvalues as zero (as Datta and Zou, 2017, do for the lasso), and no penalty is smaller
    than that root mean square (`smallest_ridge`). It depends on v, d and T alone. The error of given weights is
    estimated without this projection, so that it stays unbiased.
    """

    def __init__(self, squares: Tensor, products: Tensor, noise: float) -> None:
        count, means = squares[-1, -1], squares[-1, :-1] / squares[-1, -1]
        self.means, self.shares = means, products[-1] / count
        self.features = squares[:-1, :-1] / count - torch.outer(means, means)
        self.features.diagonal().sub_(noise)
        self.both = products[:-1] / count - torch.outer(means, self.shares)

    def fits(self, ridges: Sequence[float]) -> list[Tensor]:
        """Return weights, shape (feature, class), by ridge, which is positive."""
        values, axes = torch.linalg.eigh(self.features)
        turned, values = axes.T @ self.both, values.clamp_min(0)
        return [axes @ (turned / (values + ridge)[:, None]) for ridge in ridges]

    def loss(self, weights: Tensor) -> float:
        """Return the squared error of weights on features without noise, less a constant."""
        return float((weights * (self.features @ weights - 2 * self.both)).sum())


def smallest_ridge(numbers: int, examples: int) -> float:
    """Return the smallest ridge penalty for known noise, in units of its variance.

    It is the root mean square of the eigenvalues by which the second moments of the noise in so many examples differ
    from their expectation, and it depends on public constants only. With fewer examples than numbers it is one, as
    without subtracting the noise.
    """
    return math.sqrt(min(1.0, numbers / examples))


def _fit_denoised(x: Tensor, y: Tensor, noise: float) -> Tensor:
    """Return weights of least squares, with the biases last; the penalty has the smallest loss in cross-validation."""
    x = torch.cat((x, torch.ones(len(x), 1, dtype=x.dtype)), dim=1)
    fold = torch.arange(len(x)) // y.shape[1] % FOLDS  # examples of a row stay together
    parts = [(x[fold == f].T @ x[fold == f], x[fold == f].T @ y[fold == f]) for f in range(FOLDS)]
    squares, products = (torch.stack(terms).sum(dim=0) for terms in zip(*parts, strict=True))
    smallest = smallest_ridge(x.shape[1] - 1, len(x))
    ridges = [noise * max(factor, smallest) for factor in FACTORS]
    losses = torch.zeros(len(ridges), dtype=torch.float64)
    for fold_squares, fold_products in parts if len(x) >= FOLDS * y.shape[1] else []:  # else some folds are empty
        validation = _Moments(fold_squares, fold_products, noise)
        fits = _Moments(squares - fold_squares, products - fold_products, noise).fits(ridges)
        losses += torch.tensor([validation.loss(weights) for weights in fits], dtype=torch.float64)
    moments = _Moments(squares, products, noise)
    best = moments.fits([ridges[int(losses.argmin())]])[0]
    return torch.cat((best.T, (moments.shares - moments.means @ best)[:, None]), dim=1)


def _loss(weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return -(y * (x @ weights.T).log_softmax(dim=1)).sum(dim=1).mean()


def _fit(x: Tensor, y: Tensor, centre: Tensor, ridge: float) -> Tensor:
    weights = centre.clone().requires_grad_()
    shares = y.clamp_min(0)

    def loss() -> Tensor:
        return _loss(weights, x, shares) + ridge * (weights - centre)[:, :-1].square().sum()

    _minimise(loss, [weights], STEPS)
    return weights.detach()


def _minimise(loss: Callable[[], Tensor], weights: Sequence[Tensor], steps: int) -> None:
    """Minimise a loss over weights, in at most ``steps`` iterations of L-BFGS."""
    optimiser = torch.optim.LBFGS(weights, max_iter=steps, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    with torch.enable_grad():
        optimiser.step(closure)  # type: ignore[no-untyped-call]


def to_real_weights(weight: Tensor) -> Tensor:
    """Return the real weights, shape (class, 2 * component), that act on neighbouring real and imaginary parts.

    Their scores are those of the complex weights, shape (class, component): the real parts of its outputs.
    """
    return torch.view_as_real(weight.conj().resolve_conj()).flatten(1)


def to_complex_weights(weights: Tensor) -> Tensor:
    """Return the complex weights whose scores are those of real ones: the inverse of `to_real_weights`."""
    pairs = weights.reshape(len(weights), -1, 2)
    # Re((a + ib)(x + iy)) = a x - b y.
    return torch.complex(pairs[..., 0], -pairs[..., 1])
