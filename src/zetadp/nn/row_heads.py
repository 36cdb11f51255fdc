"""Fit a head to released rows. This is post-processing of a release, so it costs no privacy."""

from __future__ import annotations

import torch
from torch import Tensor

from zetadp.nn.mixture import RowExamples

RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Strengths of the ridge penalty that validation chooses from."""
COMPARED = 10_000
"""Largest number of examples that validation uses."""
STEPS = 100
"""Largest number of iterations of L-BFGS."""


def learnt_head(examples: RowExamples, start: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
    """Fit an affine head to released examples.

    The loss is the generalised Kullback-Leibler divergence (arXiv:2202.06467, Section 3.2). Labels that noise made
    negative are clipped to zero and are not normalised. A ridge penalty pulls the weights towards the start. Its
    strength is chosen on the first `COMPARED` examples: a quarter of them is left out of the fit, and the strength with
    the smallest loss on this quarter wins. The head is then fitted to all examples.

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
    if start is None and not examples.features.imag.any():
        # All imaginary parts are zero, and so would be their weights: leave these columns out.
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
