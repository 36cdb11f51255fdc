"""Linear maps, complex and real, that can compute one gradient per patient.

Every layer works in two ways. The shape of its parameters decides which:

- *plain*: parameters as constructed; ordinary autograd.
- *per patient*: each parameter has a leading patient axis of length P (all P slices are equal, usually an expanded
  view), and the images of a batch are P consecutive blocks of equal length, one a patient. The outputs are the same.
  The gradient of a parameter then has the patient axis too: slice p is the gradient of patient p's part of the loss.
  Each layer says so to `zetadp.privacy.contributions.unit_layer`, whose "units" are the patients here.

On a CPU, weight gradients are one call of the backend per patient, which replaces autograd's own call and has the same
arithmetic (`zetadp.nn.weight_gradients`). So they cost about as much as ordinary ones (docs/performance.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from zetadp.nn.stacked import block_weight, complex_too, ordinary
from zetadp.nn.weight_gradients import Geometry, convolution_gradients, product_gradients
from zetadp.privacy.contributions import unit_layer


def per_image(parameter: Tensor, images: int, ndim: int) -> Tensor:
    """Repeat a parameter, such as a bias, for the images of a batch.

    Parameters
    ----------
    parameter
        Tensor with ``ndim`` axes, or with ``ndim + 1`` if it has a leading patient axis.
    images
        Number of images in the batch, a multiple of the number of patients.
    ndim
        Number of axes of the parameter without the patient axis.

    Returns
    -------
    Tensor with a leading axis of length 1 (plain) or ``images`` (per patient), to be broadcast.
    """
    if parameter.ndim == ndim:
        return parameter.unsqueeze(0)
    return parameter.unsqueeze(1).expand(-1, images // len(parameter), *parameter.shape[1:]).flatten(0, 1)


class _UnitMap(torch.autograd.Function):
    """A linear map with a shared weight whose backward pass returns one weight gradient a patient.

    It is a convolution of a geometry, or a matrix product where there is none.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, geometry: Geometry | None) -> Tensor:  # noqa: ANN401  (PyTorch's context)
        weight = weights[0]
        block = block_weight(weight) if weight.is_complex() else weight
        ctx.save_for_backward(x, block)
        ctx.patients, ctx.complex, ctx.geometry = len(weights), weight.is_complex(), geometry
        if geometry is None:
            return functional.linear(x, block)
        return functional.conv2d(x, block, stride=geometry.stride, padding=geometry.padding)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, None]:  # noqa: ANN401  (PyTorch's context)
        (x, block), geometry, wanted = ctx.saved_tensors, ctx.geometry, ctx.needs_input_grad[0]
        if geometry is None:
            of_weights = product_gradients(x, gradient, ctx.patients, is_complex=ctx.complex)
            return gradient @ block if wanted else None, of_weights, None
        of_x = None
        if wanted:
            rest = ([geometry.stride] * 2, [geometry.padding] * 2, [1, 1], False, [0, 0], 1, [True, False, False])
            of_x = torch.ops.aten.convolution_backward(gradient, x, block, None, *rest)[0]
        return of_x, convolution_gradients(x, gradient, ctx.patients, geometry, is_complex=ctx.complex), None


@torch.no_grad()
def _draw_uniform(*parameters: nn.Parameter | None, fan_in: int) -> None:
    """Draw weights and biases as PyTorch's layers do: uniformly, with variance 1 / (3 fan_in).

    Real and imaginary part of a complex number have half of this variance each.
    """
    for parameter in parameters:
        if parameter is not None:
            bound = 1 / math.sqrt(fan_in * (2 if parameter.is_complex() else 1))
            (torch.view_as_real(parameter) if parameter.is_complex() else parameter).uniform_(-bound, bound)


def _stacked_bias(bias: Tensor, images: int) -> Tensor:
    """Return a bias, with or without a patient axis, for the stacked channels of a batch of images."""
    bias = per_image(bias, images, 1)
    return torch.cat((bias.real, bias.imag), dim=1) if bias.is_complex() else bias


def _of_patients(function: Callable[[Tensor, Tensor], Tensor], x: Tensor, weights: Tensor) -> Tensor:
    """Apply each patient's weight, of shape (patient, ...), to this patient's images, by ordinary operations."""
    found: Tensor = torch.vmap(function)(x.unflatten(0, (len(weights), -1)), weights)  # type: ignore[no-untyped-call]
    return found.flatten(0, 1)


@unit_layer
class Conv2d(nn.Module):
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
        super().__init__()
        self.stride, self.padding = stride, kernel // 2 if padding is None else padding
        self.weight = nn.Parameter(torch.empty(outputs, inputs, kernel, kernel, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(outputs, dtype=dtype)) if bias else None
        _draw_uniform(self.weight, self.bias, fan_in=inputs * kernel**2)

    @complex_too
    def forward(self, x: Tensor) -> Tensor:
        """Convolve images of shape (image, channel, row, column), complex ones stacked or as complex numbers."""
        if self.weight.ndim == 4:
            found = self._convolved(x, self.weight)
        elif ordinary():
            found = _of_patients(self._convolved, x, self.weight)
        else:
            geometry = Geometry(self.weight.shape[-1], self.stride, self.padding)
            found = _UnitMap.apply(x, self.weight, geometry)  # type: ignore[no-untyped-call]
        return found if self.bias is None else found + _stacked_bias(self.bias, len(x))[..., None, None]

    def _convolved(self, x: Tensor, weight: Tensor) -> Tensor:
        block = block_weight(weight) if weight.is_complex() else weight
        return functional.conv2d(x, block, stride=self.stride, padding=self.padding)


@unit_layer(product=True)
class Linear(nn.Module):
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
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(outputs, dtype=dtype)) if bias else None
        _draw_uniform(self.weight, self.bias, fan_in=inputs)

    @complex_too
    def forward(self, x: Tensor) -> Tensor:
        """Map features of shape (image, feature), complex ones stacked or as complex numbers."""
        if self.weight.ndim == 2:
            found = self._mapped(x, self.weight)
        elif ordinary():
            found = _of_patients(self._mapped, x, self.weight)
        else:
            found = _UnitMap.apply(x, self.weight, None)  # type: ignore[no-untyped-call]
        return found if self.bias is None else found + _stacked_bias(self.bias, len(x))

    @staticmethod
    def _mapped(x: Tensor, weight: Tensor) -> Tensor:
        return functional.linear(x, block_weight(weight) if weight.is_complex() else weight)
