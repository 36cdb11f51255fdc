r"""Per-sample gradients of networks with complex parameters, by Opacus's hooks, and the checks of the first batches.

PyTorch gives the gradient of a complex tensor as :math:`g = \partial L/\partial x + i\, \partial L/\partial y`. For
:math:`y = W a` the gradient of W is then :math:`g\, \bar a^T`, but the rules of Opacus leave out the conjugate. For a
layer without a rule, Opacus differentiates :math:`\sum y g`, which is complex. The correct real number is
:math:`\mathrm{Re} \sum y \bar g`.

The checks see that samples are independent, and that the gradients of samples sum to the whole gradient.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from opacus.grad_sample import GradSampleModule
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from zetadp.base.validation import UserError
from zetadp.core.independence import REMEDY, check_stores_nothing, first_mixture, moved_copy, state_of
from zetadp.opacus.optimizer import PatientLoader, check_precision

Sampler: TypeAlias = "Callable[[nn.Module, list[Tensor], Tensor], dict[nn.Parameter, Tensor]]"

CONJUGATED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Layers whose rule in Opacus is right for complex parameters too once it is given the conjugate of the input."""


class AnyLayer(nn.Module):
    """Marks a layer that has no rule and uses automatic differentiation."""


class ComplexGradSampleModule(GradSampleModule):  # type: ignore[misc]
    """A network that stores one gradient per sample in ``grad_sample`` of each parameter, real or complex.

    This object has its own table of rules and does not change that of Opacus. Layers with real parameters use the rules
    of Opacus.

    Parameters
    ----------
    module
        The network. The first axis of all layers' inputs is the batch.
    loss_reduction
        ``"mean"`` or ``"sum"``: how the loss combines the samples of a batch.
    check
        Called in training with the network's arguments, before each batch.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        loss_reduction: str = "mean",
        check: Callable[[tuple[Any, ...], dict[str, Any]], None] | None = None,
    ) -> None:
        self.check = check
        stock: dict[type[nn.Module], Sampler] = GradSampleModule.GRAD_SAMPLERS
        self.GRAD_SAMPLERS: dict[type[nn.Module], Sampler] = {
            **stock,
            **{kind: partial(_with_conjugate, stock[kind]) for kind in CONJUGATED},
            AnyLayer: automatic_gradients,
        }
        super().__init__(module, loss_reduction=loss_reduction)

    def forward(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  (as the user's network has them)
        """Return the network's output."""
        trains = torch.is_grad_enabled() and any(layer.training for layer in self._module.modules())
        if self.check is not None and trains:
            # A network can be converted, and autocast entered, after make_private.
            check_precision(*(p for p in self._module.parameters() if p.requires_grad))
            self.check(args, kwargs)
        return super().forward(*args, **kwargs)

    def _get_module_type(self, module: nn.Module) -> type[nn.Module]:
        """Return the key of the rule for a layer."""
        kind = type(module)
        has_complex = any(parameter.is_complex() for parameter in module.parameters())
        # Opacus's rule for convolutions pads with zeros whatever the layer does.
        padded = getattr(module, "padding_mode", "zeros") != "zeros"
        if padded or kind not in self.GRAD_SAMPLERS or (has_complex and kind not in CONJUGATED):
            return AnyLayer
        return kind


def automatic_gradients(layer: nn.Module, activations: list[Tensor], backprops: Tensor) -> dict[nn.Parameter, Tensor]:
    """Return one gradient per sample of every trained parameter of a layer, by automatic differentiation.

    Parameters
    ----------
    layer
        Any layer that treats the samples of a batch independently.
    activations
        Inputs of the layer, with the sample as first axis.
    backprops
        Gradient of the loss with respect to the layer's output, with the shape of the output.

    Returns
    -------
    The gradients of each parameter, with the sample as an additional first axis.
    """
    parameters = {name: p for name, p in layer.named_parameters() if p.requires_grad}
    unhooked = _Unhooked(layer)

    def pairing(values: dict[str, Tensor], inputs: tuple[Tensor, ...], backprop: Tensor) -> Tensor:
        named = {f"layer.{name}": value for name, value in values.items()}
        output: Tensor = functional_call(unhooked, named, tuple(x.unsqueeze(0) for x in inputs))
        return (output * backprop.unsqueeze(0).conj()).real.sum()

    per_sample = vmap(grad(pairing), in_dims=(None, 0, 0))
    found = per_sample({name: p.detach() for name, p in parameters.items()}, tuple(activations), backprops)
    return {parameters[name]: gradient for name, gradient in found.items()}


class _Unhooked(nn.Module):
    """A layer without its hooks, because differentiating the layer again must not call them."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *inputs: Any) -> Any:  # noqa: ANN401  (as the user's network has them)
        return self.layer.forward(*inputs)


def _with_conjugate(
    stock: Sampler, layer: nn.Module, activations: list[Tensor], backprops: Tensor
) -> dict[nn.Parameter, Tensor]:
    """Apply a rule of Opacus to the conjugate of the layer's input. This does not change real inputs."""
    return stock(layer, [torch.conj(a).resolve_conj() for a in activations], backprops)


TOLERANCE = 1e-3
"""Largest relative difference between a gradient and the sum of the gradients of samples, which are float32."""


class FirstBatches:
    """Checks the first batch, and each that is at least twice as large as all before, on a copy of the network.

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

    def __init__(
        self, module: nn.Module, *, criterion: Callable[[Any, Any], Tensor] | None, loader: PatientLoader
    ) -> None:
        self.module, self.layers, self.copy = module, list(module.modules()), copy.deepcopy(module)
        self.criterion, self.loader = criterion, loader
        self.largest = 0

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Check a batch.

        Raises
        ------
        UserError
            If the network or the loss mixes samples, stores something about them, or has a parameter whose gradients
            of samples are missing or wrong. If it is no longer the network that was made private.
        """
        owners, (leaves, form) = self.loader.owners, tree_flatten((args, kwargs))
        if owners is None:
            return  # not a batch of the loader: the optimizer refuses its step
        self._follow()
        places = [
            place for place, leaf in enumerate(leaves) if torch.is_tensor(leaf) and leaf.shape[:1] == owners.shape
        ]
        # The optimizer also refuses parts of a batch.
        if not places or len(owners) < 2 * self.largest:
            return
        self.largest = len(owners)
        network = moved_copy(self.copy)
        stored = {name: value.clone() for name, value in state_of(network).items()}
        wrapped = ComplexGradSampleModule(network, loss_reduction="sum")

        def evaluated(batch: Sequence[Tensor]) -> Any:  # noqa: ANN401  (as the user's network has them)
            given = list(leaves)
            for place, tensor in zip(places, batch, strict=True):
                given[place] = tensor
            arguments, keywords = tree_unflatten(given, form)
            # Layers such as dropout draw the same again.
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                return wrapped(*arguments, **keywords)

        def gradients(batch: Sequence[Tensor]) -> list[Tensor]:
            _loss(evaluated(batch), len(owners)).backward()  # type: ignore[no-untyped-call]
            found = [_gradient_of_samples(name, p) for name, p in network.named_parameters() if p.requires_grad]
            wrapped.zero_grad(set_to_none=True)
            return found

        batch = [leaves[place].detach().cpu() for place in places]
        with torch.enable_grad():
            mixed = first_mixture(gradients, batch)
        check_stores_nothing(network, stored)
        if mixed is not None:
            raise UserError(
                "Expected samples that do not change each other's gradients, found a network that mixes them in "
                f"training. {REMEDY}"
            )
        if self.criterion is not None:
            with torch.no_grad():
                output = evaluated(batch)
            self._check_loss(self.criterion, output)

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

    def _check_loss(self, criterion: Callable[[Any, Any], Tensor], output: Tensor) -> None:
        """Raise `UserError` if the gradient of a sample's outputs depends on other samples."""
        batch = self.loader.content
        if not (isinstance(batch, list | tuple) and len(batch) == 2 and torch.is_tensor(batch[1])):
            raise UserError(
                "Expected batches of inputs and targets to check the criterion, found others. Leave the criterion out."
            )

        def slope(given: Sequence[Tensor]) -> tuple[Tensor, ...]:
            outputs = given[0].detach().requires_grad_()
            return torch.autograd.grad(criterion(outputs, given[1]), outputs)

        with torch.enable_grad():
            mixed = first_mixture(slope, [output, batch[1].cpu()])
        if mixed is not None:
            raise UserError(
                "Expected a criterion that is a mean or a sum over samples, found a loss that mixes the samples of a "
                "batch, for example by weights that depend on all of its classes."
            )


def _loss(output: Any, samples: int) -> Tensor:  # noqa: ANN401  (as the user's network has them)
    """Return a sum over samples of a function of each sample's output that is not linear."""
    parts = []
    for leaf in tree_flatten(output)[0]:
        if torch.is_tensor(leaf) and leaf.requires_grad and leaf.shape[:1] == (samples,):
            values = (torch.view_as_real(leaf.resolve_conj()) if leaf.is_complex() else leaf).flatten(1)
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
