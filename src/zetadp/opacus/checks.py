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

from zetadp.base.usercode import user_code
from zetadp.base.validation import UserError
from zetadp.opacus.gradients import ComplexGradSampleModule
from zetadp.opacus.loader import PatientLoader
from zetadp.training.independence import REMEDY, check_stores_nothing, first_mixture, moved_copy, state_of
from zetadp.training.stateless import ITEMS, check_stateless, copied, embedded, public_batches

Criterion: TypeAlias = Callable[[Any, Any], Tensor]
Evaluated: TypeAlias = Callable[[nn.Module, Sequence[Tensor]], Any]

TOLERANCE = 1e-3
"""Largest relative difference between a gradient and the sum of the gradients of samples, which are float32."""


class FirstBatches:
    """Checks that network and loss remember nothing, and that samples are independent and count alike.

    Before the network sees a batch, copies of network and loss are evaluated on public random samples. They must
    remember nothing (`zetadp.training.stateless`), and the loss must be a mean over samples. Then the first batch is
    checked on a copy of the network, and so is every batch at least twice as large as all earlier ones. The loss is
    checked again with every batch that has new values among its targets, such as new classes.

    The copy's layers are in the same modes as those of the network, training or evaluation. When a mode changes, the
    next batch counts as the first. A network with replaced layers, or with more trained parameters, is refused.

    Parameters
    ----------
    module
        The network, before Opacus adds its hooks.
    criterion
        The loss of outputs and targets, to be checked too; None leaves it unchecked.
    loader
        The loader, which stores its last batch.
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
            gradients of samples are missing or wrong. If it is no longer the network that was passed to the engine.
        """
        owners, (leaves, structure) = self.loader.owners, tree_flatten((args, kwargs))
        if owners is None:
            return  # not a batch of the loader: the optimizer refuses its step
        self._follow()
        indices = [
            index for index, leaf in enumerate(leaves) if torch.is_tensor(leaf) and leaf.shape[:1] == owners.shape
        ]
        if not indices:
            return  # the optimizer refuses its step
        self.loader.checked = True

        def evaluated(network: nn.Module, batch: Sequence[Tensor]) -> Any:  # noqa: ANN401  (as the user's has them)
            leaves_of_batch = list(leaves)
            for index, tensor in zip(indices, batch, strict=True):
                leaves_of_batch[index] = tensor
            arguments, keywords = tree_unflatten(leaves_of_batch, structure)
            # Layers such as dropout draw the same again.
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                return network(*arguments, **keywords)

        batch = [leaves[index].detach().cpu() for index in indices]
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
        """Put the copy's layers into the modes of the network's layers; refuse a network with other layers."""
        layers = list(self.module.modules())
        trained = zip(self.module.parameters(), self.copy.parameters(), strict=False)
        if layers != self.layers or any(now.requires_grad > before.requires_grad for now, before in trained):
            raise UserError(
                "Expected the layers and trained parameters that make_private was given, found others. Change the "
                "network before make_private, or make_private(module=module.to_standard_module(), ...) again."
            )
        for copied_layer, layer in zip(self.copy.modules(), layers, strict=True):
            if copied_layer.training != layer.training:
                copied_layer.training, self.largest = layer.training, 0

    def _check_on_public_samples(self, evaluated: Evaluated, batch: Sequence[Tensor]) -> None:
        """Raise `UserError` if network or loss remembers samples, or if the loss is not a mean.

        Parameters
        ----------
        evaluated
            Computes the output of a network for a batch.
        batch
            The arguments that have samples. Only their types and shapes are used.
        """

        def outputs_and_gradients(network: nn.Module, inputs: Sequence[Tensor]) -> list[Tensor]:
            trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
            with torch.enable_grad():
                output = evaluated(network, inputs)
                gradients = torch.autograd.grad(_loss(output, len(inputs[0])), trained, materialize_grads=True)
            return [*(leaf.detach() for leaf in tree_leaves(output) if torch.is_tensor(leaf)), *gradients]

        network = moved_copy(self.copy)
        # A network may treat larger batches differently, so it is also checked with the size of the first batch.
        for size in sorted({ITEMS, max(ITEMS, len(batch[0]))}, reverse=True):
            series = public_batches(batch, (size,), [embedded(network)] * len(batch))
            with _name_argument("model"):
                first, _ = check_stateless(network, outputs_and_gradients, series, name="model")
        if self.criterion is None:
            return
        outputs, targets = [], self._targets()
        with torch.no_grad():
            for inputs in next(variant for variant in series if all(map(torch.equal, variant[0], first))):
                with suppress(Exception):  # a network may fail for large numbers, for example
                    outputs.append(_single_output(evaluated(network, inputs)))
        classes = outputs[0].shape[1] if outputs[0].ndim > 1 else None
        samples = [
            [[output, labels] for output, (labels,) in zip(outputs, variant, strict=False)]
            for variant in public_batches([targets], (ITEMS,), [classes])
        ]
        with _name_argument("loss"):
            check_stateless(self.criterion, _loss_gradient, samples, name="loss")
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

        def gradients(inputs: Sequence[Tensor]) -> list[Tensor]:
            _loss(evaluated(wrapped, inputs), len(inputs[0])).backward()  # type: ignore[no-untyped-call]
            per_sample = [_gradient_of_samples(name, p) for name, p in network.named_parameters() if p.requires_grad]
            wrapped.zero_grad(set_to_none=True)
            return per_sample

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
        with _name_argument("loss"):
            mixed = first_mixture(partial(_loss_gradient, criterion), [_single_output(output), self._targets().cpu()])
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
        """Return whole numbers among the batch's targets with which the loss was not yet checked."""
        if self.criterion is None or self._targets().is_floating_point() or self._targets().is_complex():
            return set()
        values = set(torch.unique(self._targets()).tolist())
        # Equal targets do not show whether another target has another weight.
        return values - self.values if len(values) > 1 else set()


def _loss_gradient(criterion: Criterion, outputs_and_targets: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradient of a loss with respect to outputs, for outputs and targets."""
    outputs = outputs_and_targets[0].detach().clone().requires_grad_()
    with torch.enable_grad():
        loss = criterion(outputs, outputs_and_targets[1])
        if not (torch.is_tensor(loss) and loss.numel() == 1):
            loss_type = f"shape {tuple(loss.shape)}" if torch.is_tensor(loss) else type(loss).__name__
            raise UserError(
                f"loss: Expected a criterion that returns one number for a batch, found {loss_type}. Pass the loss "
                "that the training loop differentiates: lambda outputs, targets: criterion(outputs, targets).mean()."
            )
        return list(torch.autograd.grad(loss, outputs))


def _is_mean(criterion: Criterion, samples: Iterable[Sequence[Tensor]]) -> bool:
    """Return whether the gradient of a loss halves when each sample is in the batch twice."""
    for sample_batch in samples:
        with suppress(Exception):
            (gradient,) = _loss_gradient(criterion, sample_batch)
            norm = torch.linalg.vector_norm(gradient)
            if torch.isfinite(norm) and norm > 0:
                (doubled,) = _loss_gradient(criterion, [torch.cat([tensor, tensor]) for tensor in sample_batch])
                return bool(torch.linalg.vector_norm(2 * doubled - torch.cat([gradient, gradient])) <= TOLERANCE * norm)
    return False


def _single_output(output: Any) -> Tensor:  # noqa: ANN401  (as the user's network has them)
    if not torch.is_tensor(output):
        raise UserError(
            f"Expected a network with one tensor as output to check the criterion, found {type(output).__name__}. "
            "Leave the criterion out."
        )
    return output


@contextmanager
def _name_argument(name: str) -> Iterator[None]:
    """Name the argument in errors of a user's network or loss."""
    failed = f"{name}: Expected a network and a criterion that take random samples of the shapes of the batch's, found "
    with user_code(failed):
        yield


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
    """Return a parameter's gradients of samples; refuse those that do not sum to its gradient."""
    per_sample = getattr(parameter, "grad_sample", None)
    if not torch.is_tensor(per_sample) or parameter.grad is None:
        raise UserError(
            f"Expected a gradient of the trained parameter {name!r} for every sample, found none. If the network does "
            "not use it, freeze it: requires_grad_(False)."
        )
    whole = parameter.grad
    # Huge gradients of samples that were not replaced hide nothing: they are in both sums.
    finite = torch.isfinite(torch.view_as_real(whole) if whole.is_complex() else whole).all()
    norm = torch.linalg.vector_norm(per_sample.flatten(1), dim=1).sum()
    if finite and torch.linalg.vector_norm(per_sample.sum(0) - whole) > TOLERANCE * norm:
        raise UserError(
            f"Expected gradients of samples that sum to the whole gradient, found others for {name!r}. Use a parameter "
            "through its layer alone."
        )
    return per_sample
