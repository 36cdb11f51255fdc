"""Clipped sums in passes of one shape, which a GPU can be told once and repeat.

How many patients are drawn differs from round to round, and a GPU that gets another shape each time has to be given
every operation anew. So every pass holds the same number of patients. The last one is filled up with padding, which
contributes exactly zero: not by small numbers but because its gradient and its factor are replaced by zeros, also where
they are not finite. A draw that is larger than expected takes further passes; nobody drawn is left out, drawn again or
capped, since that would be another sampling than the accountant's.

Nothing in here asks the device for a value, so the processor runs ahead of it.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from zetadp.privacy.captured import captured_or_plain
from zetadp.privacy.clipping import ClippedSums, clip_factors, patient_gradients
from zetadp.privacy.grid import to_grid
from zetadp.transfer import to_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor, nn

    from zetadp.nn.parameters import Layout
    from zetadp.privacy.clipping import Images
    from zetadp.privacy.grid import Grid

logger = logging.getLogger(__name__)

USUAL = 3.0
"""Standard deviations above its mean up to which a draw is to fit the passes that are planned for it."""


def patients_a_pass(nodes: Iterable[tuple[int, float]], most: int) -> int:
    """Return of how many patients a pass of fixed shape should be: the fewest equal passes that hold nearly every draw.

    Parameters
    ----------
    nodes
        Population N and expected number R of each node: public constants, so the shape tells nothing of a draw.
    most
        Patients in one pass at most.
    """
    nodes = list(nodes)
    mean = sum(expected for _, expected in nodes)
    deviation = math.sqrt(sum(expected * (1 - expected / population) for population, expected in nodes))
    usual = min(math.ceil(mean + USUAL * deviation), sum(population for population, _ in nodes))
    return math.ceil(usual / math.ceil(usual / most))


class FixedPasses:
    """Passes of so many patients each; buffers, and on a GPU the captured graph, are kept from round to round.

    Parameters
    ----------
    patients
        Patients in one pass. Where a GPU runs out of memory, it is halved.
    prepared
        Turns the function that computes one pass into what is called for each: on a GPU a captured graph.
    """

    def __init__(
        self,
        patients: int,
        prepared: Callable[[Callable[[], None], torch.device], Callable[[], None]] = captured_or_plain,
    ) -> None:
        self.patients = patients
        self._prepared = prepared
        self._pass: _Pass | None = None
        self._run: Callable[[], None] | None = None

    def clipped_sums(
        self,
        model: nn.Module,
        layout: Layout,
        images: Images,
        labels: Tensor,
        groups: Tensor,
        *,
        count: int,
        bound: float | None,
        grid: Grid | None = None,
    ) -> ClippedSums:
        """Return what `zetadp.privacy.clipping.clipped_sums` returns, to rounding; parameters as there."""
        node_of = groups.cpu().numpy()

        def attempt() -> ClippedSums:
            ready, run = self._ready(model, layout, images, count, bound, grid)
            return ready.sums_of(images, labels, node_of, run)

        while True:
            try:
                return attempt()
            except torch.OutOfMemoryError:
                if self.patients == 1:
                    raise
            # The whole draw again in smaller passes: same draw, same noise, same entry in the ledger.
            self.patients //= 2
            self._pass = self._run = None
            logger.warning("out of GPU memory: going on with passes of %d patients", self.patients)
            torch.cuda.empty_cache()

    def _ready(
        self,
        model: nn.Module,
        layout: Layout,
        images: Images,
        count: int,
        bound: float | None,
        grid: Grid | None,
    ) -> tuple[_Pass, Callable[[], None]]:
        """Return the pass kept for these arguments, or a new one."""
        if self._pass is None or self._run is None or not self._pass.serves(model, images, count, bound, grid):
            self._pass = self._run = None  # its memory is free before more is asked for
            fresh = _Pass(model, layout, images, self.patients, count, bound, grid)
            self._run = self._prepared(fresh.compute, images.device)
            self._pass = fresh
        return self._pass, self._run


class _Pass:
    """One pass: buffers that stay where they are, and the computation from the ones to the others.

    The buffer ``places`` holds, one after the other: for each patient whether it is there, for each patient its row of
    the pass's own sums, and for each such row the node it belongs to, all of them different. A pass of few patients
    thus writes few rows, whatever the number of nodes; and since rows differ, the order in which a GPU adds them does
    not matter.
    """

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        images: Images,
        patients: int,
        count: int,
        bound: float | None,
        grid: Grid | None,
    ) -> None:
        self.model, self.layout, self.patients, self.bound, self.grid = model, layout, patients, bound, grid
        self.rows = min(count, patients)
        self.memory = _memory(model)
        device = images.device
        self.images = torch.zeros(patients, *images.shape[1:], dtype=images.dtype, device=device)
        self.labels = torch.zeros(patients, images.shape[1], dtype=torch.int64, device=device)
        self.places = torch.zeros(2 * patients + self.rows, dtype=torch.int64, device=device)
        kind = torch.float32 if grid is None else torch.int64
        self.sums = torch.zeros(count, layout.dimension, dtype=kind, device=device)
        self.not_finite = torch.zeros((), dtype=torch.int64, device=device)

    def serves(self, model: nn.Module, images: Images, count: int, bound: float | None, grid: Grid | None) -> bool:
        """Tell whether this pass computes what is asked for: a graph reads the very memory that it was captured on."""
        return (
            self.model is model
            and self.memory == _memory(model)
            and (self.images.shape[1:], self.images.dtype) == (images.shape[1:], images.dtype)
            and self.images.device == images.device
            and (len(self.sums), self.bound, self.grid) == (count, bound, grid)
        )

    def sums_of(self, images: Images, labels: Tensor, node_of: np.ndarray, run: Callable[[], None]) -> ClippedSums:
        """Fill the buffers for one pass after the other, run each, and return the sums of all."""
        # Preparing a pass runs it.
        self.sums.zero_()
        self.not_finite.zero_()
        starts = range(0, len(images), self.patients)
        places = to_device(self._places(node_of), images.device)
        for start, own in zip(starts, places, strict=True):
            part = slice(start, start + self.patients)
            members = labels[part]
            # What is left of an earlier pass beyond them is padding as good as any.
            self.images[: len(members)].copy_(images[part])
            self.labels[: len(members)].copy_(members)
            self.places.copy_(own)
            run()
        # Copies, since the next round writes over them.
        padding = len(starts) * self.patients - len(images)
        return ClippedSums(sums=self.sums.clone(), not_finite=self.not_finite.clone(), padding=padding)

    def compute(self) -> None:
        """Add the clipped gradients of the patients in the buffers to the sums: the part that is captured."""
        present, row, nodes = torch.split(self.places, [self.patients, self.patients, self.rows])
        gradients = patient_gradients(self.model, self.layout, self.images, self.labels)
        factors, finite = clip_factors(gradients, self.bound)
        there = present > 0
        taken = there & finite
        self.not_finite += (there & ~finite).sum()
        # Zero times infinity is not zero, so the values go too.
        gradients = [torch.where(taken[:, None], g, 0.0) for g in gradients]
        factors = torch.where(taken, factors, 0.0)
        if self.grid is not None:
            values, within = to_grid(torch.cat([g * factors[:, None] for g in gradients], dim=1), self.grid)
            self.not_finite += (taken & ~within).sum()
            self.sums.index_add_(0, nodes[row], values)
            return
        own = torch.arange(self.rows, device=row.device)
        membership = torch.where(own[:, None] == row, factors, 0.0)
        self.sums.index_add_(0, nodes, torch.cat([membership @ g for g in gradients], dim=1))

    def _places(self, node_of: np.ndarray) -> Tensor:
        """Return what ``places`` holds in each pass, shape (pass, number)."""
        found = np.zeros((math.ceil(len(node_of) / self.patients), len(self.places)), dtype=np.int64)
        everybody = np.arange(len(self.sums))
        for number, places in enumerate(found):
            own = node_of[number * self.patients : (number + 1) * self.patients]
            touched, rows = np.unique(own, return_inverse=True)
            places[: len(own)] = 1
            places[self.patients : self.patients + len(own)] = rows
            places[2 * self.patients :] = np.append(touched, np.setdiff1d(everybody, touched))[: self.rows]
        return torch.from_numpy(found)


def _memory(model: nn.Module) -> tuple[int, ...]:
    """Return where a network's parameters lie. Training moves their values in place."""
    return tuple(tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers()))
