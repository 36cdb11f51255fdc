r"""Gradients of shared weights, one for each patient, by the kernel that suits the shape.

All kernels give the same numbers up to rounding. The rules:

- On a CPU, a convolution takes one call of the backend for each patient, which replaces autograd's call for all
  patients and has the same arithmetic. A complex convolution takes three real convolutions of half the channels instead
  of four, where ``kernel**2 * in * out / (in + out)`` of stacked channels is more than 300, or more than 200 if a call
  reads at most 8 MiB. The saved arithmetic then outweighs the cost of copying the factors into place (measured for 4
  and 20 images per patient, 1 and 2 threads). One call then serves as many patients as there are threads; with one
  patient per call, threads would wait for each other.
- On a GPU, a convolution takes one batched matrix product for many patients, of the unfolded input. Small calls, one
  for each patient, would leave the GPU idle.
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
    """Return the gradients of `convolution_gradients` by batched matrix products of the unfolded input."""
    inputs, outputs, (kernel, stride, padding) = x.shape[1], gradient.shape[1], geometry
    images = len(x) // patients
    of_a_patient = images * kernel**2 * inputs * gradient[0, 0].numel() * x.element_size()
    if of_a_patient > UNFOLDED_BYTES:
        return by_patient(x, gradient, patients, geometry, is_complex=is_complex)
    at_once = max(1, UNFOLDED_BYTES // max(1, of_a_patient))
    written_out = x.new_empty(patients, outputs, inputs * kernel**2)
    parts = (torch.split(t, at_once * size) for t, size in ((written_out, 1), (x, images), (gradient, images)))
    for target, part, g in zip(*parts, strict=True):
        patches = functional.pad(part, (padding,) * 4).unfold(2, kernel, stride).unfold(3, kernel, stride)
        # (patient, image, in, row, column, kernel, kernel): a view, which one copy brings into the order of the
        # product. Columns come last, as in the image, so that a GPU reads and writes neighbouring numbers together.
        patches = patches.view(-1, images, *patches.shape[1:])
        right = patches.permute(0, 2, 5, 6, 1, 3, 4).reshape(len(patches), inputs * kernel**2, -1)
        left = g.reshape(len(patches), images, outputs, -1).transpose(1, 2).reshape(len(patches), outputs, -1)
        torch.bmm(left, right.mT, out=target)
    written_out = written_out.view(patients, outputs, inputs, kernel, kernel)
    return fold_gradient(written_out) if is_complex else written_out


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
