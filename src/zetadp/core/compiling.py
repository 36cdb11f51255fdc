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
from zetadp.core.round import CHEAP, Phase, draws_must_not_show
from zetadp.nn.normalisation import ComplexGroupNorm
from zetadp.nn.stacked import compiled_operations
from zetadp.privacy.contributions import knows_units

logger = logging.getLogger(__name__)

LONG = 600.0
"""Seconds of gradients in a run from which ``auto`` tries: compiling a network takes 15 to 25 s, and saves 4 % of a
large pass or more of a small one (docs/performance.md)."""
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
    shape = _pass(phase, nodes)
    if shape is None:
        if wish == "always":
            logger.warning("compile: the step is not compiled, because the size of passes varies with the draw.")
        return False
    count, passes = shape
    random = torch.Generator().manual_seed(0)
    inputs = torch.randn(count * phase.items, *items.shape[1:], dtype=items.dtype, generator=random)
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


def _pass(phase: Phase, nodes: Sequence[Node]) -> tuple[int, float] | None:
    """Return the units of a pass and the passes of a round; None if the units of passes vary with the draw."""
    events = [node.mechanism.event for node in nodes]
    units, chunk = sum(event.population for event in events), phase.chunk or 1
    secret = draws_must_not_show(nodes)
    if secret and chunk < CHEAP:
        return 1, math.fsum(event.expected for event in events)
    if not secret and any(event.expected != event.population for event in events):
        return None
    passes = math.ceil(units / max(1, chunk // phase.items))
    return math.ceil(units / passes), passes


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
        leaves = phase.leaves(len(inputs) // phase.items)
        found = torch.autograd.grad(functional_call(phase.model, leaves, (inputs,)).abs().sum(), [*leaves.values()])
        seconds.append(time.perf_counter() - began)
    return min(seconds), phase.layout.flatten(dict(zip(phase.layout.names, found, strict=True)))
