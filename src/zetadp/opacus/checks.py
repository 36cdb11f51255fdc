"""Checks of a user's network and loss, before and in the first batches.

Network and loss must remember nothing, samples must be independent, and their gradients must sum to the whole gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from zetadp.base.validation import UserError, first_sentence
from zetadp.core.independence import REMEDY, check_stores_nothing, first_mixture, moved_copy, state_of
from zetadp.core.stateless import FAILURES, ITEMS, check_stateless, copied, embedded, public_batches
from zetadp.opacus.gradients import ComplexGradSampleModule
from zetadp.opacus.loader import PatientLoader

Criterion: TypeAlias = Callable[[Any, Any], Tensor]
Evaluated: TypeAlias = Callable[[nn.Module, Sequence[Tensor]], Any]

TOLERANCE = 1e-3
"""Largest relative difference between a gradient and the sum of the gradients of samples, which are float32."""


class FirstBatches:
    """Checks that network and loss remember nothing, and that samples are independent and count alike.

    Before the network sees a batch, copies of network and loss are evaluated on public random samples. They must
    remember nothing (`zetadp.core.stateless`), and the loss must be a mean over samples. Then the first batch is
    checked, and each that is at least twice as large as all before, on a copy of the network. The loss is checked again
    with every batch whose targets, such as classes, no checked batch had.

    The copy's layers are in the modes of the network's, in training or in evaluation. When these change, the next batch
    counts as the first. A network whose layers are replaced, or in which more is trained, is refused.

    Parameters
    ----------
    module
        The network, before Opacus adds its hooks.
    criterion
        The loss of outputs and targets, to be checked too; None leaves it unchecked.
    loader
        The loader, with the batch that it gave last.
    """

    def __init__(self, module: nn.Module, *, criterion: Criterion | None, loader: PatientLoader) -> None:
        self.module, self.layers, self.copy = module, list(module.modules()), copied(module)
        self.criterion, self.loader = criterion, loader
        self.largest = 0
        self.values: set[int] = set()

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Check a batch.

        Raises
        ------
        UserError
            If the network or the loss remembers samples or mixes them, if the loss is not a mean, or if a parameter's
            gradients of samples are missing or wrong. If it is no longer the network that was made private.
        """
        owners, (leaves, form) = self.loader.owners, tree_flatten((args, kwargs))
        if owners is None:
            return  # not a batch of the loader: the optimizer refuses its step
        self._follow()
        places = [
            place for place, leaf in enumerate(leaves) if torch.is_tensor(leaf) and leaf.shape[:1] == owners.shape
        ]
        if not places:
            return  # the optimizer refuses its step
        self.loader.checked = True

        def evaluated(network: nn.Module, batch: Sequence[Tensor]) -> Any:  # noqa: ANN401  (as the user's has them)
            given = list(leaves)
            for place, tensor in zip(places, batch, strict=True):
                given[place] = tensor
            arguments, keywords = tree_unflatten(given, form)
            # Layers such as dropout draw the same again.
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                return network(*arguments, **keywords)

        batch = [leaves[place].detach().cpu() for place in places]
        if not self.largest:
            self._check_on_public_samples(evaluated, batch)
        larger, values = len(owners) >= 2 * self.largest, self._new_values()
        if larger:
            self.largest = len(owners)
            self._check_mixture(evaluated, batch)
        if self.criterion is not None and (larger or values):
            with torch.no_grad():
                output = evaluated(moved_copy(self.copy), batch)
            self._check_loss(copied(self.criterion, "loss"), output)
            self.values |= values

    def _follow(self) -> None:
        """Put the copy's layers into the modes of the network's; refuse a network that became another one."""
        layers = list(self.module.modules())
        trained = zip(self.module.parameters(), self.copy.parameters(), strict=False)
        if layers != self.layers or any(now.requires_grad > before.requires_grad for now, before in trained):
            raise UserError(
                "Expected the layers and trained parameters that make_private was given, found others. Change the "
                "network before make_private, or make_private(module=module.to_standard_module(), ...) again."
            )
        for own, layer in zip(self.copy.modules(), layers, strict=True):
            if own.training != layer.training:
                own.training, self.largest = layer.training, 0

    def _check_on_public_samples(self, evaluated: Evaluated, batch: Sequence[Tensor]) -> None:
        """Raise `UserError` if network or loss remembers samples, or if the loss is not a mean.

        Parameters
        ----------
        evaluated
            Computes the output of a network for a batch.
        batch
            The arguments that have samples. Only their types and shapes are used.
        """

        def outputs_and_gradients(network: nn.Module, given: Sequence[Tensor]) -> list[Tensor]:
            trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
            with torch.enable_grad():
                output = evaluated(network, given)
                gradients = torch.autograd.grad(_loss(output, len(given[0])), trained, materialize_grads=True)
            return [*(leaf.detach() for leaf in tree_leaves(output) if torch.is_tensor(leaf)), *gradients]

        network = moved_copy(self.copy)
        # A network may do something else with more samples, so it is checked with as many as it gets first, too.
        for size in sorted({ITEMS, max(ITEMS, len(batch[0]))}, reverse=True):
            series = public_batches(batch, (size,), [embedded(network)] * len(batch))
            with _errors_named("model"):
                first, _ = check_stateless(network, outputs_and_gradients, series, name="model")
        if self.criterion is None:
            return
        outputs, targets = [], self._targets()
        with torch.no_grad():
            for given in next(one for one in series if all(map(torch.equal, one[0], first))):
                with suppress(*FAILURES):  # such as large numbers, which it need not take
                    outputs.append(_one_tensor(evaluated(network, given)))
        classes = outputs[0].shape[1] if outputs[0].ndim > 1 else None
        samples = [
            [[output, labels] for output, (labels,) in zip(outputs, one, strict=False)]
            for one in public_batches([targets], (ITEMS,), [classes])
        ]
        with _errors_named("loss"):
            check_stateless(self.criterion, _slope, samples, name="loss")
        if not _is_mean(copied(self.criterion, "loss"), chain.from_iterable(samples)):
            raise UserError(
                "loss: Expected a criterion that is a mean over samples, found one whose gradient does not halve when "
                "each sample is in the batch twice. With a sum, gradients grow with the number of patients drawn, and "
                "one patient can change the released sum by more than max_grad_norm. Use reduction='mean', here and in "
                "the training loop."
            )

    def _check_mixture(self, evaluated: Evaluated, batch: Sequence[Tensor]) -> None:
        """Raise `UserError` if samples change each other's gradients, or if those do not sum to the whole gradient."""
        network = moved_copy(self.copy)
        stored = {name: value.clone() for name, value in state_of(network).items()}
        wrapped = ComplexGradSampleModule(network, loss_reduction="sum")

        def gradients(given: Sequence[Tensor]) -> list[Tensor]:
            _loss(evaluated(wrapped, given), len(given[0])).backward()  # type: ignore[no-untyped-call]
            found = [_gradient_of_samples(name, p) for name, p in network.named_parameters() if p.requires_grad]
            wrapped.zero_grad(set_to_none=True)
            return found

        with torch.enable_grad():
            mixed = first_mixture(gradients, batch)
        check_stores_nothing(network, stored)
        if mixed is not None:
            raise UserError(
                "Expected samples that do not change each other's gradients, found a network that mixes them in "
                f"training. {REMEDY}"
            )

    def _check_loss(self, criterion: Criterion, output: Any) -> None:  # noqa: ANN401  (the user's)
        """Raise `UserError` if the gradient of a sample's outputs depends on other samples."""
        with _errors_named("loss"):
            mixed = first_mixture(partial(_slope, criterion), [_one_tensor(output), self._targets().cpu()])
        if mixed is not None:
            raise UserError(
                "Expected a criterion that is a mean over samples, found a loss that mixes the samples of a batch, for "
                "example by weights that depend on all of its classes, or by targets that it ignores."
            )

    def _targets(self) -> Tensor:
        """Return the targets of the batch."""
        batch = self.loader.content
        if not (isinstance(batch, list | tuple) and len(batch) == 2 and torch.is_tensor(batch[1])):
            raise UserError(
                "Expected batches of inputs and targets to check the criterion, found others. Leave the criterion out."
            )
        targets: Tensor = batch[1]
        return targets

    def _new_values(self) -> set[int]:
        """Return whole numbers among the batch's targets that no batch had with which the loss was checked."""
        if self.criterion is None or self._targets().is_floating_point() or self._targets().is_complex():
            return set()
        values = set(torch.unique(self._targets()).tolist())
        # Equal targets do not show that another one counts otherwise.
        return values - self.values if len(values) > 1 else set()


def _slope(criterion: Criterion, given: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradient of a loss with respect to outputs, for outputs and targets."""
    outputs = given[0].detach().clone().requires_grad_()
    with torch.enable_grad():
        loss = criterion(outputs, given[1])
        if not (torch.is_tensor(loss) and loss.numel() == 1):
            found = f"shape {tuple(loss.shape)}" if torch.is_tensor(loss) else type(loss).__name__
            raise UserError(
                f"loss: Expected a criterion that returns one number for a batch, found {found}. Pass the loss that "
                "the training loop differentiates: lambda outputs, targets: criterion(outputs, targets).mean()."
            )
        return list(torch.autograd.grad(loss, outputs))


def _is_mean(criterion: Criterion, samples: Iterable[Sequence[Tensor]]) -> bool:
    """Return whether the gradient of a loss halves when each sample is in the batch twice."""
    for given in samples:
        with suppress(*FAILURES):
            (slope,) = _slope(criterion, given)
            size = torch.linalg.vector_norm(slope)
            if torch.isfinite(size) and size > 0:
                (of_both,) = _slope(criterion, [torch.cat([one, one]) for one in given])
                return bool(torch.linalg.vector_norm(2 * of_both - torch.cat([slope, slope])) <= TOLERANCE * size)
    return False


def _one_tensor(output: Any) -> Tensor:  # noqa: ANN401  (as the user's network has them)
    if not torch.is_tensor(output):
        raise UserError(
            f"Expected a network with one tensor as output to check the criterion, found {type(output).__name__}. "
            "Leave the criterion out."
        )
    return output


@contextmanager
def _errors_named(name: str) -> Iterator[None]:
    """Name the argument in errors of a user's network or loss."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except FAILURES as error:
        raise UserError(
            f"{name}: Expected a network and a criterion that take random samples of the shapes of the batch's, found "
            f"{first_sentence(error)}"
        ) from error


def _loss(output: Any, samples: int) -> Tensor:  # noqa: ANN401  (as the user's network has them)
    """Return a sum over samples of a function of each sample's output that is not linear."""
    parts = []
    for leaf in tree_flatten(output)[0]:
        if torch.is_tensor(leaf) and leaf.requires_grad and leaf.shape[:1] == (samples,):
            values = (torch.view_as_real(leaf.resolve_conj()) if leaf.is_complex() else leaf).reshape(samples, -1)
            parts.append((values * (values / 2 + torch.arange(values.shape[1]).cos())).sum())
    if not parts:
        raise UserError(f"Expected an output of the network with one row for each of the {samples} samples.")
    return torch.stack(parts).sum()


def _gradient_of_samples(name: str, parameter: nn.Parameter) -> Tensor:
    """Return a parameter's gradients of samples; refuse what does not sum to its gradient."""
    found = getattr(parameter, "grad_sample", None)
    if not torch.is_tensor(found) or parameter.grad is None:
        raise UserError(
            f"Expected a gradient of the trained parameter {name!r} for every sample, found none. If the network does "
            "not use it, freeze it: requires_grad_(False)."
        )
    whole = parameter.grad
    # Other samples than the replaced ones may have huge gradients, which hide nothing: they are in both.
    finite = torch.isfinite(torch.view_as_real(whole) if whole.is_complex() else whole).all()
    size = torch.linalg.vector_norm(found.flatten(1), dim=1).sum()
    if finite and torch.linalg.vector_norm(found.sum(0) - whole) > TOLERANCE * size:
        raise UserError(
            f"Expected gradients of samples that sum to the whole gradient, found others for {name!r}. Use a parameter "
            "through its layer alone."
        )
    return found
