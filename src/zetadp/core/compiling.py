"""Whether a run lets PyTorch compile its private step: decided before the first round, on random items alone."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call

from zetadp.core.records import Node
from zetadp.core.round import Phase, draws_must_not_show
from zetadp.nn.normalisation import ComplexGroupNorm
from zetadp.nn.stacked import compiled_operations
from zetadp.privacy.contributions import knows_units

logger = logging.getLogger(__name__)

LONG = 1200.0
"""Seconds of gradients in a run from which ``auto`` tries: compiling takes some 15 s for each size of image, of which
a network has two to four, and saves 4 % of a large pass (docs/performance.md)."""
AGREEING = 1e-4
"""Largest relative difference between compiled gradients and others, which rounding explains."""


def is_compiled(wish: str, phase: Phase, nodes: Sequence[Node], items: Tensor, rounds: int) -> bool:
    """Return whether the private step of a run is to be compiled, and log why if it was tried.

    Parameters
    ----------
    wish
        ``auto``, ``always`` or ``never``, as in `zetadp.core.settings.Performance`.
    phase
        The contribution, with its largest number of items in a pass.
    nodes
        The nodes, of which only public constants are used.
    items
        Any items, shape (item, ...). Only their type and the shape of one item are used.
    rounds
        Number of rounds.
    """
    if wish == "never" or not _can_be_compiled(phase):
        return False
    expected = math.fsum(node.mechanism.event.expected for node in nodes)
    most = 1 if draws_must_not_show(nodes) else max(1, (phase.chunk or 1) // phase.items)
    passes = max(1, math.ceil(expected / most))
    count = max(1, round(expected / passes)) * phase.items
    inputs = torch.randn(count, *items.shape[1:], dtype=items.dtype, generator=torch.Generator().manual_seed(0))
    plain, expected_gradient = _timed(phase, inputs)
    if wish == "auto" and plain * passes * rounds < LONG:
        return False
    began = time.monotonic()
    try:
        with compiled_operations():
            quick, found = _timed(phase, inputs)
    except (RuntimeError, OSError, ImportError) as error:
        reason = str(error).strip().partition("\n")[0][:200]
        logger.warning("compile: the step is not compiled, because PyTorch cannot (%s). Results are the same.", reason)
        return False
    took = time.monotonic() - began
    agree = bool((found - expected_gradient).norm() <= AGREEING * expected_gradient.norm())
    chosen = agree and (wish == "always" or quick < plain)
    logger.info(
        "compile: a pass takes %.2f of its time without; this took %.0f s to find out, and it is %s",
        quick / plain,
        took,
        "used" if chosen else "not used",
    )
    return chosen


def _can_be_compiled(phase: Phase) -> bool:
    """Return whether the private step of a network has anything to compile, outside of `torch.vmap`."""
    norms = any(isinstance(module, ComplexGroupNorm) for module in phase.model.modules())
    on_cpu = next(phase.model.parameters()).device.type == "cpu"  # it was never tried on a GPU
    return norms and on_cpu and not phase.drops and knows_units(phase.model, rules=phase.has_rules)


def _timed(phase: Phase, inputs: Tensor, turns: int = 3) -> tuple[float, Tensor]:
    """Return the least seconds of a pass, forward and backward, and its gradient."""
    seconds = []
    for _ in range(turns):
        began = time.perf_counter()
        parameters = {name: phase.model.get_parameter(name).detach() for name in phase.layout.names}
        if knows_units(phase.model):
            units = len(inputs) // phase.items
            parameters = {name: p.unsqueeze(0).expand(units, *p.shape) for name, p in parameters.items()}
        leaves = {name: p.requires_grad_() for name, p in parameters.items()}
        found = torch.autograd.grad(functional_call(phase.model, leaves, (inputs,)).abs().sum(), [*leaves.values()])
        seconds.append(time.perf_counter() - began)
    return min(seconds), torch.cat([(torch.view_as_real(g) if g.is_complex() else g).flatten() for g in found])
