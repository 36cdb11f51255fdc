"""A head that learns from released rows. Rows are released, so all of it is post-processing and costs no privacy."""

from __future__ import annotations

import torch
from torch import Tensor

from zetadp.feature_release.mixture import RowExamples

RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Ridges that cross-validation chooses among."""
COMPARED = 10_000
"""RowExamples that cross-validation looks at."""
STEPS = 100


def learnt_head(examples: RowExamples, start: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
    """Return the affine head that tells the classes of rows best.

    The loss is the generalised Kullback-Leibler divergence of the paper (arXiv:2202.06467, Section 3.2): labels that
    noise made negative are clipped to zero, and not normalised. The ridge, about the starting weights, is the one that
    does best on rows left out.

    Parameters
    ----------
    examples
        What the rows teach.
    start
        Weight and bias of a public head that the ridge draws towards; None draws towards zero.

    Returns
    -------
    weight, bias
        complex64 of shapes (class, component) and (class,): the real parts of their outputs are the scores.
    """
    if start is None and not examples.features.imag.any():
        # Half of the columns would be zero, and so would their weights.
        x = examples.features.real.double()
        found = _chosen(x, examples.labels.double(), torch.zeros(examples.labels.shape[1], x.shape[1] + 1).double())
        return found[:, :-1].to(torch.complex64), found[:, -1].to(torch.complex64)
    x = torch.view_as_real(examples.features).flatten(1).double()
    y = examples.labels.double()
    if start is None:
        centre = torch.zeros(y.shape[1], x.shape[1] + 1, dtype=torch.float64)
    else:
        weight, bias = start
        centre = torch.cat((_real(weight), bias.real[:, None]), dim=1).double()
    found = _chosen(x, y, centre)
    pairs = found[:, :-1].reshape(len(found), -1, 2).float()
    # Re((a + ib)(x + iy)) = a x - b y.
    return torch.complex(pairs[..., 0], -pairs[..., 1]), found[:, -1].float().to(torch.complex64)


def _chosen(x: Tensor, y: Tensor, centre: Tensor) -> Tensor:
    """Return the weights, intercepts last, at the ridge that does best on rows left out."""
    x = torch.cat((x, torch.ones(len(x), 1, dtype=x.dtype)), dim=1)
    # Rows come in no order; of rows that give several examples, whole rows are left out.
    some = slice(None, COMPARED)
    held = torch.arange(len(x[some])) // y.shape[1] % 4 == 0
    losses = []
    for ridge in RIDGES:
        found = _fitted(x[some][~held], y[some][~held], centre, ridge)
        losses.append(float(_loss(found, x[some][held], y[some][held])))
    return _fitted(x, y, centre, RIDGES[losses.index(min(losses))])


def _real(weight: Tensor) -> Tensor:
    return torch.view_as_real(weight.conj().resolve_conj()).flatten(1)


def _loss(weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return -(y * (x @ weights.T).log_softmax(dim=1)).sum(dim=1).mean()


def _fitted(x: Tensor, y: Tensor, centre: Tensor, ridge: float) -> Tensor:
    weights = centre.clone().requires_grad_()
    optimiser = torch.optim.LBFGS([weights], max_iter=STEPS, line_search_fn="strong_wolfe")
    shares = y.clamp_min(0)

    def closure() -> Tensor:
        optimiser.zero_grad()
        away = (weights - centre)[:, :-1]
        value = _loss(weights, x, shares) + ridge * away.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    with torch.enable_grad():
        optimiser.step(closure)  # type: ignore[no-untyped-call]
    return weights.detach()
