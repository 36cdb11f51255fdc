"""Sums of clipped contributions, one per patient. Here "patient" means the unit.

The unit of privacy is the unit of clipping: all images of a patient make one gradient, which is scaled to norm at most
B over *all* parameters together, real and imaginary parts alike. Clipping per image or per layer would bound another
quantity.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias, cast

import torch
from torch import Tensor
from torch.nn import functional

from zetadp.base.tensors import index_device, to_device
from zetadp.mechanism.contributions import Contribution, Contributors
from zetadp.mechanism.factored import ROUNDING, Factored
from zetadp.mechanism.grid import BLOCK, BLOCK_ELSEWHERE, EXACT_SUM, Grid, whole_steps

logger = logging.getLogger(__name__)

# Rounding must never make a clipped gradient longer than B, so the factor is rounded down by 16 * 2**-24. The errors of
# float32 are smaller: 13 * 2**-24 in the norm (`SHORT`), 2**-24 in the factor, and 2**-24 in its product with the
# gradient. Norms from other devices are upper bounds already (`_bounds_of_norms`).
ROUNDED_DOWN = 1 - 2.0**-20
SHORT = 24
"""Numbers whose squares a CPU adds in float32. In any order, the error of their norm is at most 13 * 2**-24."""
SMALLEST = 1e-9
"""Below this norm, the squares of relevant numbers may be too small for float32."""
LONG = 128
"""Numbers whose squares another device adds in float32."""
COLUMNS = 1 << 16
"""Numbers of one patient in one call where norms are taken in float64, on a CPU."""
COLUMNS_ELSEWHERE = 1 << 20
"""The same on a GPU, where few calls are faster."""
TOGETHER, MOST_TOGETHER = 8, 1 << 21
"""Patients of a large network who are clipped together after passes of their own, and most numbers of them all."""

Pass: TypeAlias = tuple[Sequence[Tensor | Factored], int]
"""Contributions part by part, tensors of shape (patient, size) or factors, and the number of patients that count."""


@dataclass(frozen=True)
class ClippedSums:
    """Sums of clipped patient gradients.

    Attributes
    ----------
    sums
        Tensor of shape (group, dimension): the sum over the patients of each group (node), float32 or, on a grid,
        int64.
    not_finite
        Number of patients who contributed zero, because their gradient was not finite or, on a grid, too long. One
        integer that remains on the device until it is needed. It stays at the node, because it depends on private data.
    """

    sums: Tensor
    not_finite: Tensor


def clip_factors(gradients: Sequence[Tensor | Factored], bound: float | None) -> tuple[Tensor, Tensor]:
    """Return the factors that bring each patient's gradient to norm at most ``bound``, and which can be used.

    Parameters
    ----------
    gradients
        For each parameter one tensor of shape (patient, size), or its factors.
    bound
        The clipping norm B; ``None`` does not clip.

    Returns
    -------
    factors, finite
        float32 factors in [0, 1] of shape (patient,), and a boolean tensor of that shape. Factor and boolean are zero
        if the gradient is not finite, or so long that its factor would be too small for float32. On a GPU, also if its
        squares would be too large.
    """
    norms = _norms(gradients)
    # The factor of a norm that is infinite or not a number is zero or not a number.
    factors = norms.isfinite().to(norms.dtype) if bound is None else bound / norms.clamp_min(bound) * ROUNDED_DOWN
    # Below its smallest normal number float32 rounds by more than the factor is rounded down.
    finite = factors >= torch.finfo(torch.float32).tiny
    return torch.where(finite, factors, 0.0).float(), finite


def _norms(gradients: Sequence[Tensor | Factored]) -> Tensor:
    """Return the norm of each patient's gradient over all parameters, float64 of shape (patient,)."""
    written = [g for g in gradients if not isinstance(g, Factored)]
    norms = [g.norms() for g in gradients if isinstance(g, Factored)]
    if written:
        norms.insert(0, _written_norms(written))
    if len(norms) == 1:
        return norms[0]
    combined: Tensor = torch.linalg.vector_norm(torch.stack(norms), dim=0)
    return combined


def _written_norms(gradients: Sequence[Tensor]) -> Tensor:
    """Return the norm of each patient's gradient over some parameters, float64 of shape (patient,).

    On a CPU, converting every number to float64 takes longer than reading it. Squares are therefore added in float32 in
    small groups. The error is smaller than the amount by which clipping factors are rounded down. The groups' norms are
    combined in float64. If this is not exact enough for a patient, only that patient's norm is computed again, so no
    norm depends on other patients. A GPU would have to wait for that answer, so there the result is an upper bound.
    """
    if any(g.dtype != torch.float32 for g in gradients):
        return _precise_norms(gradients)
    if gradients[0].device.type != "cpu":
        return _bounds_of_norms(gradients)
    norms = _row_norms([part for g in gradients for part in _short_norms(g, SHORT)])
    enough = (norms > SMALLEST) & (norms < math.inf)
    if bool(enough.all()):
        return norms
    return torch.where(enough, norms, _precise_norms(gradients))


def _short_norms(gradient: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the norms of every ``size`` numbers of each patient, taken in float32, and the numbers that remain."""
    whole = gradient.shape[1] - gradient.shape[1] % size
    short = torch.linalg.vector_norm(gradient.unfold(1, size, size), dim=2) if whole else gradient[:, :0]
    return short, gradient[:, whole:]


def _bounds_of_norms(gradients: Sequence[Tensor]) -> Tensor:
    """Return upper bounds on the norms of `_written_norms`, without a copy in float64 and without asking the device.

    With u = 2**-24, a sum of n squares in float32 has, in any order, a relative error of at most n u, and its root half
    of that, besides its own rounding. Squares below 2**-126 may be lost. Where squares exceed the range of float32, for
    numbers of about 2**64, the bound is infinite.
    """
    numbers = sum(g.shape[1] for g in gradients)
    parts = torch.cat([part for g in gradients for part in _short_norms(g, LONG)], dim=1)
    norms = torch.linalg.vector_norm(parts, dim=1, dtype=torch.float64)
    bounds: Tensor = norms * (1 + (LONG / 2 + 8) * ROUNDING) + math.sqrt(numbers) * 2.0**-63
    return bounds


def _precise_norms(gradients: Sequence[Tensor]) -> Tensor:
    """Return the same norms as `_written_norms`, with all squares in float64."""
    # In blocks of columns: long rows would exceed the cache, and their float64 copies would need much memory.
    columns = COLUMNS if gradients[0].device.type == "cpu" else COLUMNS_ELSEWHERE
    return _row_norms([part for g in gradients for part in torch.split(g, columns, dim=1)])


def _row_norms(parts: Sequence[Tensor]) -> Tensor:
    """Return the norm of each row over all parts, taken in float64."""
    # Parts without numbers stay, so that the order of additions follows from the shapes of layers alone.
    norms = [
        torch.linalg.vector_norm(part, dim=1, dtype=torch.float64)
        if part.shape[1]
        else torch.zeros(len(part), dtype=torch.float64, device=part.device)
        for part in parts
    ]
    combined: Tensor = torch.linalg.vector_norm(torch.stack(norms), dim=0)
    return combined


def clipped_sums(
    contribution: Contribution, contributors: Contributors, *, bound: float | None, chunk: int, grid: Grid | None = None
) -> ClippedSums:
    """Return, for each group of patients, the sum of their clipped contributions.

    A patient in several groups adds the same contribution to each. It is computed and clipped once.

    Patients are processed in chunks, which limits memory. Neither the guarantee nor the sums (up to rounding) depend on
    the size of a chunk. If a GPU runs out of memory, the chunk is halved.

    Parameters
    ----------
    contribution
        Contribution of a patient.
    contributors
        The patients, and the group or groups of each.
    bound
        The clipping norm B; ``None`` leaves contributions as they are and gives no guarantee.
    chunk
        Largest number of images in one pass. A pass holds at least one patient.
    grid
        Truncate each clipped contribution onto this grid, check its norm in integers, and sum integers.
    """
    groups, members, device = contributors.groups, contributors.members, contributors.inputs.device
    sizes, kind = contribution.sizes, _kind_of_sums(contributors, grid)
    sums = torch.zeros(contributors.count, sum(sizes), dtype=kind, device=device)
    node_of = groups.tolist() if members is None else []
    groups = to_device(groups, device)
    counted = torch.zeros((), dtype=torch.int64, device=device)
    factored = grid is None and members is None
    in_bags = factored and device.type != "cpu"
    # On a CPU a few patients at a time, so that what becomes of their numbers stays in cache.
    at_once = max(1, (BLOCK if device.type == "cpu" else BLOCK_ELSEWHERE) // sums.shape[1])
    passes = _passes(contribution, contributors, chunk, factored=factored)
    if not factored:
        passes = _together(passes, max(at_once, min(TOGETHER, MOST_TOGETHER // sums.shape[1])))
    start = 0
    for rows, count in passes:
        factors, finite = (of_rows[:count] for of_rows in clip_factors(rows, bound))
        # Zero times infinity is not zero, so the values are replaced too. Checking first would make a GPU wait.
        if device.type != "cpu" or not finite.all():
            counted += (~finite).sum()
            if not in_bags:
                rows = [
                    row.cleaned(finite) if isinstance(row, Factored) else torch.where(finite[:, None], row[:count], 0.0)
                    for row in rows
                ]
        if in_bags:
            patients = slice(start, start + count)
            _add_in_bags(sums, sizes, rows, factors, finite, node_of[patients], groups[patients])
        elif factored:
            _add_clipped(sums, sizes, rows, factors, node_of[start : start + count])
        else:
            for first in range(0, count, at_once):
                few = slice(first, min(first + at_once, count))
                # No part is factored here.
                values = torch.cat([cast("Tensor", row)[few] for row in rows], dim=1).mul_(factors[few, None])
                if grid is not None:
                    values, within = whole_steps(values, grid)
                    values = values.to(kind)
                    if within is not None:
                        counted += (~within & finite[few]).sum()
                patients = slice(start + first, start + few.stop)
                if members is not None:
                    _add_members(sums, values, groups, members, patients.start)
                elif len(values) == 1:
                    sums[node_of[patients.start]] += values[0]
                else:
                    sums.index_add_(0, groups[patients], values)  # whole numbers: exact in any order
        start += count
        del rows  # before the next pass needs memory
    return ClippedSums(sums=sums if grid is None else sums.long(), not_finite=counted)


def _passes(contribution: Contribution, contributors: Contributors, chunk: int, *, factored: bool) -> Iterator[Pass]:
    """Yield the contributions of each pass, part by part, and the number of its patients."""
    items, device = contributors.items, contributors.inputs.device
    most = max(1, chunk // max(1, items.shape[1]))
    # Passes of nearly equal size: a short last one would cost more than its share.
    patients_at_once = math.ceil(len(items) / max(1, math.ceil(len(items) / most)))
    of_inputs, of_targets = (
        to_device(items, destination) for destination in (index_device(contributors.inputs), device)
    )
    start = 0
    while start < len(items):
        part = slice(start, start + patients_at_once)
        rows = None  # those of the previous pass are not needed any more
        try:
            weights, keys = (
                None if tensor is None else tensor[part] for tensor in (contributors.weights, contributors.keys)
            )
            images, labels = contributors.inputs[of_inputs[part]], contributors.targets[of_targets[part]]
            rows = contribution.of_units(images, labels, factors=factored, weights=weights, keys=keys)
        except torch.OutOfMemoryError:
            if patients_at_once == 1:
                raise
        if rows is None:
            # After the exception, which holds the memory of the failed pass. Smaller passes of the same patients change
            # neither draw, noise nor ledger entry, and sums only in their rounding.
            patients_at_once //= 2
            logger.warning("out of GPU memory: continuing with passes of %d patients", patients_at_once)
            torch.cuda.empty_cache()
            continue
        yield rows, len(labels)
        start += patients_at_once


def _together(passes: Iterator[Pass], at_once: int) -> Iterator[Pass]:
    """Put up to ``at_once`` passes of single patients together.

    Clipping few numbers costs less than the calls. With many numbers, the code of a pass is no longer in cache after
    the gradient of the previous patient was clipped, so each call takes several times as long.

    The last bits of a norm may depend on the number of rows, which must not show how many patients were drawn. Rows of
    ones therefore complete a short last pass; they are not counted.
    """
    waiting: list[list[Tensor]] = []

    def stack_waiting() -> Pass:
        rows = [torch.cat(parts) for parts in zip(*waiting, strict=True)]
        if missing := at_once - len(waiting):
            rows = [functional.pad(row, (0, 0, 0, missing), value=1.0) for row in rows]
        return rows, len(waiting)

    for rows, count in passes:
        if count > 1 or at_once == 1:
            yield rows, count
            del rows
            continue
        waiting.append(cast("list[Tensor]", rows))  # no part is factored here
        if len(waiting) == at_once:
            yield stack_waiting()
            waiting.clear()
    if waiting:
        yield stack_waiting()


def _kind_of_sums(contributors: Contributors, grid: Grid | None) -> torch.dtype:
    """Return the type in which sums are exact on a grid, or else float32.

    A sum of n patients is at most n times the bound. Below 2**53 steps it is exact in float64, which a CPU truncates
    and adds up twice as fast as int64.
    """
    if grid is None:
        return torch.float32
    most = max(len(contributors.items), 0 if contributors.members is None else len(contributors.members))
    fits = most * 2**grid.bits <= EXACT_SUM
    return torch.float64 if fits and contributors.inputs.device.type == "cpu" else torch.int64


def _add_clipped(
    sums: Tensor, sizes: Sequence[int], gradients: Sequence[Tensor | Factored], factors: Tensor, nodes: Sequence[int]
) -> None:
    """Add scaled gradients to the sums of their nodes, shape (node, dimension).

    Patients of one node usually follow each other, and each sequence of them is one matrix product. No gradient is read
    for a node to which it does not belong.
    """
    for node, rows in _neighbours(nodes):
        for total, g in zip(torch.split(sums[node], list(sizes)), gradients, strict=True):
            if isinstance(g, Factored):
                g[rows].add_to(total, factors[rows])
            else:
                total.unsqueeze(0).addmm_(factors[None, rows], g[rows])


def _add_in_bags(
    sums: Tensor,
    sizes: Sequence[int],
    gradients: Sequence[Tensor | Factored],
    factors: Tensor,
    finite: Tensor,
    nodes: Sequence[int],
    groups: Tensor,
) -> None:
    """Add scaled gradients to the sums of their nodes as `_add_clipped` does, with few kernels, as a GPU needs.

    One kernel adds up a parameter's gradients for all nodes. The patients of a node are a bag; no gradient is read for
    a node to which it does not belong. Gradients that are not finite, which need not be replaced, are in a bag that is
    dropped.

    Parameters
    ----------
    sums, sizes, gradients, factors, nodes
        As in `_add_clipped`.
    finite
        Which patients' gradients can be used, shape (patient,).
    groups
        The nodes again, on the device of the sums.
    """
    within = slice(min(nodes), max(nodes) + 1)
    bags, order = torch.where(finite, groups, -1).sort(stable=True)
    starts = torch.searchsorted(bags, torch.arange(within.start, within.stop, device=bags.device))
    starts = functional.pad(starts, (1, 0))  # the bag that is dropped comes first
    scale = factors[order]
    for totals, g in zip(torch.split(sums, list(sizes), dim=1), gradients, strict=True):
        if isinstance(g, Factored):
            cleaned = g.cleaned(finite)
            for node, rows in _neighbours(nodes):
                cleaned[rows].add_to(totals[node], factors[rows])
        else:
            added = functional.embedding_bag(order, g, starts, mode="sum", per_sample_weights=scale)
            totals[within].add_(added[1:])


def _neighbours(nodes: Sequence[int]) -> Iterator[tuple[int, slice]]:
    """Return each sequence of patients who follow each other at one node: the node, and their positions."""
    stop = 0
    for node, neighbours in groupby(nodes):
        yield node, slice(stop, stop := stop + len([*neighbours]))


def _add_members(sums: Tensor, values: Tensor, groups: Tensor, members: Tensor, start: int) -> None:
    """Add the clipped contributions of a pass, shape (patient, dimension), to every sum that includes the patient.

    Parameters
    ----------
    sums
        Sums of all groups, shape (group, dimension).
    values
        Contributions of the patients from position ``start`` on.
    groups, members
        As in `Contributors`.
    start
        Position of the pass's first patient.
    """
    first, last = torch.searchsorted(members, torch.tensor([start, start + len(values)])).tolist()
    # A few at a time, so that they stay in cache.
    at_once = max(1, COLUMNS // values.shape[1])
    for begin in range(first, last, at_once):
        part = slice(begin, min(begin + at_once, last))
        positions = to_device(members[part] - start, values.device)
        sums.index_add_(0, groups[part], values[positions])
