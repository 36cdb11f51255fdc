"""Linear maps, complex and real, that can compute one gradient per patient.

Every layer works in two ways. The shape of its parameters decides which:

- *plain*: parameters as constructed; ordinary autograd.
- *per patient*: each parameter has a leading patient axis of length P (all P slices are equal, usually an expanded
  view), and the images of a batch are P consecutive blocks of equal length, one per patient. The outputs do not change.
  The gradient of a parameter then has the patient axis too: slice p is the gradient of patient p's part of the loss.
  Each layer is registered with `zetadp.mechanism.contributions.unit_layer`, whose "units" are the patients here.

On a CPU, weight gradients are one call of the backend per patient, which replaces autograd's own call and has the same
arithmetic (`zetadp.nn.weight_gradients`). So they cost about as much as ordinary ones (docs/performance.md).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from zetadp.mechanism.contributions import unit_layer, unit_product
from zetadp.nn.stacked import accepts_complex, block_weight
from zetadp.nn.weight_gradients import Geometry, convolution_gradients, product_gradients


def per_image(parameter: Tensor, images: int) -> Tensor:
    """Repeat a vector of parameters, such as a bias, for the images of a batch.

    Parameters
    ----------
    parameter
        Shape (number,), or (patient, number) with a leading patient axis.
    images
        Number of images in the batch, a multiple of the number of patients.

    Returns
    -------
    Shape (1, number) for the former and (image, number) for the latter, to be broadcast.
    """
    if parameter.ndim == 1:
        return parameter.unsqueeze(0)
    return parameter.unsqueeze(1).expand(-1, images // len(parameter), -1).flatten(0, 1)


def real_width(width: int, groups: int = 1) -> int:
    """Return the channels of a real twin: the multiple of ``groups`` nearest to the root of two times ``width``.

    A complex weight is two real numbers, so the twin has about as many. It has at least ``groups`` channels.
    """
    return max(1, round(width * 2**0.5 / groups)) * groups


class _UnitMap(torch.autograd.Function):
    """A linear map with a shared weight whose backward pass returns one weight gradient per patient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, geometry: Geometry | None) -> Tensor:  # noqa: ANN401  (PyTorch's context)
        weight = weights[0]
        block = block_weight(weight) if weight.is_complex() else weight
        ctx.save_for_backward(x, block)
        ctx.patients, ctx.complex, ctx.geometry = len(weights), weight.is_complex(), geometry
        return apply_weight(x, block, geometry)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, None]:  # noqa: ANN401  (PyTorch's context)
        (x, block), geometry, needs_x = ctx.saved_tensors, ctx.geometry, ctx.needs_input_grad[0]
        if geometry is None:
            of_weights = product_gradients(x, gradient, ctx.patients, is_complex=ctx.complex)
            return gradient @ block if needs_x else None, of_weights, None
        of_x = None
        if needs_x:
            rest = ([geometry.stride] * 2, [geometry.padding] * 2, [1, 1], False, [0, 0], 1, [True, False, False])
            of_x = torch.ops.aten.convolution_backward(gradient, x, block, None, *rest)[0]
        return of_x, convolution_gradients(x, gradient, ctx.patients, geometry, is_complex=ctx.complex), None


def apply_weight(x: Tensor, weight: Tensor, geometry: Geometry | None) -> Tensor:
    """Apply a weight, shape (output, input, ...), to stacked or real tensors."""
    block = block_weight(weight) if weight.is_complex() else weight
    if geometry is None:
        return functional.linear(x, block)
    return functional.conv2d(x, block, stride=geometry.stride, padding=geometry.padding)


class _LinearMap(nn.Module):
    """A convolution with a geometry, or a matrix product without geometry, and a bias for each output.

    Weights and bias are drawn as in PyTorch's layers: uniformly, with variance 1 / (3 fan_in). Real and imaginary part
    of a complex number each have half of this variance.
    """

    def __init__(self, shape: tuple[int, ...], geometry: Geometry | None, *, bias: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.geometry = geometry
        self.weight = nn.Parameter(torch.empty(shape, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(shape[0], dtype=dtype)) if bias else None
        bound = 1 / math.sqrt(math.prod(shape[1:]) * (2 if dtype.is_complex else 1))
        for parameter in self.parameters():
            parts = parameter.detach()
            (torch.view_as_real(parts) if dtype.is_complex else parts).uniform_(-bound, bound)

    @accepts_complex
    def forward(self, x: Tensor) -> Tensor:
        """Map images (image, channel, row, column), or features (image, feature); complex ones may be stacked."""
        per_patient = self.weight.ndim > (2 if self.geometry is None else 4)
        apply = _UnitMap.apply if per_patient else apply_weight
        outputs: Tensor = apply(x, self.weight, self.geometry)
        if self.bias is None:
            return outputs
        bias = per_image(self.bias, len(x))
        bias = torch.cat((bias.real, bias.imag), dim=1) if bias.is_complex() else bias
        return outputs + bias[(...,) + (None,) * (x.ndim - 2)]


@unit_layer
class Conv2d(_LinearMap):
    """A two-dimensional convolution, complex (on stacked or complex tensors) or real.

    Weights and bias are drawn by PyTorch's generator, as PyTorch's own layers draw them.

    Parameters
    ----------
    inputs, outputs
        Channels in and out; complex channels where the layer is complex.
    kernel
        Odd side of the square kernel.
    stride
        Step of the kernel.
    padding
        Zeros on every side; ``kernel // 2`` by default.
    bias
        Whether a bias is added to each output channel. A normalisation after the layer makes it superfluous.
    dtype
        ``torch.complex64`` for a complex layer, ``torch.float32`` for a real one.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int = 3,
        *,
        stride: int = 1,
        padding: int | None = None,
        bias: bool = False,
        dtype: torch.dtype = torch.complex64,
    ) -> None:
        geometry = Geometry(kernel, stride, kernel // 2 if padding is None else padding)
        super().__init__((outputs, inputs, kernel, kernel), geometry, bias=bias, dtype=dtype)


@unit_product
class Linear(_LinearMap):
    """An affine map of feature vectors, complex (on stacked or complex tensors) or real.

    Weights and bias are drawn by PyTorch's generator, as PyTorch's own layers draw them.

    Parameters
    ----------
    inputs, outputs
        Features in and out; complex features where the layer is complex.
    bias
        Whether a bias is added to each output.
    dtype
        ``torch.complex64`` for a complex layer, ``torch.float32`` for a real one.
    """

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True, dtype: torch.dtype = torch.complex64) -> None:
        super().__init__((outputs, inputs), None, bias=bias, dtype=dtype)
