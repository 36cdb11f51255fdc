"""Affine heads of features: the best one on public images, and the one that released rows give.

Public features are first turned into components, in directions that separate the classes. A head on released rows is
post-processing of a release, so it costs no privacy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from zetadp.nn.mixture import RowExamples

RIDGE = 1e-3
"""Part of the mean variance that the covariance of public features gains in every direction."""
RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Strengths of the ridge penalty that validation chooses from."""
COMPARED = 10_000
"""Largest number of examples that validation uses."""
FACTORS = tuple(10 ** (step / 20) for step in range(-40, 41))
"""Strengths of the ridge penalty beside known noise, in units of its variance."""
FOLDS = 4
STEPS = 100
"""Largest number of iterations of L-BFGS."""


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

    def loss() -> Tensor:
        return functional.cross_entropy(x @ weight + bias, labels) + 1e-4 * weight.square().sum()

    _minimise(loss, [weight, bias], steps=200)
    return _paired(weight.detach().T).contiguous(), torch.complex(bias.detach(), torch.zeros(classes))


def learnt_head(examples: RowExamples, start: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
    """Fit an affine head to released examples.

    The loss is the generalised Kullback-Leibler divergence (arXiv:2202.06467, Section 3.2). Labels that noise made
    negative are clipped to zero and are not normalised. A ridge penalty pulls the weights towards the start. Its
    strength is chosen on the first `COMPARED` examples: a quarter of them is left out of the fit, and the strength with
    the smallest loss on this quarter wins. The head is then fitted to all examples.

    Where the variance of the noise is known and nothing is to start from, the head is that of least squares, with the
    noise subtracted from the features' second moments. Its penalty is chosen on all examples.

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
    # Where all imaginary parts are zero, their weights would be as well: leave these columns out.
    real = start is None and not examples.features.imag.any()
    x = examples.features.real if real else torch.view_as_real(examples.features).flatten(1)
    x, y = x.double(), examples.labels.double()
    if start is None:
        centre = torch.zeros(y.shape[1], x.shape[1] + 1, dtype=torch.float64)
    else:
        weight, bias = start
        centre = torch.cat((_real(weight), bias.real[:, None]), dim=1).double()
    found = _denoised(x, y, examples.noise) if start is None and examples.noise else _chosen(x, y, centre)
    if real:
        return found[:, :-1].to(torch.complex64), found[:, -1].to(torch.complex64)
    return _paired(found[:, :-1].float()), found[:, -1].float().to(torch.complex64)


def _chosen(x: Tensor, y: Tensor, centre: Tensor) -> Tensor:
    """Return weights, with the biases last, for the ridge penalty with the smallest loss on examples left out."""
    x = torch.cat((x, torch.ones(len(x), 1, dtype=x.dtype)), dim=1)
    # Rows have no order, so every fourth can be left out. A row can give one example per class: they stay together.
    some = slice(None, COMPARED)
    held = torch.arange(len(x[some])) // y.shape[1] % 4 == 0
    losses = []
    for ridge in RIDGES:
        found = _fitted(x[some][~held], y[some][~held], centre, ridge)
        losses.append(float(_loss(found, x[some][held], y[some][held])))
    return _fitted(x, y, centre, RIDGES[losses.index(min(losses))])


class _Moments:
    """Second moments of features and labels around their means, without the noise, from sums over examples."""

    def __init__(self, squares: Tensor, products: Tensor, noise: float) -> None:
        count, means = squares[-1, -1], squares[-1, :-1] / squares[-1, -1]
        self.means, self.shares = means, products[-1] / count
        self.features = squares[:-1, :-1] / count - torch.outer(means, means)
        self.features.diagonal().sub_(noise)
        self.both = products[:-1] / count - torch.outer(means, self.shares)

    def fits(self, ridges: Sequence[float]) -> list[Tensor | None]:
        """Return weights, shape (feature, class), by ridge; None where the penalised moments are not positive."""
        values, axes = torch.linalg.eigh(self.features)
        turned = axes.T @ self.both
        return [axes @ (turned / (values + r)[:, None]) if values[0] + r > 0 else None for r in ridges]

    def loss(self, weights: Tensor | None) -> float:
        """Return the squared error of weights on features without noise, less a constant."""
        if weights is None:
            return float("inf")
        return float((weights * (self.features @ weights - 2 * self.both)).sum())


def _denoised(x: Tensor, y: Tensor, noise: float) -> Tensor:
    """Return weights of least squares, with the biases last; the penalty has the smallest loss in cross-validation."""
    x = torch.cat((x, torch.ones(len(x), 1, dtype=x.dtype)), dim=1)
    fold = torch.arange(len(x)) // y.shape[1] % FOLDS  # examples of a row stay together
    parts = [(x[fold == f].T @ x[fold == f], x[fold == f].T @ y[fold == f]) for f in range(FOLDS)]
    squares, products = (torch.stack(each).sum(dim=0) for each in zip(*parts, strict=True))
    ridges = [factor * noise for factor in FACTORS]
    losses = torch.zeros(len(ridges), dtype=torch.float64)
    for own_squares, own_products in parts:
        held = _Moments(own_squares, own_products, noise)
        fits = _Moments(squares - own_squares, products - own_products, noise).fits(ridges)
        losses += torch.tensor([held.loss(weights) for weights in fits], dtype=torch.float64)
    moments = _Moments(squares, products, noise)
    best = moments.fits([ridges[int(losses.argmin())]])[0]
    if best is None:
        raise ValueError("Expected features whose variance is that of the noise at least.")
    return torch.cat((best.T, (moments.shares - moments.means @ best)[:, None]), dim=1)


def _real(weight: Tensor) -> Tensor:
    return torch.view_as_real(weight.conj().resolve_conj()).flatten(1)


def _loss(weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return -(y * (x @ weights.T).log_softmax(dim=1)).sum(dim=1).mean()


def _fitted(x: Tensor, y: Tensor, centre: Tensor, ridge: float) -> Tensor:
    weights = centre.clone().requires_grad_()
    shares = y.clamp_min(0)

    def loss() -> Tensor:
        return _loss(weights, x, shares) + ridge * (weights - centre)[:, :-1].square().sum()

    _minimise(loss, [weights], STEPS)
    return weights.detach()


def _minimise(loss: Callable[[], Tensor], weights: Sequence[Tensor], steps: int) -> None:
    """Move weights to where a loss is least, in at most so many iterations of L-BFGS."""
    optimiser = torch.optim.LBFGS(weights, max_iter=steps, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    with torch.enable_grad():
        optimiser.step(closure)  # type: ignore[no-untyped-call]


def _paired(weights: Tensor) -> Tensor:
    """Return the complex weights of a head whose real ones act on neighbouring real and imaginary parts."""
    pairs = weights.reshape(len(weights), -1, 2)
    # Re((a + ib)(x + iy)) = a x - b y.
    return torch.complex(pairs[..., 0], -pairs[..., 1])
