"""The check before a run that no unit changes the contribution of another, by the network or the loss.

Clipping bounds a unit's influence only if its items change no other unit's contribution. The check computes the
contributions of a batch, replaces single units by others, and requires the remaining contributions to be the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

import zetadp.nn.weight_gradients  # noqa: F401  (declares the rules)
from zetadp.base.tensors import Layout
from zetadp.base.usercode import user_code
from zetadp.base.validation import UserError
from zetadp.mechanism.contributions import Gradient, Losses, compute_item_losses, knows_units
from zetadp.mechanism.dropout import drawn_by_unit, drops
from zetadp.nn.settings import OWN
from zetadp.training.networks import embedding_hint
from zetadp.training.records import LabelledItems, Positions
from zetadp.training.round import Phase, items_in_a_pass
from zetadp.training.state import reachable_state
from zetadp.training.stateless import ITEMS, check_loss, check_network, copied, refuse_difference, same
from zetadp.training.task import Classification, is_packaged

if TYPE_CHECKING:
    from zetadp.training.assembly import Assembly

FEW = 3
"""Units in the first check, which finds most of what mixes units."""
LARGE = 1e3
"""Largest number of a replaced unit, in units of the largest number of the batch."""
AGREEING = 1e-3
"""Largest relative difference between gradients by rules and ordinary ones, which rounding explains."""
APART = "model: Expected units that do not change each other's gradients"
REMEDY = "Use layers that treat each item by itself, such as group normalisation (zetadp.nn)."

Compute = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""A computation on a batch, from tensors to tensors. The first axis of all of them is lanes, such as units."""


def checked_phase(
    parts: Assembly, records: LabelledItems, units: Sequence[Positions], chunk: int | None = None
) -> Phase:
    """Return the phase of a run after a check of its labels and, if you supplied them, of its network and losses.

    Packaged tasks, and networks that a plan names, are not checked: tests show that they keep units apart.

    Parameters
    ----------
    parts
        What a plan makes.
    records, units
        All items, and the positions of each unit's items.
    chunk
        As in `Phase`.

    Raises
    ------
    UserError
        If a label is not one of the task's classes, or as `check_run`.
    """
    if isinstance(parts.task, Classification):
        parts.task.check(records.targets)
    phase = replace(parts.phase, chunk=chunk)
    if parts.plan.network.family != OWN and is_packaged(parts.task):
        return phase
    return check_run(phase, records, units, alone=parts.plan.protects_people)


def check_run(phase: Phase, records: LabelledItems, units: Sequence[Positions], *, alone: bool) -> Phase:
    """Check that nothing remembers items, and that units are independent in a batch of as many as a pass will have.

    Network and loss are judged on public items first (`zetadp.training.stateless`). Only then are copies evaluated on
    the items of units (`check_independence`).

    Parameters
    ----------
    phase
        The contribution of the run. Statistics in place of gradients take one unit at a time.
    records
        All items.
    units
        Positions of each unit's items.
    alone
        Whether each unit takes a pass of its own, in which nothing can mix it with others. Noise that protects needs
        it: a check sees only some of the items, and a network could mix units on others. A batch of a few units is
        checked all the same, and that the network stores nothing.

    Returns
    -------
    The phase, which follows the rules of PyTorch's layers if they give the network's gradients (`follows_rules`).

    Raises
    ------
    UserError
        If the network or the loss remembers items, if units are not independent, or if the network has no gradients
        for single units.
    """
    contribution = phase.contribution
    if not isinstance(contribution, Gradient):
        return phase

    def check(count: int, *, rules: bool = False) -> None:
        items = torch.from_numpy(np.stack([np.resize(np.asarray(unit), phase.items) for unit in units[:count]]))
        check_independence(phase.model, contribution.losses, records.inputs[items], records.targets[items], rules=rules)

    failed = (
        "model: Expected a network that has gradients for single patients and takes items of any numbers, found an "
    )
    with user_code(f"{failed}error: ", embedding_hint(phase.model)):
        for items in sorted({ITEMS, phase.items, phase.items if alone else FEW * phase.items}):
            outputs = check_network(moved_copy(phase.model), records.inputs, items)
            check_loss(contribution.losses, outputs, records.targets)
        check(FEW)
        if alone:
            return replace(phase, chunk=phase.items)
        most = max(FEW, (phase.chunk or items_in_a_pass(phase, records.inputs)) // phase.items)
        if follows_rules(phase, records.inputs):
            with suppress(UserError):  # unit by unit, without rules, it may be independent
                check(most, rules=True)
                phase = phase.with_rules()
        if not phase.has_rules:
            check(most)
    return phase


def follows_rules(phase: Phase, inputs: Tensor) -> bool:
    """Return whether one pass of all units gives the gradients of a network, by rules of its layers (`unit_rule`).

    They do unless the network uses weights of a layer elsewhere too, or changes the order of items. Gradients by one
    pass are compared with ordinary ones, unit by unit, on random inputs and for a random loss. So the answer depends on
    no item.

    Parameters
    ----------
    phase
        The contribution: the gradient of a network.
    inputs
        Any inputs, shape (item, ...). Only their type and the shape of one item are used.
    """
    if knows_units(phase.model) and not phase.drops:
        return False
    twin, random = moved_copy(phase.model), torch.Generator().manual_seed(0)
    images = torch.randn(FEW, phase.items, *inputs.shape[1:], dtype=inputs.dtype, generator=random)
    labels, keys = torch.zeros(FEW, phase.items), torch.arange(FEW) if phase.drops else None

    def losses(outputs: Tensor, _: Tensor) -> Tensor:
        parts = torch.view_as_real(outputs) if outputs.is_complex() else outputs
        parts = parts.reshape(len(outputs), -1)
        return parts @ torch.linspace(-1, 1, parts.shape[1] + 1)[1:]

    def rows(*, rules: bool) -> Tensor:
        gradients = Gradient(twin, Layout.of(twin), losses, rules).of_units(images, labels, factors=False, keys=keys)
        return torch.cat([row for row in gradients if isinstance(row, Tensor)], dim=1)

    try:
        expected = rows(rules=False)
        off = (rows(rules=True) - expected).norm(dim=1)
    except Exception:  # noqa: BLE001  (a layer of a user may raise anything)
        return False
    return bool((off < AGREEING * expected.norm(dim=1)).all())  # gradients of zero would agree with anything


def check_independence(
    model: nn.Module, losses: Losses, inputs: Tensor, targets: Tensor, *, rules: bool = False
) -> None:
    """Raise `UserError` if a unit changes the contribution of another, by the network, its gradient or the loss.

    Network and loss stay as they are: copies are evaluated, in the same mode (training or evaluation), on the
    processor.

    Parameters
    ----------
    model
        The network.
    losses
        Loss of each item.
    inputs, targets
        A batch of the size that training takes, shape (unit, item, ...). A single unit has nobody to mix with.
    rules
        As in `Gradient`.

    Raises
    ------
    UserError
        If units are not independent, if the network or the loss makes random draws, or if the network stores something
        about the items. The message names the layer, the loss or the stored tensor.
    """
    twin, losses = moved_copy(model), copied(losses, "loss")
    units, items = targets.shape[:2]
    batch = [inputs.cpu(), targets.cpu()]
    stored = {name: value.clone() for name, value in state_of(twin).items()}
    contribution = Gradient(twin, Layout.of(twin), losses, rules)
    keys = torch.arange(units) if drops(twin) else None

    @torch.no_grad()
    def evaluated(tensors: Sequence[Tensor]) -> list[Tensor]:
        with drawn_by_unit(None if keys is None else keys[:1]):
            outputs = twin(tensors[0].flatten(0, 1))
        return [outputs, compute_item_losses(losses, outputs, tensors[1].flatten(0, 1))]

    def forward(tensors: Sequence[Tensor]) -> list[Tensor]:
        # An output that has not one row for each item cannot be divided among the units: `evaluated` refuses its loss.
        return [result.reshape(units, items, *result.shape[1:]) for result in evaluated(tensors)]

    def gradients(tensors: Sequence[Tensor]) -> list[Tensor]:
        return [row for row in contribution.of_units(*tensors, factors=False, keys=keys) if isinstance(row, Tensor)]

    # The forward pass of the whole batch comes first. It names what the gradients of a network without a patient axis,
    # which see one unit at a time, would hide until the network is evaluated.
    mixture = first_mixture(forward, batch)
    check_stores_nothing(twin, stored)
    if mixture is not None:
        raise UserError(_where(twin, mixture, items, evaluated))
    gradients(batch)
    state = reachable_state((twin, losses))
    mixed = first_mixture(gradients, batch)
    check_stores_nothing(twin, stored)  # again, for what is stored only where gradients are computed
    gradients(batch)  # a layer may keep its last output, which then is the same
    refuse_difference(state, reachable_state((twin, losses)), "model")
    if mixed is not None:
        raise UserError(f"{APART}, found a backward pass that mixes them. {REMEDY}")


def state_of(network: nn.Module) -> dict[str, Tensor]:
    """Return all tensors of a network, with the buffers that it does not save."""
    return {**network.state_dict(), **dict(network.named_buffers())}


def check_stores_nothing(network: nn.Module, before: Mapping[str, Tensor]) -> None:
    """Raise `UserError` if the tensors of a network's state are not those from before it saw any item."""
    for name, value in state_of(network).items():
        if name not in before or not same([before[name]], [value]):
            raise UserError(
                f"model: Expected a network that stores nothing about the items, found one that changes {name!r}, "
                f"which would be released without noise. {REMEDY} Statistics of public data are kept if the layer is "
                "in evaluation mode (layer.eval())."
            )


def first_mixture(
    compute: Compute, batch: Sequence[Tensor]
) -> tuple[Sequence[Tensor], Sequence[Tensor], Tensor] | None:
    """Return a batch, and the same with some lanes replaced, on which a computation mixes lanes; None if it does not.

    Single lanes are replaced: the first, the middle and the last. Then all lanes but one of these are. Every result of
    the other lanes must be the same bits, also where half of all numbers are zeros.

    Parameters
    ----------
    compute
        The computation.
    batch
        What it takes: tensors of equal length, whose first axis is the lanes.

    Returns
    -------
    The batch, the changed batch, and which lanes were replaced.

    Raises
    ------
    UserError
        If the same batch gives different results.
    """
    expected = compute(batch)
    if not same(expected, compute(batch)):
        raise UserError(
            "model: Expected the same results for the same items, found others in a second evaluation. Leave out "
            "random draws of the network and of the loss, and whatever they remember of earlier items. Dropout has "
            "draws for each unit by itself as a layer torch.nn.Dropout, Dropout1d, Dropout2d or Dropout3d; that of "
            "attention and of recurrent layers has not: set it to 0."
        )
    random = torch.Generator().manual_seed(0)
    # Zeros may stand for missing values, which a network could fill in from the rest of the batch.
    holes = [torch.where(torch.rand(tensor.shape, generator=random) < 0.5, 0, tensor) for tensor in batch]
    for base in (batch, holes):
        of_base = expected if base is batch else compute(base)
        for replaced, large in _choices(len(batch[0])):
            changed, results = _recomputed(compute, base, replaced, random, large=large)
            if not same([result[~replaced] for result in of_base], [result[~replaced] for result in results]):
                return base, changed, replaced
    return None


def _recomputed(
    compute: Compute, batch: Sequence[Tensor], replaced: Tensor, random: torch.Generator, *, large: bool
) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Return a batch with other numbers in some lanes, and the computation on it.

    A loss need not take every label: where it fails, labels are replaced by the least or the greatest of the batch.
    """
    changed = [_replaced(tensor, replaced, random, large=large) for tensor in batch]
    try:
        return changed, compute(changed)
    except torch.OutOfMemoryError:
        raise
    except Exception:
        if not any(labels.is_floating_point() for labels in batch[1:]):
            raise
        known = [_replaced(labels, replaced, random, large=large, within=True) for labels in batch[1:]]
        return [changed[0], *known], compute([changed[0], *known])


def moved_copy(model: nn.Module) -> nn.Module:
    """Return a copy of a network on the processor with all weights moved: weights of zero would hide a dependence."""
    twin, random = copied(model).cpu(), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in twin.parameters():
            size = parameter.abs().square().mean().sqrt()
            noise = torch.randn(parameter.shape, dtype=parameter.dtype, generator=random)
            parameter.add_(0.1 * noise * (size if size > 0 else 1))
    return twin


def _choices(count: int) -> Iterator[tuple[Tensor, bool]]:
    """Return which lanes to replace, and whether by large numbers or by zeros."""
    if count < 2:
        return
    for lane in dict.fromkeys((0, count // 2, count - 1)):
        mask = torch.arange(count) == lane
        yield mask, True
        yield mask, False
        yield ~mask, True


def _replaced(batch: Tensor, replaced: Tensor, random: torch.Generator, *, large: bool, within: bool = False) -> Tensor:
    """Return a tensor with other numbers in some places of its first axis.

    Large numbers are far beyond all others of the batch, of either sign; the others are zeros. Classes and other whole
    numbers are replaced by the batch's least or greatest, and so are real numbers that must stay ``within`` its range.
    """
    changed = batch.clone()
    values = changed[replaced]
    if not batch.is_complex() and (within or not batch.is_floating_point()):
        changed[replaced] = batch.amax() if large else batch.amin()
    elif large:
        most = batch.abs().nan_to_num(0, 0, 0).max().clamp_min(1)
        noise = torch.randn(values.shape, dtype=torch.float64, generator=random)
        changed[replaced] = (LARGE * most * noise).to(values.dtype)
    else:
        changed[replaced] = torch.zeros_like(values)
    return changed


@torch.no_grad()
def _where(
    twin: nn.Module, mixture: tuple[Sequence[Tensor], Sequence[Tensor], Tensor], items: int, compute: Compute
) -> str:
    """Return a message that names the layer that mixes units, or the loss."""
    base, changed, replaced = mixture
    unchanged = ~replaced.repeat_interleave(items)
    seen: dict[str, list[Tensor]] = {}

    def noting(name: str) -> Callable[[nn.Module, object, object], None]:
        def note(_: nn.Module, __: object, output: object) -> None:
            if isinstance(output, Tensor) and output.ndim and len(output) == len(unchanged):
                seen.setdefault(name, []).append(output[unchanged])

        return note

    # In the order of calls, a layer comes before the module that contains it, so the message names the layer.
    for name, module in twin.named_modules():
        module.register_forward_hook(noting(name))
    for batch in (base, changed):
        compute(batch)
    for name, outputs in seen.items():
        half = len(outputs) // 2
        if not same(outputs[:half], outputs[half:]):
            whose = f"layer {name!r} ({type(twin.get_submodule(name)).__name__})" if name else "network"
            return f"{APART}, found a {whose} that mixes units. {REMEDY}"
    return (
        "loss: Expected losses of single items, found a loss that mixes units. Let it depend on its own item alone. "
        "Outputs of shape (item, 1) and labels of shape (item,) mix all items: use labels[:, None]."
    )
