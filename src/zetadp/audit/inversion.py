r"""Gradient inversion: find images whose gradient has the direction of an observed gradient.

The attacker is honest but curious, and knows weights, loss, labels, the preprocessing of images, and one message. The
attack searches images x that minimise

.. math:: 1 - \frac{\langle g(x), \tilde g \rangle}{\|g(x)\| \|\tilde g\|},

with the real inner product over all layers, of complex numbers as pairs (Geiping et al. 2020, arXiv:2003.14053), or
the squared distance (Zhu et al. 2019, arXiv:1906.08935). Clipping one gradient does not change its direction. The
images are real: an attacker who knows that k-space comes from real images need not guess its phases.

Everything is in float64. In float32 the objective stops falling while the image is still blurred.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from zetadp.base.validation import one_of, positive
from zetadp.nn.stacked import ordinary_operations

Objective: TypeAlias = Literal["cosine", "euclidean"]


@dataclass(frozen=True)
class Search:
    """Settings of the search for images.

    Attributes
    ----------
    steps
        Number of steps of L-BFGS with line search, each of which evaluates up to twenty gradients.
    objective
        ``cosine`` or ``euclidean``.
    """

    steps: int = 20
    objective: Objective = "cosine"

    def __post_init__(self) -> None:
        """Check every setting."""
        positive(steps=self.steps)
        one_of(("cosine", "euclidean"), objective=self.objective)


@dataclass(frozen=True)
class Found:
    """Result of an inversion.

    Attributes
    ----------
    images
        float64, with the requested shape.
    objective
        Final value of the objective.
    """

    images: Tensor
    objective: float


class Contributions:
    """The mean of patients' clipped gradients, as a function of images that can be differentiated.

    Parameters
    ----------
    model
        The network with the weights of the round. It is not changed.
    labels
        Class of each image, by patient, shape (patient, image).
    prepare
        Preprocessing of images for the network, shape (image, row, column).
    clip
        The clipping norm; infinite if gradients are not clipped.
    """

    def __init__(
        self, model: nn.Module, labels: Tensor, prepare: Callable[[Tensor], Tensor], *, clip: float = math.inf
    ) -> None:
        self.model = model
        self.weights = {
            name: p.detach().to(torch.complex128 if p.is_complex() else torch.float64)
            for name, p in self.model.named_parameters()
        }
        self.labels, self.prepare, self.clip = labels, prepare, clip

    def __call__(self, images: Tensor) -> Tensor:
        """Return the mean for real images of shape (patient, image, row, column): flat and real, like a message."""
        found = [self._of_patient(own, labels) for own, labels in zip(images, self.labels, strict=True)]
        return torch.stack(found).mean(dim=0)

    def _of_patient(self, images: Tensor, labels: Tensor) -> Tensor:
        weights = {name: value.clone().requires_grad_() for name, value in self.weights.items()}
        with ordinary_operations():  # which can be differentiated twice
            scores = functional_call(self.model, weights, (self.prepare(images).unsqueeze(1),))
        loss = functional.cross_entropy(scores, labels)
        parts = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        flat = torch.cat([(torch.view_as_real(part) if part.is_complex() else part).flatten() for part in parts])
        return flat if math.isinf(self.clip) else flat / torch.clamp(flat.norm() / self.clip, min=1)


def invert(
    observed: Tensor,
    contributions: Callable[[Tensor], Tensor],
    shape: Sequence[int],
    search: Search,
    generator: torch.Generator,
    *,
    guess: Tensor | None = None,
) -> Found:
    """Find real images whose contributions are closest to the observed message.

    Parameters
    ----------
    observed
        Observed message, flat and real.
    contributions
        Message of given images (`Contributions`).
    shape
        Shape of the images sought.
    search
        Settings of the search.
    generator
        Generator of the start.
    guess
        A further start: images that the attacker expects, such as means of public images.
    """
    seen = observed.to(torch.float64)

    def objective(images: Tensor) -> Tensor:
        found = contributions(images)
        if search.objective == "euclidean":
            return (found - seen).square().sum()
        return torch.sub(1, found @ seen / (found.norm() * seen.norm()))

    starts = [torch.randn(*shape, generator=generator, dtype=torch.float64)]
    starts += [] if guess is None else [guess.to(torch.float64)]
    results = [_descended(start, objective, search.steps) for start in starts]
    # A search whose objective is not finite has found nothing.
    return min(results, key=lambda found: found.objective if math.isfinite(found.objective) else math.inf)


def _descended(start: Tensor, objective: Callable[[Tensor], Tensor], steps: int) -> Found:
    images = start.clone().requires_grad_()
    optimiser = torch.optim.LBFGS([images], history_size=20, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimiser.zero_grad()
        value = objective(images)
        value.backward()  # type: ignore[no-untyped-call]
        return float(value.detach())

    for _ in range(steps):
        optimiser.step(closure)  # type: ignore[no-untyped-call]
    return Found(images.detach(), closure())


def whitened_kspace(images: Tensor, epsilon: float = 1e-5) -> Tensor:
    """Return whitened k-space of real images, shape (image, row, column), in differentiable form.

    It agrees with `to_kspace` and `whiten` of `zetadp.kspace` up to rounding.
    """
    axes = (-2, -1)
    k = torch.fft.fftshift(torch.fft.fft2(torch.fft.ifftshift(images, dim=axes), norm="ortho"), dim=axes)
    k = k - k.mean(dim=axes, keepdim=True)
    n = k[0].numel()

    def covariance(x: Tensor, y: Tensor) -> Tensor:
        return torch.div((x * y).sum(dim=axes, keepdim=True), n - 1)

    a, b, c = covariance(k.real, k.real), covariance(k.imag, k.imag), covariance(k.real, k.imag)
    ridge = epsilon * (a + b) / 2
    a, b = a + ridge, b + ridge
    s = torch.sqrt(a * b - c * c)
    t = s * torch.sqrt(a + b + 2 * s)
    return torch.complex(((b + s) * k.real - c * k.imag) / t, ((a + s) * k.imag - c * k.real) / t)


def with_what_whitening_loses(found: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Return a found image, with the scales and the mean that whitening removes fitted to the true image.

    Whitening divides the real and the imaginary part of k-space by a number each, and removes their mean. For a real
    image on an even grid, these are a scale of the part that is even about the centre, a scale of the odd part, and the
    value of the centre pixel.

    Parameters
    ----------
    found, true
        Real images of shape (row, column).
    """
    mirrored = np.roll(found[::-1, ::-1], (1, 1), (0, 1))
    centre = np.zeros_like(found)
    centre[tuple(side // 2 for side in found.shape)] = 1
    parts = np.stack([(found + mirrored) / 2, (found - mirrored) / 2, centre]).reshape(3, -1).T
    fitted, *_ = np.linalg.lstsq(parts, true.ravel(), rcond=None)
    return np.asarray((parts @ fitted).reshape(found.shape))
