r"""The canary: a stub network, and records whose gradients are known and reach the clipping norm.

The stub is one complex affine layer of the library. Its scores are the real parts of the outputs. There are two
classes, with the image x in one and -x in the other. If all weights are zero, the gradient of the weights is
:math:`\mp \bar{x} / 2`, which has the phase of x's conjugate: real x gives a real gradient, imaginary x an imaginary
one. If the weights equal the conjugate images, the softmax is saturated and the gradient is zero.

Neighbours: the patient's contribution is replaced by zero. The patient keeps its place at the node, so the number of
patients, the sampling probability and the divisor do not change. The record that contributes zero has images that are
not finite.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from zetadp.base.tensors import Layout
from zetadp.base.validation import one_of, positive
from zetadp.core.records import LabelledItems, Node, items_of
from zetadp.nn.layers import Linear
from zetadp.nn.stacked import stack
from zetadp.privacy.events import Event
from zetadp.privacy.grid import Grid
from zetadp.privacy.ledger import Ledger
from zetadp.privacy.mechanism import ExactSampledGaussian, SampledGaussian

CANARY, SILENT = range(2)
"""Positions of the records: the canary, and one that contributes zero."""

CLASSES = 2
SIDE = 4
"""Side of the canary's images; the stub network has ``2 (SIDE**2 + 1)`` complex weights."""

EXCESS = 100.0
"""The canary's gradient is longer than the clipping norm by this factor, so missing clipping is visible."""

DIRECTIONS = ("general", "imaginary", "real")


class ComplexScores(nn.Module):
    """The real part of a complex affine map of all coefficients.

    Parameters
    ----------
    size
        Side of the square images.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.affine = Linear(size * size, CLASSES, dtype=torch.complex64)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores of shape (image, class) for images of shape (image, 1, row, column)."""
        scores: Tensor = self.affine(stack(images.flatten(1)))
        return scores[:, :CLASSES]


@dataclass(frozen=True)
class Stub:
    """Everything that a round on canaries needs besides its nodes.

    Attributes
    ----------
    model, layout
        The stub network, with weights zero, and the order of its parameters.
    records
        The records `CANARY` and `SILENT`.
    direction
        Unit vector of the canary's gradient at weights zero, shape (dimension,), float64.
    """

    model: nn.Module
    layout: Layout
    records: LabelledItems
    direction: np.ndarray

    @property
    def images_per_patient(self) -> int:
        """Number of images in one patient's gradient."""
        return CLASSES

    def saturate(self) -> None:
        """Set the weights at which the canary's gradient is zero."""
        images, _ = record_of(self.records, CANARY)
        images = images.flatten(1)
        with torch.no_grad():
            self.model.get_parameter("affine.weight").copy_(images.conj())

    def reset(self) -> None:
        """Set all weights to zero again."""
        with torch.no_grad():
            self.model.get_parameter("affine.weight").zero_()


def canary_stub(*, clip: float, direction: str = "general") -> Stub:
    """Make the stub network and its records.

    Parameters
    ----------
    clip
        The clipping norm B, which the canary's gradient exceeds by `EXCESS`.
    direction
        ``general``, ``imaginary`` or ``real``: the parts of the canary's gradient that are not zero.
    """
    one_of(DIRECTIONS, direction=direction)
    parts = np.random.default_rng(0).standard_normal((2, SIDE, SIDE))
    real, imaginary = (0.0 if direction == other else 1.0 for other in ("imaginary", "real"))
    x = torch.from_numpy(real * parts[0] + 1j * imaginary * parts[1])
    # The gradient's norm is that of x divided by the square root of two.
    x *= EXCESS * clip * 2**0.5 / float(torch.linalg.vector_norm(x))
    canary = torch.stack([x, -x]).to(torch.complex64)
    together = torch.stack([canary, torch.full_like(canary, torch.nan)])
    records = LabelledItems.stacked(together.unsqueeze(2), torch.arange(CLASSES))
    model = ComplexScores(SIDE)
    layout = Layout.of(model)
    start = layout.flatten(dict(model.named_parameters())).detach()
    gradient = patient_gradient(model, layout, start, *record_of(records, CANARY))
    return Stub(model, layout, records, gradient / np.linalg.norm(gradient))


def record_of(records: LabelledItems, record: int) -> tuple[Tensor, Tensor]:
    """Return images and labels of a record with an image of each class."""
    own = records.part(slice(CLASSES * record, CLASSES * (record + 1)))
    return own.inputs, own.targets


def patient_gradient(model: nn.Module, layout: Layout, weights: Tensor, images: Tensor, labels: Tensor) -> np.ndarray:
    """Return a patient's gradient before clipping, by ordinary automatic differentiation: not by the audited code.

    Returns
    -------
    float64 array of shape (dimension,).
    """
    leaf = weights.clone().requires_grad_()
    scores = functional_call(model, layout.unflatten(leaf), (images,))
    (gradient,) = torch.autograd.grad(functional.cross_entropy(scores, labels), [leaf])
    return gradient.double().cpu().numpy()


@dataclass(frozen=True)
class Audited:
    """The mechanism under audit, which is the same at each node.

    Attributes
    ----------
    noise_multiplier, clip
        As in `NodeMechanism`: sigma and B.
    probability
        Probability that a patient is drawn. The divisor is this probability times N.
    population
        Number N of patients at a node. All but the canary contribute zero.
    noise
        ``seeded`` or ``os``.
    """

    noise_multiplier: float = 1.0
    clip: float = 1.0
    probability: float = 1.0
    population: int = 1
    noise: str = "seeded"

    def __post_init__(self) -> None:
        """Check every constant."""
        positive(noise_multiplier=self.noise_multiplier, clip=self.clip, population=self.population)
        one_of(("seeded", "os"), noise=self.noise)

    @property
    def expected(self) -> float:
        """Expected patients in a round, R."""
        return self.probability * self.population


def canary_node(stub: Stub, ledger: Ledger, place: int, audited: Audited, *, present: bool, seed: int) -> Node:
    """Return a node whose first patient is the canary, or contributes zero in its place.

    Parameters
    ----------
    stub, ledger
        Stub network with its records, and ledger.
    place
        Number of the node.
    audited
        Its mechanism.
    present
        Whether the canary takes part.
    seed
        Seed of the seeded mechanism.
    """
    population, noise_multiplier, clip = audited.population, audited.noise_multiplier, audited.clip
    patients = items_of([[CANARY if present else SILENT], *[[SILENT]] * (population - 1)], CLASSES)
    event = Event.poisson(
        f"node-{place + 1:04d}",
        population=population,
        expected=audited.expected,
        noise_multiplier=noise_multiplier,
        clip=clip,
    )
    if audited.noise == "seeded":
        return Node(SampledGaussian(event, place, seed=seed, ledger=ledger), patients)
    grid = Grid.choose(clip, noise_multiplier=noise_multiplier, population=population, dimension=stub.layout.dimension)
    return Node(ExactSampledGaussian(event, grid=grid, ledger=ledger), patients)
