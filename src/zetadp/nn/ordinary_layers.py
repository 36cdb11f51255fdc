"""Rules for layers of PyTorch: a unit's gradient of their weights from the layer's input and its output's gradient.

The layers stay as they are, and so do names and meaning of their weights. One ordinary pass serves all units.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from zetadp.nn.stacked import stack
from zetadp.nn.weight_gradients import Geometry, convolution_gradients
from zetadp.privacy.contributions import unit_rule
from zetadp.privacy.factored import Factored, fold_gradient


@unit_rule(nn.Linear)
def of_linear(layer: nn.Linear, x: Tensor, gradient: Tensor, units: int) -> dict[str, Tensor | Factored]:
    """Return the gradients of a matrix, as factors, and of its bias."""
    left, right = (t.reshape(units, -1, t.shape[-1]) for t in (gradient, x))
    bias = left.sum(dim=1)
    is_complex = layer.weight.is_complex()
    if is_complex:
        left, right = (torch.cat((t.real, t.imag), dim=2) for t in (left, right))
    return {"weight": Factored(left, right, is_complex), "bias": bias}


@unit_rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def of_convolution(
    layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, x: Tensor, gradient: Tensor, units: int
) -> dict[str, Tensor | Factored]:
    """Return the gradients of a convolution's weight and bias."""
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        raise NotImplementedError("Expected a convolution that is padded with a number of zeros.")
    is_complex = layer.weight.is_complex()
    bias = gradient.reshape(units, -1, *gradient.shape[1:]).transpose(1, 2).flatten(2).sum(dim=2)
    if is_complex:
        if layer.groups > 1:
            raise NotImplementedError("Expected a complex convolution without groups.")
        x, gradient = stack(x), stack(gradient)
    alike = {layer.kernel_size, layer.stride, layer.padding} <= {(n,) * 2 for n in range(64)}
    if alike and layer.dilation == (1, 1) and layer.groups == 1:
        geometry = Geometry(layer.kernel_size[0], layer.stride[0], layer.padding[0])
        return {"weight": convolution_gradients(x, gradient, units, geometry, is_complex=is_complex), "bias": bias}
    axes = len(layer.kernel_size)
    weight = x.new_empty(gradient.shape[1], x.shape[1] // layer.groups, *layer.kernel_size)
    how = [layer.stride, layer.padding, layer.dilation, False, [0] * axes, layer.groups, [False, True, False]]
    parts = zip(gradient.chunk(units), x.chunk(units), strict=True)
    found = torch.stack([torch.ops.aten.convolution_backward(g, own, weight, None, *how)[1] for g, own in parts])
    return {"weight": fold_gradient(found) if is_complex else found, "bias": bias}


@unit_rule(nn.GroupNorm)
def of_group_norm(layer: nn.GroupNorm, x: Tensor, gradient: Tensor, units: int) -> dict[str, Tensor | Factored]:
    """Return the gradients of scale and shift."""
    return _of_channels(functional.group_norm(x, layer.num_groups, eps=layer.eps), gradient, units)


@unit_rule(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
def of_frozen_batch_norm(
    layer: nn.BatchNorm1d, x: Tensor, gradient: Tensor, units: int
) -> dict[str, Tensor | Factored]:
    """Return the gradients of scale and shift of a batch normalisation by stored statistics."""
    if layer.training or layer.running_mean is None:
        raise NotImplementedError("Expected a batch normalisation in evaluation mode, with stored statistics.")
    return _of_channels(functional.batch_norm(x, layer.running_mean, layer.running_var, eps=layer.eps), gradient, units)


@unit_rule(nn.LayerNorm)
def of_layer_norm(layer: nn.LayerNorm, x: Tensor, gradient: Tensor, units: int) -> dict[str, Tensor | Factored]:
    """Return the gradients of scale and shift."""
    shape = tuple(layer.normalized_shape)
    normal = functional.layer_norm(x, shape, eps=layer.eps)
    weight, bias = (t.reshape(units, -1, *shape).sum(dim=1) for t in (gradient * normal, gradient))
    return {"weight": weight, "bias": bias}


def _of_channels(normal: Tensor, gradient: Tensor, units: int) -> dict[str, Tensor | Factored]:
    """Return the gradients of a scale and a shift of channels, shape (unit, channel)."""
    weight, bias = (
        t.reshape(units, -1, *t.shape[1:]).transpose(1, 2).flatten(2).sum(dim=2) for t in (gradient * normal, gradient)
    )
    return {"weight": weight, "bias": bias}
