r"""Gradient inversion: images that an attacker rebuilds from one message of k-space training.

The attacker is honest but curious, and knows weights, loss, labels, the preprocessing of images, and one message: the
mean of patients' clipped gradients at the weights at the start of training, with the noise that one such message needs
for a given epsilon. The attack searches images x that minimise

.. math:: 1 - \frac{\langle g(x), \tilde g \rangle}{\|g(x)\| \|\tilde g\|},

with the real inner product over all layers, of complex numbers as pairs (Geiping et al. 2020, arXiv:2003.14053), or
the squared distance (Zhu et al. 2019, arXiv:1906.08935). Clipping one gradient does not change its direction. The
images are real: an attacker who knows that k-space comes from real images need not guess its phases. For comparison, a
guess without a message is scored: the mean of public images.

Everything is in float64. In float32 the objective stops falling while the image is still blurred.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
import pandas as pd
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from zetadp.accounting import gaussian
from zetadp.base.complex_images import InverseRoot, Moments, fourier
from zetadp.base.epsilon import Target
from zetadp.base.randomness import Purpose, stream
from zetadp.base.tables import MISSING, Sheet, numbers_of
from zetadp.mri.similarity import nmse, ssim
from zetadp.nn.models import NetworkSettings, build
from zetadp.nn.stacked import ordinary_operations
from zetadp.phantom.public import simulate_public_patient
from zetadp.phantom.settings import CHANNELS

Objective: TypeAlias = Literal["cosine", "euclidean"]

SEED = 41
"""Seed of the patients, the weights, the noise and the starts of the searches."""
PUBLIC = 40
"""Number of public patients. Their mean image is the guess without a message."""
CANDIDATES = 10
ATTACKS = {"cosine": "direction (IGA)", "euclidean": "distance (DLG)"}
"""Searches, by objective: Geiping et al. (2020), and Zhu et al. (2019) with known labels."""
KIND = ["message", "network", "attack", "epsilon"]


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
        gradients = [self._patient_gradient(part, labels) for part, labels in zip(images, self.labels, strict=True)]
        return torch.stack(gradients).mean(dim=0)

    def _patient_gradient(self, images: Tensor, labels: Tensor) -> Tensor:
        weights = {name: value.clone().requires_grad_() for name, value in self.weights.items()}
        with ordinary_operations():  # second derivatives need them
            scores = functional_call(self.model, weights, (self.prepare(images).unsqueeze(1),))
        loss = functional.cross_entropy(scores, labels)
        parts = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        flat = torch.cat([(torch.view_as_real(part) if part.is_complex() else part).flatten() for part in parts])
        return flat if math.isinf(self.clip) else flat / torch.clamp(flat.norm() / self.clip, min=1)


def invert(
    observed: Tensor,
    contributions: Callable[[Tensor], Tensor],
    shape: Sequence[int],
    generator: torch.Generator,
    *,
    steps: int,
    objective: Objective = "cosine",
    guess: Tensor | None = None,
) -> Tensor:
    """Find real images, float64, whose contributions are closest to the observed message.

    Parameters
    ----------
    observed
        Observed message, flat and real.
    contributions
        Message of given images (`Contributions`).
    shape
        Shape of the images.
    generator
        Generator of the start.
    steps
        Number of steps of L-BFGS with line search, each of which evaluates up to twenty gradients.
    objective
        ``cosine``, for the direction of the message, or ``euclidean``, for the distance to it.
    guess
        A further start: images that the attacker expects, such as means of public images.
    """
    target = observed.to(torch.float64)

    def residual(images: Tensor) -> Tensor:
        gradient = contributions(images)
        if objective == "euclidean":
            return (gradient - target).square().sum()
        return torch.sub(1, gradient @ target / (gradient.norm() * target.norm()))

    starts = [torch.randn(*shape, generator=generator, dtype=torch.float64)]
    starts += [] if guess is None else [guess.to(torch.float64)]
    results = [_descend(start, residual, steps) for start in starts]
    # A search with an infinite or undefined objective has failed.
    return min(results, key=lambda result: result[1] if math.isfinite(result[1]) else math.inf)[0]


def _descend(start: Tensor, objective: Callable[[Tensor], Tensor], steps: int) -> tuple[Tensor, float]:
    """Minimise the objective from a start, and return the images and the objective."""
    images = start.clone().requires_grad_()
    optimiser = torch.optim.LBFGS([images], history_size=20, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimiser.zero_grad()
        value = objective(images)
        value.backward()  # type: ignore[no-untyped-call]
        return float(value.detach())

    for _ in range(steps):
        optimiser.step(closure)  # type: ignore[no-untyped-call]
    return images.detach(), closure()


def whitened_kspace(images: Tensor, epsilon: float = 1e-5) -> Tensor:
    """Return whitened k-space of real images, shape (image, row, column), in differentiable form.

    It agrees with `to_kspace` and `whiten` of `zetadp.mri.kspace` up to rounding.
    """
    moments = Moments.of(fourier(images, torch))
    ridge = epsilon * (moments.variance_real + moments.variance_imaginary) / 2
    root = InverseRoot.of(*moments[2:], ridge, torch)
    return torch.complex(*root.apply(moments.real, moments.imaginary))


def fit_whitening_losses(image: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Fit the scales and the mean of an image, which whitening removes, to the true image.

    Whitening divides the real and the imaginary part of k-space by one number each, and removes their mean. For a real
    image on an even grid, these are a scale of the part that is even about the centre, a scale of the odd part, and the
    value of the centre pixel.

    Parameters
    ----------
    image, true
        Real images of shape (row, column).
    """
    mirrored = np.roll(image[::-1, ::-1], (1, 1), (0, 1))
    centre = np.zeros_like(image)
    centre[tuple(side // 2 for side in image.shape)] = 1
    parts = np.stack([(image + mirrored) / 2, (image - mirrored) / 2, centre]).reshape(3, -1).T
    fitted, *_ = np.linalg.lstsq(parts, true.ravel(), rcond=None)
    return np.asarray((parts @ fitted).reshape(image.shape))


@dataclass(frozen=True)
class Message:
    """One message, and the attack on it.

    Attributes
    ----------
    network, settings
        Name of the network, and the network.
    size
        Side of the images.
    clip
        Norm to which each patient's gradient is clipped.
    patients, images
        Number of patients in the message, and of images of each.
    epsilon, delta
        Guarantee of this one message. An infinite epsilon means no noise.
    objective
        Objective that the attack minimises. None: a guess of the images, made without the message.
    steps
        Number of steps of the search.
    number
        Distinguishes messages of one kind.
    """

    network: str
    settings: NetworkSettings
    size: int = 32
    clip: float = 1.0
    patients: int = 1
    images: int = 1
    epsilon: float = math.inf
    delta: float = 1e-3
    objective: Objective | None = "cosine"
    steps: int = 10
    number: int = 0

    @property
    def name(self) -> str:
        """Description of the message's content."""
        if self.objective is None:
            return "no message: mean of public images"
        images = "1 image" if self.images == 1 else f"{self.images} images"
        return f"1 patient, {images}" if self.patients == 1 else f"mean of {self.patients} patients, {images} each"

    @property
    def positions(self) -> tuple[np.ndarray, np.ndarray]:
        """Sequence and slice of each image of a patient. Sequences alternate; the first one depends on the message."""
        order = np.arange(self.images)
        return (order + self.number) % len(CHANNELS), order // len(CHANNELS)

    @property
    def slices(self) -> int:
        """Required number of slices of a patient."""
        return math.ceil(self.images / len(CHANNELS))


@dataclass(frozen=True)
class Rebuilt:
    """True images and their reconstructions.

    Attributes
    ----------
    message
        The message.
    true, images
        Shape (image, row, column).
    """

    message: Message
    true: np.ndarray
    images: np.ndarray

    def rows(self) -> list[dict[str, object]]:
        """Return one row per image."""
        of = self.message
        kind: tuple[object, ...] = (of.name, MISSING, MISSING, 0.0, None, None)
        if of.objective is not None:
            kind = (of.name, of.network, ATTACKS[of.objective], of.epsilon, of.delta, of.steps)
        constants = dict(zip((*KIND, "delta", "steps"), kind, strict=True))
        return [
            {**constants, "ssim": similarity(true_image, image), "nmse": nmse(true_image, image)}
            for true_image, image in zip(self.true, self.images, strict=True)
        ]


def rebuild(message: Message) -> Rebuilt:
    """Attack one message, or guess its images without it.

    The message does not determine the order of the images of one sequence. They are matched with the true images in the
    best possible way.
    """
    true = _patients(PUBLIC + message.patients * message.number, message)
    flat = true.reshape(-1, message.size, message.size)
    guess = np.broadcast_to(_mean(message), true.shape)
    if message.objective is None:
        pairs = zip(guess.reshape(flat.shape), flat, strict=True)
        return Rebuilt(message, flat, np.stack([fit_whitening_losses(*pair) for pair in pairs]))
    sequences = np.tile(message.positions[0], (message.patients, 1))
    model = build(message.settings, len(CHANNELS), message.size, stream(SEED, Purpose.WEIGHTS))
    of = Contributions(model, torch.from_numpy(sequences), whitened_kspace, clip=message.clip)
    observed = of(torch.from_numpy(true)).detach()
    if math.isfinite(message.epsilon):
        noise = torch.from_numpy(stream(SEED, Purpose.NOISE, message.number).standard_normal(len(observed)))
        # Noise of the mean: one patient changes the sum by at most the clipping norm.
        observed = observed + noise * message.clip / message.patients / gaussian.mu(message.epsilon, message.delta)
    start, expected = torch.Generator().manual_seed(message.number), torch.from_numpy(guess.copy())
    images = invert(observed, of, true.shape, start, steps=message.steps, objective=message.objective, guess=expected)
    return Rebuilt(message, flat, _match(images.numpy().reshape(flat.shape), flat, sequences.ravel()))


def frame(rebuilt: Sequence[Rebuilt]) -> pd.DataFrame:
    """Return the scores, one row per image, with the delta of the message's epsilon and the steps of the search."""
    return pd.DataFrame([row for entry in rebuilt for row in entry.rows()])


def sheet(scores: pd.DataFrame) -> Sheet:
    """Return the result of `frame`, or one network's part of it, as a table for readers."""
    lines = []
    for _, group in scores.groupby(KIND, sort=False):
        message, network, attack, epsilon = (group[key].iloc[0] for key in KIND)
        epsilon_text = bound = MISSING
        if network != MISSING:
            epsilon_text, bound = Target(epsilon).short, "100.0 %"
            if math.isfinite(epsilon):
                mu = gaussian.mu(epsilon, group["delta"].iloc[0])
                bound = f"{100 * (1 - gaussian.beta(1 / CANDIDATES, mu)):.1f} %"
        similar = f"{group['ssim'].mean():.2f} ({group['ssim'].min():.2f} to {group['ssim'].max():.2f})"
        lines.append(
            (message, network, attack, epsilon_text, similar, f"{group['nmse'].mean():.3f}", bound, str(len(group)))
        )
    steps, deltas = numbers_of(scores, "steps"), numbers_of(scores, "delta")
    guess = ", also for the row without a message" if (scores["network"] == MISSING).any() else ""
    notes = (
        f"The attack: {steps} steps of L-BFGS with line search in float64, from a random start "
        "and from the mean of public images. It seeks images whose gradient has the message's direction, or is nearest "
        "to the message. The attacker knows weights, labels, Fourier transform and whitening. What whitening takes "
        "away (a scale of the even and of the odd part of an image, and the centre pixel) is fitted to the true "
        f"image{guess}.",
        f"ε: of this one message, per patient, at δ = {deltas}. Real trainings send many "
        "messages, each with more noise. ∞: no noise.",
        f"SSIM: mean and range over images. NMSE: mean. One of {CANDIDATES}: how often at most the right one of "
        f"{CANDIDATES} equally likely candidates is named, by any attack (Hayes, Mahloujifar and Balle 2023).",
        "Weights as training begins. Patients are simulated for this alone.",
    )
    columns = ("message", "network", "attack", "ε", "SSIM", "NMSE", f"one of {CANDIDATES}", "images")
    return Sheet("Images rebuilt from one message of k-space training", columns, tuple(lines), notes, names=3)


def similarity(true: np.ndarray, image: np.ndarray) -> float:
    """Return the structural similarity of two images of shape (row, column)."""
    return float(ssim(true[None], image[None])[0])


def _patients(first: int, message: Message) -> np.ndarray:
    """Return the images of a message's patients, shape (patient, image, row, column)."""
    count, (sequences, slices) = message.patients, message.positions
    images = [_patient(number, message.slices, message.size) for number in range(first, first + count)]
    return np.stack(images)[:, sequences, slices]


@lru_cache(maxsize=2 * PUBLIC)
def _patient(number: int, slices: int, size: int) -> np.ndarray:
    return simulate_public_patient(SEED, number, slices, size).astype(np.float64)


def _mean(message: Message) -> np.ndarray:
    """Return the mean public image of the sequence and slice of each image, shape (image, row, column)."""
    public = np.stack([_patient(number, message.slices, message.size) for number in range(PUBLIC)])
    return np.asarray(public.mean(axis=0)[message.positions])


def _match(images: np.ndarray, true: np.ndarray, sequences: np.ndarray) -> np.ndarray:
    """Return images in the order of the true ones, after `fit_whitening_losses`."""
    matched = np.empty_like(true)
    for sequence in np.unique(sequences):
        indices = np.flatnonzero(sequences == sequence)
        fitted = [[fit_whitening_losses(images[a], true[b]) for b in indices] for a in indices]
        near = [[similarity(true[b], fitted[x][y]) for y, b in enumerate(indices)] for x in range(len(indices))]
        for x, y in zip(*linear_sum_assignment(near, maximize=True), strict=True):
            matched[indices[y]] = fitted[x][y]
    return matched
