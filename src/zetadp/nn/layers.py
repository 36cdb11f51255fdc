"""Linear maps, complex and real, that know how to give one gradient per patient.

Every layer works in two ways, told apart by the shape of its parameters:

- *plain*: parameters as constructed; ordinary autograd.
- *per patient*: each parameter carries a leading patient axis of length P (all P slices equal, usually an expanded
  view), and the images of a batch are P equal, consecutive blocks, one a patient. Outputs are the same; the gradient of
  a parameter then has the patient axis too: slice p is the gradient of patient p's part of the loss.

Images of patients come in equal numbers here because the loss can give an image weight zero: a patient with fewer
images is padded. Weight gradients are one call of the backend a patient, in place of autograd's own and with the same
arithmetic, so they cost what the ordinary ones cost (measured in the table of per-patient gradients in the docs).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from zetadp.nn.stacked import block_weight
from zetadp.nn.weight_gradients import Geometry, convolution_gradients, product_gradients


class PatientLayer(nn.Module):
    """A layer whose parameters accept a leading patient axis."""


def knows_patients(model: nn.Module) -> bool:
    """Return whether every module of a network with trained parameters of its own is a `PatientLayer`."""
    return all(
        isinstance(module, PatientLayer) or not any(p.requires_grad for p in module.parameters(recurse=False))
        for module in model.modules()
    )


def per_image(parameter: Tensor, images: int, ndim: int) -> Tensor:
    """Spread a small parameter over the images of a batch.

    Parameters
    ----------
    parameter
        Tensor of ``ndim`` axes, or of ``ndim + 1`` with a leading patient axis.
    images
        Number of images in the batch, a multiple of the number of patients.
    ndim
        Number of axes of the parameter without patients.

    Returns
    -------
    Tensor with a leading axis of length 1 (plain) or ``images`` (per patient), to be broadcast.
    """
    if parameter.ndim == ndim:
        return parameter.unsqueeze(0)
    return parameter.unsqueeze(1).expand(-1, images // len(parameter), *parameter.shape[1:]).flatten(0, 1)


class _PatientConv2d(torch.autograd.Function):
    """A convolution with a shared weight whose backward pass returns one weight gradient a patient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, stride: int, padding: int) -> Tensor:  # noqa: ANN401
        weight = weights[0]
        block = block_weight(weight) if weight.is_complex() else weight
        ctx.save_for_backward(x, block)
        ctx.patients, ctx.complex, ctx.stride, ctx.padding = len(weights), weight.is_complex(), stride, padding
        return functional.conv2d(x, block, stride=stride, padding=padding)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, None, None]:  # noqa: ANN401
        x, block = ctx.saved_tensors
        of_x = None
        if ctx.needs_input_grad[0]:
            geometry = ([ctx.stride] * 2, [ctx.padding] * 2, [1, 1], False, [0, 0], 1)
            mask = [True, False, False]
            of_x = torch.ops.aten.convolution_backward(gradient, x, block, None, *geometry, mask)[0]
        of_weights = convolution_gradients(
            x,
            gradient,
            ctx.patients,
            Geometry(block.shape[-1], ctx.stride, ctx.padding),
            is_complex=ctx.complex,
        )
        return of_x, of_weights, None, None


class _PatientLinear(torch.autograd.Function):
    """A matrix product with a shared weight whose backward pass returns one weight gradient a patient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor) -> Tensor:  # noqa: ANN401
        weight = weights[0]
        block = block_weight(weight) if weight.is_complex() else weight
        ctx.save_for_backward(x, block)
        ctx.patients, ctx.complex = len(weights), weight.is_complex()
        return functional.linear(x, block)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor]:  # noqa: ANN401
        x, block = ctx.saved_tensors
        of_x = gradient @ block if ctx.needs_input_grad[0] else None
        return of_x, product_gradients(x, gradient, ctx.patients, is_complex=ctx.complex)


class Conv2d(PatientLayer):
    """A two-dimensional convolution without bias, complex (on stacked tensors) or real.

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
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.stride, self.padding = stride, kernel // 2 if padding is None else padding
        self.weight = nn.Parameter(torch.zeros(outputs, inputs, kernel, kernel, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Convolve images of shape (image, channel, row, column), complex channels stacked."""
        if self.weight.ndim == 5:
            return _PatientConv2d.apply(x, self.weight, self.stride, self.padding)  # type: ignore[no-untyped-call,no-any-return]
        weight = block_weight(self.weight) if self.weight.is_complex() else self.weight
        return functional.conv2d(x, weight, stride=self.stride, padding=self.padding)


class Linear(PatientLayer):
    """An affine map of feature vectors, complex (on stacked tensors) or real.

    Parameters
    ----------
    inputs, outputs
        Features in and out; complex features where the layer is complex.
    dtype
        ``torch.complex64`` for a complex layer, ``torch.float32`` for a real one.
    """

    def __init__(self, inputs: int, outputs: int, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(outputs, inputs, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(outputs, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Map features of shape (image, feature), complex features stacked."""
        bias = per_image(self.bias, len(x), 1)
        if bias.is_complex():
            bias = torch.cat((bias.real, bias.imag), dim=1)
        if self.weight.ndim == 3:
            return _PatientLinear.apply(x, self.weight) + bias  # type: ignore[no-untyped-call,no-any-return]
        weight = block_weight(self.weight) if self.weight.is_complex() else self.weight
        return functional.linear(x, weight) + bias


class LowRankConv2d(Conv2d):
    """A frozen convolution, complex (on stacked tensors) or real, plus a trained update of low rank.

    The weight, as a matrix of outputs by inputs times kernel, becomes ``W = W0 + U V`` of two factors with ``rank``
    columns and rows (Hu et al., arXiv:2106.09685). W0 is frozen and public; V is drawn at random from the run's seed,
    which is public too; U starts at zero, so that training begins at W0 to the bit. Where U alone is trained, scores
    are as linear in what is trained as they are in W, and of the two factors it has the fewer weights: ``rank`` for
    each output, against ``rank * kernel**2`` for each input.

    The frozen weight has the name that a plain convolution gives it, so that both read each other's.

    Parameters
    ----------
    inputs, outputs, kernel, stride, dtype
        As of `Conv2d`.
    rank
        Filters of the inner factor V, and so the largest rank of the update; those of a complex layer are complex.
    """

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 3, *, rank: int, stride: int = 1, dtype: torch.dtype
    ) -> None:
        super().__init__(inputs, outputs, kernel, stride=stride, dtype=dtype)
        self.inner = Conv2d(inputs, rank, kernel, stride=stride, dtype=dtype)
        self.outer = Conv2d(rank, outputs, 1, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve images of shape (image, channel, row, column), complex channels stacked."""
        update: Tensor = self.outer(self.inner(x))
        return super().forward(x) + update


def updates(model: nn.Module) -> dict[str, Tensor]:
    """Return the factors of all low-rank updates of a network by name, without the weights that they update."""
    return {
        f"{name}.{factor}": value
        for name, module in model.named_modules()
        if isinstance(module, LowRankConv2d)
        for factor, value in module.state_dict().items()
        if factor != "weight"
    }
