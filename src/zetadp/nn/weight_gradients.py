r"""Gradients of shared weights, one for each patient, by the kernel that suits the shape.

All kernels give the same numbers up to rounding. The rules:

- On a CPU, a convolution takes one call of the backend for each patient, which replaces autograd's call for all
  patients and has the same arithmetic. A complex convolution takes three real convolutions of half the channels instead
  of four, where ``kernel**2 * in * out / (in + out)`` of stacked channels is more than 300, or more than 200 if a call
  reads at most 8 MiB. The saved arithmetic then outweighs the cost of copying the factors into place (measured for 4
  and 20 images per patient, 1 and 2 threads). One call then serves as many patients as there are threads; with one
  patient per call, threads would wait for each other.
- On a GPU, a convolution takes batched matrix products for many patients, of the unfolded input. Small calls, one for
  each patient, would leave the GPU idle.
- A matrix product takes one batched matrix product on every device. `zetadp.mechanism.factored` avoids it where
  possible.

Rules (`unit_rule`) give the gradients of PyTorch's own layers from the layer's input and its output's gradient. The
layers do not change, nor do names and meaning of their weights; one ordinary pass serves all units.

Complex gradients are in PyTorch's convention ``dL/dRe + i dL/dIm``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from zetadp.mechanism.contributions import of_any_layer, unit_rule
from zetadp.mechanism.factored import Factored, fold_gradient, split_by_patient
from zetadp.nn.stacked import stack

WORTHWHILE, WORTHWHILE_IN_CACHE = 300, 200
"""Least ``kernel**2 * in * out / (in + out)`` at which three products are faster: in general, and in cache."""
CACHED_BYTES = 1 << 23
"""Bytes that a call may read and still stay in cache."""
FOLDED_BYTES = 1 << 20
"""Bytes that are folded at once; small gradients of several patients are folded together."""
UNFOLDED_BYTES = 1 << 30
"""Bytes of input that are unfolded at once."""


class Geometry(NamedTuple):
    """Kernel side, stride and padding of a convolution, equal for rows and columns."""

    kernel: int
    stride: int
    padding: int


def convolution_gradients(
    x: Tensor, gradient: Tensor, patients: int, geometry: Geometry, *, is_complex: bool
) -> Tensor:
    """Return the gradient of a convolution's weight for every patient.

    Parameters
    ----------
    x
        Input of shape (image, in, row, column). Complex channels are stacked; patients are consecutive blocks of equal
        length.
    gradient
        Gradient of the output, shape (image, out, row', column').
    patients
        Number of patients.
    geometry
        Geometry of the convolution.
    is_complex
        Whether the weight is complex and channels are stacked.

    Returns
    -------
    Tensor of shape (patient, out, in, kernel, kernel), complex with half as many channels where the weight is.
    """
    if x.device.type != "cpu":
        return by_unfolding(x, gradient, patients, geometry, is_complex=is_complex)
    if is_complex and _three_pay(x, gradient, patients, geometry.kernel):
        return by_patient_in_three(x, gradient, patients, geometry)
    return by_patient(x, gradient, patients, geometry, is_complex=is_complex)


def by_unfolding(x: Tensor, gradient: Tensor, patients: int, geometry: Geometry, *, is_complex: bool) -> Tensor:
    """Return the gradients of `convolution_gradients` by batched matrix products of the unfolded input.

    Either all windows are unfolded, or their columns only (`_by_columns`): whatever moves fewer bytes. The factors of a
    complex product are complex, so that it writes complex gradients.
    """
    inputs, outputs = (t.shape[1] // (2 if is_complex else 1) for t in (x, gradient))
    kernel, stride, padding = geometry
    images = len(x) // patients
    positions = images * gradient[0, 0].numel()
    # By columns, the gradient of the output is read more often, and the result is copied into the order of the weight.
    saved = (kernel - 1) * positions * (kernel * inputs - outputs)
    columns = stride == 1 and padding < kernel and saved > 2 * kernel**2 * inputs * outputs
    if columns:  # all rows of the input are copied, which may be many more than those of the output
        copies = kernel * (images * (x.shape[2] + padding) + kernel - 1) * gradient.shape[3]
    else:
        copies = kernel**2 * positions
    of_a_patient = copies * x.shape[1] * x.element_size()
    if of_a_patient > UNFOLDED_BYTES:
        return by_patient(x, gradient, patients, geometry, is_complex=is_complex)
    at_once = max(1, UNFOLDED_BYTES // max(1, of_a_patient))
    dtype = x.dtype.to_complex() if is_complex else x.dtype
    order = (kernel, inputs, kernel) if columns else (inputs, kernel, kernel)
    gradients = x.new_empty(patients, outputs, *order, dtype=dtype)
    multiply = _by_columns if columns else _by_windows
    parts = (torch.split(t, at_once * size) for t, size in ((gradients, 1), (x, images), (gradient, images)))
    for target, part, g in zip(*parts, strict=True):
        inputs_by_patient, gradients_by_patient = (t.view(len(target), images, *t.shape[1:]) for t in (part, g))
        multiply(inputs_by_patient, gradients_by_patient, geometry, target)
    return gradients.transpose(2, 3) if columns else gradients


def _by_windows(x: Tensor, gradient: Tensor, geometry: Geometry, target: Tensor) -> None:
    """Write the gradients of some patients to a target of shape (patient, out, in, kernel, kernel).

    Input and gradient of the output have shape (patient, image, channel, row, column).
    """
    kernel, stride, padding = geometry
    patches = functional.pad(x, (padding,) * 4).unfold(3, kernel, stride).unfold(4, kernel, stride)
    # A view, which one copy brings into the order of the product. Columns come last, as in the image, so that a GPU
    # reads and writes neighbouring numbers together.
    right = _in_order(patches.permute(0, 2, 5, 6, 1, 3, 4), target.dtype)
    left = _in_order(gradient.transpose(1, 2), target.dtype)
    torch.bmm(left.flatten(2), right.flatten(4).flatten(1, 3).mH, out=target.flatten(2))


def _by_columns(x: Tensor, gradient: Tensor, geometry: Geometry, target: Tensor) -> None:
    """Write the gradients of `_by_windows` for stride one, with the kernel's rows before the channels of the input.

    Only the kernel's columns are unfolded. The products for different rows of the kernel read the same numbers, from
    different starts. Images of a patient follow each other, with rows of zeros between them, so that a product takes
    all of them at once: the padding in the input, and gaps of equal period in the gradient of the output.
    """
    (kernel, _, padding), (patients, images, _, rows, columns) = geometry, gradient.shape
    padded = functional.pad(x, (padding, padding, padding, 0))
    period = padded.shape[3]
    right = target.new_empty(patients, target.shape[3], kernel, images * period + kernel - 1, columns)
    of_images = right[:, :, :, : images * period].view(*right.shape[:3], images, period, columns)
    _copy(of_images, padded.unfold(4, kernel, 1).permute(0, 2, 5, 1, 3, 4))
    right[:, :, :, images * period :].zero_()
    left = target.new_empty(patients, target.shape[1], images, period, columns)
    _copy(left[:, :, :, :rows], gradient.transpose(1, 2))
    left[:, :, :, rows:].zero_()
    factor, shifted = left.flatten(2), right.flatten(3).flatten(1, 2)
    for row, part in enumerate(target.flatten(3).unbind(2)):
        torch.bmm(factor, shifted[:, :, row * columns :][:, :, : factor.shape[2]].mH, out=part)


def _in_order(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return values of shape (patient, channel, ...) as a contiguous tensor, complex if the type is."""
    if not dtype.is_complex:
        return values.contiguous()
    return _copy(values.new_empty(len(values), values.shape[1] // 2, *values.shape[2:], dtype=dtype), values)


def _copy(target: Tensor, values: Tensor) -> Tensor:
    """Copy values of shape (patient, channel, ...) to a target, which is complex if their channels are stacked."""
    if target.is_complex():
        return torch.complex(*values.chunk(2, dim=1), out=target)
    return target.copy_(values)


def _three_pay(x: Tensor, gradient: Tensor, patients: int, kernel: int) -> bool:
    """Return whether three products instead of four save more than copying their factors costs."""
    inputs, outputs = x.shape[1], gradient.shape[1]
    share = 3 / 2 * min(patients, torch.get_num_threads()) / patients
    read = share * (x.numel() + gradient.numel()) * x.element_size()
    least = WORTHWHILE_IN_CACHE if read <= CACHED_BYTES else WORTHWHILE
    return kernel**2 * inputs * outputs > least * (inputs + outputs)


def by_patient(x: Tensor, gradient: Tensor, patients: int, geometry: Geometry, *, is_complex: bool) -> Tensor:
    """Return the gradients of `convolution_gradients` by one call of the backend for each patient."""
    outputs, inputs = gradient.shape[1], x.shape[1]
    images = len(x) // patients
    kernel = geometry.kernel
    weight = x.new_empty(outputs, inputs, kernel, kernel)

    def written_out(x: Tensor, gradient: Tensor) -> Tensor:
        pairs = zip(torch.split(x, images), torch.split(gradient, images), strict=True)
        return torch.stack([_weight_gradient(block, g, weight, geometry) for block, g in pairs])

    if not is_complex:
        return written_out(x, gradient)
    gradients = x.new_empty(patients, outputs // 2, inputs // 2, kernel, kernel, dtype=x.dtype.to_complex())
    # Fold gradients while they are in cache, several small ones at once: the calls cost more than the arithmetic.
    together = max(1, FOLDED_BYTES // (weight.numel() * weight.element_size()))
    parts = (torch.split(t, together * size) for t, size in ((gradients, 1), (x, images), (gradient, images)))
    for target, block, g in zip(*parts, strict=True):
        target.copy_(fold_gradient(written_out(block, g)))
    return gradients


def by_patient_in_three(x: Tensor, gradient: Tensor, patients: int, geometry: Geometry) -> Tensor:
    r"""Return the gradients of a complex convolution by three real ones for each patient, after Karatsuba.

    With input :math:`x + iy`, gradient of the output :math:`u + iv` and :math:`\star` for the correlation of the two,
    the gradient is :math:`(u \star x + v \star y) + i (v \star x - u \star y)`. With

    .. math:: p = u \star x, \quad q = v \star y, \quad r = (u + v) \star (x - y)

    that is :math:`(p + q) + i (r - p + q)`. The three are groups of one call, which serves as many patients as there
    are threads: two threads can share six groups evenly, but not three. The inputs of each call are copied to the same
    memory as those of the previous call, so that they are in cache.
    """
    outputs, inputs = gradient.shape[1] // 2, x.shape[1] // 2
    kernel = geometry.kernel
    gradients = x.new_empty(patients, outputs, inputs, kernel, kernel, dtype=x.dtype.to_complex())
    images, together = len(x) // patients, min(patients, torch.get_num_threads())
    even = patients - patients % together
    for start, stop, size in ((0, even, together), (even, patients, patients - even)):
        if start == stop:
            continue
        # (call, image, patient of the call, part, channel, row, column)
        inputs_by_call, gradients_by_call = (
            t[start * images : stop * images].view(-1, size, images, 2, t.shape[1] // 2, *t.shape[2:]).transpose(1, 2)
            for t in (x, gradient)
        )
        right, left = (t.new_empty(images, size, 3, *t.shape[4:]) for t in (inputs_by_call, gradients_by_call))
        parts, difference, of_parts, total = right[:, :, :2], right[:, :, 2], left[:, :, :2], left[:, :, 2]
        weight = x.new_empty(3 * size * outputs, inputs, kernel, kernel)
        read = right.flatten(1, 3), left.flatten(1, 3)
        for target, values, g in zip(
            torch.split(gradients[start:stop], size), inputs_by_call, gradients_by_call, strict=True
        ):
            parts.copy_(values)
            torch.sub(*values.unbind(2), out=difference)
            of_parts.copy_(g)
            torch.add(*g.unbind(2), out=total)
            groups = _weight_gradient(*read, weight, geometry, 3 * size)
            p, q, r = groups.view(size, 3, *gradients.shape[1:]).unbind(1)
            r.sub_(p).add_(q)
            torch.complex(p.add_(q), r, out=target)
    return gradients


def _weight_gradient(x: Tensor, gradient: Tensor, weight: Tensor, geometry: Geometry, groups: int = 1) -> Tensor:
    """Return the backend's gradient of a convolution's weight. Only the shape of ``weight`` is used."""
    rest = ([geometry.stride] * 2, [geometry.padding] * 2, [1, 1], False, [0, 0], groups)
    of_weight: Tensor = torch.ops.aten.convolution_backward(gradient, x, weight, None, *rest, [False, True, False])[1]
    return of_weight


def product_gradients(x: Tensor, gradient: Tensor, patients: int, *, is_complex: bool) -> Tensor:
    """Return the gradient of a matrix product's weight for every patient.

    Parameters
    ----------
    x, gradient
        Input (image, in) and gradient of the output (image, out). Complex features are stacked; patients are
        consecutive blocks of equal length.
    patients
        Number of patients.
    is_complex
        Whether the weight is complex and features are stacked.

    Returns
    -------
    Tensor of shape (patient, out, in), complex with half as many features where the weight is.
    """
    left, right = split_by_patient(gradient, x, patients)
    gradients = left.mT @ right
    return fold_gradient(gradients) if is_complex else gradients


@unit_rule(nn.Linear)
def of_linear(layer: nn.Linear, x: Tensor, gradient: Tensor, units: int) -> dict[str, Tensor | Factored]:
    """Return the gradients of a matrix, as factors, and of its bias."""
    left, right = (t.reshape(units, -1, t.shape[-1]) for t in (gradient, x))
    bias = left.sum(dim=1)
    is_complex = layer.weight.is_complex()
    if is_complex:
        left, right = (torch.cat((t.real, t.imag), dim=2) for t in (left, right))
    return {"weight": Factored(left, right, is_complex), "bias": bias}


@unit_rule(nn.Conv2d)
def of_convolution(layer: nn.Conv2d, x: Tensor, gradient: Tensor, units: int) -> dict[str, Tensor | Factored]:
    """Return the gradients of a convolution's weight and bias; `of_any_layer` handles unusual convolutions."""
    alike = {layer.kernel_size, layer.stride, layer.padding} <= {(n,) * 2 for n in range(64)}
    if not alike or layer.dilation != (1, 1) or layer.groups > 1 or layer.padding_mode != "zeros":
        return of_any_layer(layer, x, gradient, units)
    is_complex = layer.weight.is_complex()
    bias = _sum_by_channel(gradient, units)
    if is_complex:
        x, gradient = stack(x), stack(gradient)
    geometry = Geometry(layer.kernel_size[0], layer.stride[0], int(layer.padding[0]))
    return {"weight": convolution_gradients(x, gradient, units, geometry, is_complex=is_complex), "bias": bias}


@unit_rule(nn.GroupNorm, nn.LayerNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
def of_norm(layer: nn.Module, x: Tensor, gradient: Tensor, units: int) -> dict[str, Tensor | Factored]:
    """Return the gradients of scale and shift, from the output without both."""
    neutral = {name: torch.full_like(p, float(name == "weight")) for name, p in layer.named_parameters()}
    parts = {"weight": gradient * functional_call(layer, neutral, (x,)), "bias": gradient}
    if isinstance(layer, nn.LayerNorm):
        return {name: parts[name].reshape(units, -1, *layer.normalized_shape).sum(dim=1) for name in neutral}
    return {name: _sum_by_channel(parts[name], units) for name in neutral}


def _sum_by_channel(values: Tensor, units: int) -> Tensor:
    """Return the sum of each unit's values, shape (item, channel, ...), in each channel, shape (unit, channel)."""
    of_items = values.flatten(2).sum(dim=2) if values.ndim > 2 else values
    return of_items.view(units, -1, values.shape[1]).sum(dim=1)
