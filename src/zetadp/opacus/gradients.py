r"""Per-sample gradients of networks with complex parameters, by Opacus's hooks.

PyTorch gives the gradient of a complex tensor as :math:`g = \partial L/\partial x + i\, \partial L/\partial y`. For
:math:`y = W a` the gradient of W is then :math:`g\, \bar a^T`, but the rules of Opacus leave out the conjugate. For a
layer without a rule, Opacus differentiates :math:`\sum y g`, which is complex. The correct real number is
:math:`\mathrm{Re} \sum y \bar g`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from opacus.grad_sample import GradSampleModule
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from zetadp.opacus.optimizer import check_precision

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

    def add_hooks(self, **settings: Any) -> None:  # noqa: ANN401  (Opacus's)
        """Add Opacus's hooks, but take gradients of outputs from the outputs.

        Opacus registers a hook of the module for them. At each backward pass, PyTorch warns of such a hook if no input
        of the layer needs a gradient, which is so for the first layer of every network.
        """
        super().add_hooks(**settings)
        for backward in self.autograd_grad_sample_hooks[1::2]:  # they alternate with hooks of the forward pass
            backward.remove()

    def capture_activations_hook(self, module: nn.Module, forward_input: list[Tensor], forward_output: Any) -> None:  # noqa: ANN401  (a layer's)
        """Store the inputs of a layer for the gradient of its output, where Opacus stores them."""
        before = len(getattr(module, "activations", ()))
        super().capture_activations_hook(module, forward_input, forward_output)
        output = forward_output if isinstance(forward_output, Tensor) else forward_output[0]
        if len(getattr(module, "activations", ())) > before and output.requires_grad:
            output.register_hook(partial(self._capture_gradient, module))

    def _capture_gradient(self, module: nn.Module, gradient: Tensor) -> None:
        """Compute the gradients of samples from the gradient of a layer's output."""
        self.capture_backprops_hook(module, None, (gradient,), self.loss_reduction, self.batch_first)

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
        arguments = {f"layer.{name}": value for name, value in values.items()}
        output: Tensor = functional_call(unhooked, arguments, tuple(x.unsqueeze(0) for x in inputs))
        return (output * backprop.unsqueeze(0).conj()).real.sum()

    per_sample = vmap(grad(pairing), in_dims=(None, 0, 0))
    gradients = per_sample({name: p.detach() for name, p in parameters.items()}, tuple(activations), backprops)
    return {parameters[name]: gradient for name, gradient in gradients.items()}


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
