"""One clipped gradient per patient, summed. What is called a patient here is whatever unit is hidden.

The privacy unit is what is clipped: all images of a patient make one gradient, which is scaled to norm at most B over
*all* parameters together, real and imaginary parts alike. Clipping per image or per layer would bound something else.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from zetadp.device.transfer import to_device
from zetadp.nn.layers import Linear, knows_patients
from zetadp.nn.parameters import Layout
from zetadp.privacy.factored import Factored, factored, layers_to_factor, watched
from zetadp.privacy.grid import Grid, sum_groups, to_grid
from zetadp.validation import UserError

logger = logging.getLogger(__name__)

# Rounding must never make a clipped gradient longer than B: the factor is rounded down by 16 * 2**-24. Float32 errs by
# less: 13 times 2**-24 in the norm (`SHORT`), once in the factor and once in its product with the gradient.
ROUNDED_DOWN = 1 - 2.0**-20
SHORT = 24
"""Numbers whose squares a processor adds in float32: in whatever order, their norm is off by at most 13 * 2**-24."""
SMALLEST = 1e-9
"""Below this norm what counts may be numbers whose squares float32 cannot hold."""
COLUMNS = 1 << 16
"""Numbers of one patient in one call where norms are taken in float64, on a CPU."""
COLUMNS_ELSEWHERE = 1 << 20
"""The same on a GPU, which wants few calls."""


class Images(Protocol):
    """Inputs of patients, (patient, image, ...): a tensor, or a view that looks up those of a pass."""

    @property
    def shape(self) -> torch.Size:
        """Shape of all of them."""

    @property
    def dtype(self) -> torch.dtype:
        """Type of the numbers."""

    @property
    def device(self) -> torch.device:
        """Where they are."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Tensor: ...


class Losses(Protocol):
    """The loss of each item, whose mean over a unit's items makes the unit's gradient."""

    def __call__(self, outputs: Tensor, targets: Tensor, /) -> Tensor:
        """Return real losses of shape (item,) for what the network gave, shape (item, ...), and the targets."""


def cross_entropies(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each item, shape (item,)."""
    return functional.cross_entropy(outputs, targets, reduction="none")


class PatientStatistic(Protocol):
    """What a patient contributes in place of its gradient: one real vector, a function of this patient alone."""

    @property
    def dimension(self) -> int:
        """Length of the vector."""

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return real vectors of shape (patient, dimension).

        Parameters
        ----------
        images
            Tensor of shape (patient, image, ...).
        labels
            Targets of shape (patient, image, ...).
        """


@dataclass(frozen=True)
class ClippedSums:
    """Sums of clipped patient gradients.

    Attributes
    ----------
    sums
        Tensor of shape (group, dimension): the sum over the patients of each group (node), float32 or, on a grid,
        int64.
    not_finite
        Patients whose gradient was not finite (or, on a grid, too long) and who contributed zero: one integer, left on
        the device until somebody needs it. Stays at the node: how many there are is a function of private data.
    """

    sums: Tensor
    not_finite: Tensor


def patient_gradients(
    model: nn.Module,
    layout: Layout,
    images: Tensor,
    labels: Tensor,
    weights: Tensor | None = None,
    losses: Losses = cross_entropies,
) -> list[Tensor]:
    """Return one gradient per patient, parameter by parameter.

    A patient's loss is the mean over its images, so its gradient is that of the whole patient.

    Parameters
    ----------
    model
        Network. Where all its layers with parameters accept a leading patient axis (`zetadp.nn.layers`), gradients
        cost what one ordinary gradient of all patients costs; other layers go through `torch.vmap`, which is slower.
    layout
        Order of the parameters.
    images
        Tensor of shape (patient, image, ...); the network takes those of all patients as one batch.
    labels
        Targets of shape (patient, image, ...): class labels, for cross-entropy.
    weights
        Weight of each image in its patient's loss, shape (patient, image), each row summing to one or, for a patient
        without images, to zero. By default all images of a patient weigh the same.
    losses
        Loss of each image.

    Returns
    -------
    One real tensor of shape (patient, size) for each parameter, complex parameters as interleaved real and imaginary
    parts of ``dL/dRe + i dL/dIm`` (PyTorch's convention, twice the conjugate Wirtinger derivative).
    """
    if not knows_patients(model):
        return _mapped_gradients(model, layout, images, labels, weights, losses)
    found, _ = _known_gradients(model, layout, images, labels, weights, losses, {})
    return [found[name] for name in layout.names]


def _known_gradients(
    model: nn.Module,
    layout: Layout,
    images: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    losses: Losses,
    layers: Mapping[str, Linear],
) -> tuple[dict[str, Tensor], dict[str, Factored]]:
    """Return what `patient_gradients` does for a network that knows patients, by name; of some layers as factors."""
    patients, per_patient = labels.shape[:2]
    parameters = dict(model.named_parameters())
    own = {name: parameters[name].detach() for name in layout.names}
    leaves = {
        name: parameter.unsqueeze(0).expand(patients, *parameter.shape).requires_grad_()
        for name, parameter in own.items()
        if name not in layers
    }
    with watched(layers) as uses:
        scores = functional_call(model, {**own, **leaves}, (images.flatten(0, 1),))
    own_losses = one_an_item(losses, scores, labels.flatten(0, 1)).view(patients, per_patient)
    loss = own_losses.mean(dim=1).sum() if weights is None else (own_losses * weights).sum()
    found = torch.autograd.grad(loss, [*leaves.values(), *(use.output for use in uses)])
    rows = dict(zip(leaves, _rows(found[: len(leaves)], patients), strict=True))
    factors = factored(uses, found[len(leaves) :], layers, patients)
    return rows, factors


def _gradients_to_sum(
    model: nn.Module, layout: Layout, images: Tensor, labels: Tensor, losses: Losses, layers: Mapping[str, Linear]
) -> list[Tensor | Factored]:
    """Return one gradient per patient, parameter by parameter, those of some layers as factors."""
    if not layers:
        return [*patient_gradients(model, layout, images, labels, losses=losses)]
    rows, factors = _known_gradients(model, layout, images, labels, None, losses, layers)
    return [factors[name] if name in factors else rows[name] for name in layout.names]


def _mapped_gradients(
    model: nn.Module, layout: Layout, images: Tensor, labels: Tensor, weights: Tensor | None, losses: Losses
) -> list[Tensor]:
    """Return what `patient_gradients` does for any network that `torch.vmap` can map: slower, and for all layers."""
    if weights is None:
        weights = torch.full(labels.shape[:2], 1 / labels.shape[1], dtype=images.real.dtype, device=labels.device)
    parameters = {name: p.detach() for name, p in model.named_parameters() if name in layout.names}

    def loss(own: dict[str, Tensor], images: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        return (one_an_item(losses, functional_call(model, own, (images,)), labels) * weights).sum()

    found = vmap(grad(loss), in_dims=(None, 0, 0, 0))(parameters, images, labels, weights)
    return _rows([found[name] for name in layout.names], len(labels))


def one_an_item(losses: Losses, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the losses of items; refuse what is no real number an item, which would not be the mean that it seems."""
    found = losses(outputs, targets)
    if found.shape != targets.shape[:1] or not found.is_floating_point():
        name = getattr(losses, "__qualname__", type(losses).__name__)
        raise UserError(
            f"Expected {name} to return one real loss an item, shape ({len(targets)},), found shape "
            f"{tuple(found.shape)} of {found.dtype}."
        )
    return found


def _rows(gradients: Sequence[Tensor], patients: int) -> list[Tensor]:
    """Return gradients with a patient axis as real tensors of shape (patient, size)."""
    return [(torch.view_as_real(g) if g.is_complex() else g).reshape(patients, -1) for g in gradients]


def clip_factors(gradients: Sequence[Tensor | Factored], bound: float | None) -> tuple[Tensor, Tensor]:
    """Return the factor that brings each patient's gradient to norm at most ``bound``, and whether it is finite.

    Parameters
    ----------
    gradients
        For each parameter one tensor of shape (patient, size), or its factors.
    bound
        The clipping norm B; ``None`` does not clip.

    Returns
    -------
    factors, finite
        float32 factors in [0, 1] of shape (patient,), zero where the gradient is not finite or so much longer than
        the bound that float32 has no exact factor for it; boolean of that shape.
    """
    norms = _norms(gradients)
    factors = torch.ones_like(norms) if bound is None else bound / norms.clamp_min(bound) * ROUNDED_DOWN
    # Below its smallest normal number float32 rounds by more than the factor is rounded down.
    finite = torch.isfinite(norms) & (factors >= torch.finfo(torch.float32).tiny)
    return torch.where(finite, factors, 0.0).float(), finite


def _norms(gradients: Sequence[Tensor | Factored]) -> Tensor:
    """Return the norm of each patient's gradient over all parameters, float64 of shape (patient,)."""
    written = [g for g in gradients if not isinstance(g, Factored)]
    others = [g.norms() for g in gradients if isinstance(g, Factored)]
    norms: Tensor = torch.linalg.vector_norm(
        torch.stack([*([_written_norms(written)] if written else []), *others]), dim=0
    )
    return norms


def _written_norms(gradients: Sequence[Tensor]) -> Tensor:
    """Return the norm of each patient's gradient over some parameters, float64 of shape (patient,).

    To turn every number into float64 takes a processor longer than to read it. So it adds the squares of a few in
    float32, with less error than factors are rounded down by, and joins the norms of these few in float64.
    """
    if all(g.device.type == "cpu" and g.dtype == torch.float32 for g in gradients):
        parts = []
        for g in gradients:
            whole = g.shape[1] - g.shape[1] % SHORT
            blocks, rest = g[:, :whole].reshape(len(g), whole // SHORT, SHORT), g[:, whole:]
            parts += [torch.linalg.vector_norm(blocks, dim=2), rest]
        norms = _joined(parts)
        if bool(((norms > SMALLEST) & torch.isfinite(norms)).all()):
            return norms
    # In blocks of columns: over long rows the norm of several would leave the cache, and their float64 would take room.
    columns = COLUMNS if gradients[0].device.type == "cpu" else COLUMNS_ELSEWHERE
    return _joined([part for g in gradients for part in torch.split(g, columns, dim=1)])


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Return the norm of each row over all parts, taken in float64."""
    norms = [torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in parts]
    joined: Tensor = torch.linalg.vector_norm(torch.stack(norms), dim=0)
    return joined


def clipped_sums(
    model: nn.Module,
    layout: Layout,
    images: Images,
    labels: Tensor,
    groups: Tensor,
    *,
    count: int,
    bound: float | None,
    chunk: int,
    grid: Grid | None = None,
    statistic: PatientStatistic | None = None,
    losses: Losses = cross_entropies,
) -> ClippedSums:
    """Return, for each group of patients, the sum of their clipped gradients.

    Patients are processed in chunks: memory stays flat, and neither the sums (to rounding) nor the guarantee depend
    on the size of a chunk. Where a GPU runs out of memory, the chunk is halved.

    Parameters
    ----------
    model, layout
        The network and the order of its parameters.
    images
        Of shape (patient, image, ...), as a tensor or a view of which a pass takes its part; no patient at all is
        allowed.
    labels
        Targets of shape (patient, image, ...).
    groups
        Group (node) of each patient, shape (patient,), in the processor's memory: a GPU would have to be waited for.
    count
        Number of groups.
    bound
        The clipping norm B; ``None`` leaves gradients as they are and gives no guarantee.
    chunk
        Images in one pass at most; a pass holds at least one patient.
    grid
        Truncate each clipped gradient onto this grid, check its norm in integers, and sum integers.
    statistic
        Makes the vector that takes the place of a patient's gradient, and is clipped in the same way.
    losses
        Loss of each image.
    """
    sizes = layout.sizes if statistic is None else (statistic.dimension,)
    kind = torch.float32 if grid is None else torch.int64
    sums = torch.zeros(count, sum(sizes), dtype=kind, device=images.device)
    most = max(1, chunk // max(1, images.shape[1]))
    # Passes of nearly equal size: a short last one would cost more than its share.
    patients_at_once = math.ceil(len(images) / max(1, math.ceil(len(images) / most)))
    node_of = groups.tolist()
    layers: dict[str, Linear] = {}
    if images.device.type == "cpu" and grid is None and statistic is None and knows_patients(model):
        layers = layers_to_factor(model, layout.names, images.shape[1])
    groups = to_device(groups, images.device)
    counted = torch.zeros((), dtype=torch.int64, device=images.device)
    start = 0
    while start < len(images):
        part = slice(start, start + patients_at_once)
        try:
            if statistic is None:
                gradients = _gradients_to_sum(model, layout, images[part], labels[part], losses, layers)
            else:
                gradients = [statistic(images[part], labels[part])]
        except torch.OutOfMemoryError:
            # The same patients in smaller passes: same draw, same noise, same entry in the ledger, same sums.
            if patients_at_once == 1:
                raise
            patients_at_once //= 2
            logger.warning("out of GPU memory: going on with passes of %d patients", patients_at_once)
            torch.cuda.empty_cache()
            continue
        factors, finite = clip_factors(gradients, bound)
        # Zero times infinity is not zero, so the values go too. To look first would make a GPU wait.
        if images.device.type != "cpu" or not finite.all():
            gradients = [g if isinstance(g, Factored) else torch.where(finite[:, None], g, 0.0) for g in gradients]
            counted += (~finite).sum()
        if grid is None:
            _add_clipped(sums, sizes, gradients, factors, node_of[part])
        else:
            written = cast("list[Tensor]", gradients)  # on a grid no layer is kept as factors
            values, within = to_grid(torch.cat([g * factors[:, None] for g in written], dim=1), grid)
            counted += (~within & finite).sum()
            sums += sum_groups(values, groups[part], count)
        start += patients_at_once
    return ClippedSums(sums=sums, not_finite=counted)


def _add_clipped(
    sums: Tensor, sizes: Sequence[int], gradients: Sequence[Tensor | Factored], factors: Tensor, nodes: Sequence[int]
) -> None:
    """Add scaled gradients to the sums of their nodes, shape (node, dimension).

    Patients of a node are neighbours as a rule, and each row of neighbours is one product: no gradient is read for a
    node that it does not belong to.
    """
    stop = 0
    for node, neighbours in groupby(nodes):
        own = slice(stop, stop := stop + sum(1 for _ in neighbours))
        for total, g in zip(torch.split(sums[node], list(sizes)), gradients, strict=True):
            if isinstance(g, Factored):
                g[own].add_to(total, factors[own])
            else:
                total.unsqueeze(0).addmm_(factors[None, own], g[own])
