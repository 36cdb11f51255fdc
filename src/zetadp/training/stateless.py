"""Whether a network or a loss remembers the items that it was evaluated on.

What it remembers would be released without noise: in the starting weights, or in every later gradient. A network can
set itself from its first batch and look constant afterwards, so it is judged before it has seen any private item: by
copies, on public random items.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from zetadp.base.usercode import failure_of, user_code
from zetadp.base.validation import UserError
from zetadp.mechanism.contributions import Losses, compute_item_losses
from zetadp.mechanism.dropout import drawn_by_unit, drops
from zetadp.training.state import reachable_state

Subject = TypeVar("Subject")
Batch: TypeAlias = Sequence[Tensor]
Evaluate: TypeAlias = Callable[[Any, Batch], Sequence[Tensor]]
"""What a copy of the subject computes for a batch."""

ITEMS = 2
"""Items in a public batch."""
SCALES = (1, 10, 1000)
"""Sizes of the other items, in units of those of the first: some networks remember only what is unusual."""
REMEDIES = {
    "model": "Use layers that treat each item by itself, such as group normalisation (zetadp.nn). Set what follows "
    "from data by public data, before the network is handed over; layer.eval() keeps statistics as they are.",
    "loss": "Let it depend on its own outputs and labels alone. Divide by a constant that you declare.",
}
"""What to do, by the argument."""


def check_stateless(
    subject: Subject, evaluate: Evaluate, series: Iterable[Sequence[Batch]], *, name: str
) -> tuple[Batch, Sequence[Tensor]]:
    """Raise `UserError` if a network or a loss remembers anything of the items that it was evaluated on.

    A fresh copy that was first evaluated on other items must give the same bits as a fresh copy that was not, and must
    hold the same state. State is every tensor, number, text and container that is reachable from the copy: by
    attributes, by the variables of enclosing functions, by attributes of its class, and by the global variables that
    its code names (`reachable_state`). What copies share must be unchanged. The subject itself is never evaluated.

    Call it before anything has evaluated the subject on private items, and with public items only.

    Parameters
    ----------
    subject
        A network, a loss, or a tuple of both. It is copied by `copied`.
    evaluate
        Computes tensors from a copy of the subject and a batch, which it may change. The same call must give the same
        bits: it fixes the draws of dropout.
    series
        Public batches, from `public_batches`. Of each series, the first batch is compared and the others are the other
        items. The first series is used of which the subject can take the first batch.
    name
        The argument that the message names, ``model`` or ``loss``.

    Returns
    -------
    The batch that was compared, and what a fresh copy computed for it.

    Raises
    ------
    UserError
        If the subject remembers, or cannot be copied. The message names the attribute or variable.
    Exception
        The subject's own error for the first series, if it can take none.
    """
    before, failure = reachable_state(subject), None
    for first, *others in series:
        fresh, later = copied(subject, name), copied(subject, name)
        try:
            results = evaluate(fresh, _copies(first))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001  (a user's code may raise anything)
            failure = failure or error
            continue
        for other in others:
            with suppress(Exception):  # such as large numbers, which it need not take
                evaluate(later, _copies(other))
        again = evaluate(later, _copies(first))
        refuse_difference(reachable_state(fresh), reachable_state(later), name)
        refuse_difference(before, reachable_state(subject), name)
        if not same(results, again):
            raise UserError(
                f"{name}: Expected the same results for the same items, found others after it had seen other items. "
                f"Leave out random draws and whatever it remembers of earlier items. {REMEDIES[name]}"
            )
        return first, results
    refuse_difference(before, reachable_state(subject), name)
    raise failure or ValueError("Expected at least one series of batches, found none.")


def check_network(
    model: nn.Module,
    inputs: Any,  # noqa: ANN401  (a tensor, or looked up)
    items: int = ITEMS,
) -> list[Tensor]:
    """Check a network by `check_stateless`, in its forward and its backward pass, and that it takes a single item.

    Parameters
    ----------
    model
        The network. Copies are evaluated, on the processor, in the same mode.
    inputs
        Anything with the type and shape of inputs. No item is looked at.
    items
        Number of public items in a batch: a network may do something else with more of them, so it is checked with as
        many as it will get.

    Returns
    -------
    Outputs of a copy for batches of public items.

    Raises
    ------
    UserError
        If it remembers, or has not one output for each item, or refuses a single item.
    Exception
        The network's own error, if it does not take such inputs.
    """

    def evaluate(network: nn.Module, batch: Batch) -> list[Tensor]:
        trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        with torch.enable_grad():
            outputs = _outputs(network, batch[0])
            if not outputs.requires_grad:
                return [outputs]
            parts = torch.view_as_real(outputs.resolve_conj()) if outputs.is_complex() else outputs
            parts = parts.reshape(len(outputs), -1)
            one = (parts @ torch.linspace(-1, 1, parts.shape[1] + 1, dtype=parts.dtype)[1:]).sum()
            slopes = torch.autograd.grad(one, trained, materialize_grads=True)
        return [outputs.detach(), *(slope.to_dense() for slope in slopes)]

    model = copied(model).cpu()
    series = public_batches([inputs], (items,), [embedded(model)])
    (first,), _ = check_stateless(model, evaluate, series, name="model")
    try:
        for network in (copied(model), copied(model).eval()):  # training may take one patient's only item
            _outputs(network, first[:1])
    except Exception as error:
        raise UserError(
            "model: Expected a network that takes any number of items, found an error with a single one: "
            f"{failure_of(error)} Keep the axis of items, for instance by x.squeeze(1) in place of x.squeeze(). "
            f"{REMEDIES['model']}"
        ) from error
    outputs, twin = [], copied(model)
    for (batch,) in next(one for one in series if torch.equal(one[0][0], first)):
        with suppress(Exception), torch.no_grad():
            outputs.append(_outputs(twin, batch))
    return outputs


def check_loss(losses: Losses, outputs: Sequence[Tensor], targets: Tensor) -> tuple[Tensor, Tensor]:
    """Check a loss by `check_stateless`, for outputs of public items and random labels.

    Parameters
    ----------
    losses
        Loss of each item. Copies are evaluated.
    outputs
        Outputs that `check_network` returned. Whole labels are below their second axis, which may be classes.
    targets
        Anything with the type and shape of labels. No label is looked at.

    Returns
    -------
    The outputs and the random labels of the batch that was compared.

    Raises
    ------
    UserError
        If it remembers, or does not return one real number for each item.
    Exception
        The loss's own error, if it takes no such outputs and labels.
    """

    def evaluate(losses: Losses, batch: Batch) -> list[Tensor]:
        with torch.enable_grad():
            predictions = batch[0].requires_grad_()
            values = compute_item_losses(losses, predictions, batch[1])
            slopes = (
                torch.autograd.grad(values.sum(), predictions, materialize_grads=True) if values.requires_grad else ()
            )
        return [values.detach(), *slopes]

    classes = outputs[0].shape[1] if outputs[0].ndim > 1 else None
    series = [
        [[output, labels] for output, (labels,) in zip(outputs, one, strict=False)]
        for one in public_batches([targets], (len(outputs[0]),), [classes])
    ]
    (first, labels), _ = check_stateless(losses, evaluate, series, name="loss")
    return first, labels


def refuse_difference(before: Mapping[str, str], after: Mapping[str, str], name: str) -> None:
    """Raise `UserError` for the first path at which two states (`reachable_state`) differ; ``name`` as above."""
    for path in (*after, *before):
        if before.get(path) != after.get(path):
            what = {"model": "network", "loss": "loss"}[name]
            raise UserError(
                f"{name}: Expected a {what} that stores nothing from one evaluation to the next, found one that "
                f"changes {path.lstrip('.')!r}. What it stores of items would be released without noise. "
                f"{REMEDIES[name]}"
            )


def copied(subject: Subject, name: str = "model") -> Subject:
    """Return a deep copy of a network or loss; refuse one that does not let itself be copied.

    Raises
    ------
    UserError
        If `copy.deepcopy` fails, or returns a network with the weights of the original.
    """
    hint = (
        " Leave hooks of torch.nn.utils.spectral_norm and weight_norm out: those in torch.nn.utils.parametrizations "
        "can be copied."
    )
    with user_code(f"{name}: Expected a network and a loss that copy.deepcopy copies, found an error: ", hint):
        twin = copy.deepcopy(subject)
    for one, other in zip(_parts(subject), _parts(twin), strict=True):
        if not (isinstance(one, nn.Module) and isinstance(other, nn.Module)):
            continue  # a function has one copy only, itself: `check_stateless` sees what it shares
        if one is other or {*map(id, one.parameters())} & {*map(id, other.parameters())}:
            raise UserError(
                f"{name}: Expected a network that copy.deepcopy copies, found {type(one).__name__}, whose copy has the "
                "weights of the original. Leave its method __deepcopy__ out."
            )
    return twin


def public_batches(
    like: Sequence[Any], size: Sequence[int], most: Sequence[int | None] | None = None
) -> list[list[list[Tensor]]]:
    """Return series of batches of random numbers that depend on no item, for `check_stateless`.

    The numbers are the same in every process. Reals are normal in the first series, then uniform between 0 and 1, and
    zeros in the last: a network may take positive numbers only. Whole numbers, which may be places in an embedding or
    classes, are drawn below a declared number, or are 0 and 1, and zeros in the last.

    Parameters
    ----------
    like
        For each tensor of a batch, anything with its type (``dtype``) and shape (``shape``), whose first axis is items.
    size
        Axes in front, in place of that axis, such as (item,) or (unit, item).
    most
        For each tensor, a public number below which its whole numbers are; reals are then whole numbers first, as an
        embedding takes them. None if there is none.

    Returns
    -------
    Series of batches of equal shapes: the first batch, and others of the sizes in `SCALES`.
    """
    ways = [_ways(one.dtype, limit) for one, limit in zip(like, most or [None] * len(like), strict=True)]
    shapes = [(*size, *one.shape[1:]) for one in like]
    series = []
    for chosen in product(*ways):
        random = torch.Generator().manual_seed(0)
        scales = (1, *SCALES)
        series.append(
            [[draw(shape, random, scale) for draw, shape in zip(chosen, shapes, strict=True)] for scale in scales]
        )
    return series


def embedded(model: nn.Module) -> int | None:
    """Return the number below which whole numbers are places in every embedding of a network; None without any."""
    kinds = (nn.Embedding, nn.EmbeddingBag)
    return min((layer.num_embeddings for layer in model.modules() if isinstance(layer, kinds)), default=None)


def same(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Return whether tensors hold the same numbers to the last bit; what is not a number equals itself."""

    def equal(one: Tensor, other: Tensor) -> bool:
        # The first test is the fast one. It fails for NaN.
        return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())

    return all(equal(one, other) for one, other in zip(tensors, others, strict=True))


def _parts(subject: object) -> list[object]:
    return [*subject] if isinstance(subject, tuple) else [subject]


def _copies(batch: Batch) -> list[Tensor]:
    return [one.clone() for one in batch]


def _ways(kind: torch.dtype, most: int | None) -> list[Callable[[Sequence[int], torch.Generator, int], Tensor]]:
    """Return functions of shape, generator and scale that draw numbers of a type, in the order of `public_batches`."""

    def whole(below: int, shape: Sequence[int], random: torch.Generator, scale: int) -> Tensor:
        return torch.randint(below, tuple(shape), generator=random).to(kind)

    def zeros(shape: Sequence[int], random: torch.Generator, scale: int) -> Tensor:
        return torch.zeros(tuple(shape), dtype=kind)

    def real(
        draw: Callable[..., Tensor], scaled: bool, shape: Sequence[int], random: torch.Generator, scale: int
    ) -> Tensor:
        return (scale if scaled else 1) * draw(tuple(shape), dtype=kind, generator=random)

    limits = [partial(whole, below) for below in dict.fromkeys((most or 2, 2))]
    if not (kind.is_floating_point or kind.is_complex):
        return [*limits, zeros]
    reals = [partial(real, torch.randn, True), partial(real, torch.rand, False)]
    return [*([] if most is None else limits[:1]), *reals, zeros]


def _outputs(network: nn.Module, inputs: Tensor) -> Tensor:
    """Return a network's outputs; refuse what has not one for each item."""
    with drawn_by_unit(torch.zeros(1, dtype=torch.int64) if drops(network) else None):
        outputs = network(inputs)
    if not isinstance(outputs, Tensor) or outputs.shape[:1] != inputs.shape[:1]:
        kind = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise UserError(f"model: Expected one output for each of {len(inputs)} items, found {kind}.")
    return outputs
