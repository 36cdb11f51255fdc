r"""Activations of complex tensors, acting on stacked real and imaginary parts.

The names and formulas are those of the literature on complex-valued networks. Of these formulas, the two papers behind
this project print only ConjMish, with a misprint in Mish. Below, :math:`z = x + iy` and :math:`\theta = \arg z`.
Trained biases are real parameters. They are part of the clipped gradient and receive noise like every other component.

PyTorch's own Mish takes a logarithm, an exponential and a hyperbolic tangent of every number, in the forward pass and
again in the backward pass. One logistic function is enough: with :math:`s = 1/(1 + e^{-x})` and :math:`p = s (2 - s)`,

.. math:: \tanh(\log(1 + e^x)) = \frac{p}{2 - p} =: t, \qquad
   \mathrm{Mish}(x) = x t, \qquad \mathrm{Mish}'(x) = t + s x (1 - t^2),

without loss of relative accuracy for any sign of x. The slope is saved for the backward pass. On a CPU the tensor is
split into blocks that stay in cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from zetadp.base.validation import one_of
from zetadp.mechanism.contributions import unit_layer
from zetadp.nn.layers import per_image
from zetadp.nn.stacked import accepts_complex, blocks, uses_ordinary_operations

# Below this modulus the phase of a number is noise; dividing by it would turn rounding into gradients.
SMALLEST_MODULUS = 1e-8
NEAREST_POLE = 0.01
"""Distance from a pole of the hyperbolic tangent below which its modulus no longer grows: it stays below 100."""


def mish(x: Tensor, *, pooled: bool = False) -> Tensor:
    """Return Misra's ``Mish(x) = x tanh(softplus(x))`` (arXiv:1908.08681) of a real tensor whose first axis is images.

    Parameters
    ----------
    x
        Any shape; (image, channel, row, column) with even sides if it is pooled.
    pooled
        Whether 2x2 average pooling follows.
    """
    if uses_ordinary_operations():
        value = functional.mish(x)
        return functional.avg_pool2d(value, 2) if pooled else value
    activated: Tensor = _Mish.apply(x, pooled)  # type: ignore[no-untyped-call]
    return activated


def conj_mish(x: Tensor, *, pooled: bool = False) -> Tensor:
    r"""Return ``(1 + i) Mish(x) - (1 - i) Mish(y)``, that is ``(1 + i) (Mish(x) + i Mish(y))``, of a stacked tensor.

    Riess et al., eq. 6, but with Mish as Misra defines it. The form printed in eq. 6,
    :math:`x \tanh(\log(e^x + 1)/x)`, is a misprint: it is positive for negative x. The product with ``1 + i`` is
    linear, so it comes after pooling, when a quarter of the numbers is left. Parameters as in `mish`.
    """
    real, imaginary = mish(x, pooled=pooled).chunk(2, dim=1)
    return torch.cat((real - imaginary, real + imaginary), dim=1)


def zrelu(x: Tensor) -> Tensor:
    """Return ``z`` where both parts are non-negative, else 0 (Guberman, arXiv:1602.09046)."""
    real, imaginary = _parts(x)
    keep = (real >= 0) & (imaginary >= 0)
    return x * torch.cat((keep, keep), dim=1)


def siglog(x: Tensor) -> Tensor:
    """Return ``z / (1 + |z|)`` (Georgiou and Koutsougeras 1992, doi:10.1109/82.142037, with c = r = 1)."""
    return _scale(x, 1 / (1 + _modulus(*_parts(x))))


def igaussian(x: Tensor, width: float = 0.4) -> Tensor:
    r"""Return :math:`(1 - e^{-|z|^2 / 2 w^2}) z/|z|` (Virtue et al., arXiv:1707.00070).

    The literature gives no width w; later code of the benchmark's first author uses 0.4.
    """
    modulus = _modulus(*_parts(x))
    # expm1 keeps the limit |z| / (2 w^2) near the origin, where 1 - exp cancels.
    return _scale(x, -torch.expm1(-modulus.square() / (2 * width**2)) / modulus)


def complex_tanh(x: Tensor) -> Tensor:
    r"""Return ``tanh(z)``, the hyperbolic tangent of a complex number (Kim and Adali 2003).

    :math:`\tanh z = (\tanh x + i \sin y \cos y\, (1 - \tanh^2 x)) / (\cos^2 y + \tanh^2 x \sin^2 y)`, a form without
    overflow (doi:10.1162/089976603321891846). Poles lie at :math:`z = i \pi (k + 1/2)`. Near a pole, the
    denominator is about the squared distance from it. It is clamped to at least `NEAREST_POLE` squared, so that values
    and gradients stay finite. At a pole itself the value is zero. Any fully complex activation has such points, because
    no non-constant function is both bounded and differentiable at every complex number (Liouville).
    """
    real, imaginary = _parts(x)
    slope, cosine, sine = real.tanh(), imaginary.cos(), imaginary.sin()
    below = (cosine.square() + (slope * sine).square()).clamp_min(NEAREST_POLE**2)
    return torch.cat((slope, sine * cosine * (1 - slope.square())), dim=1) / torch.cat((below, below), dim=1)


class Pointwise(nn.Module):
    """An activation without parameters.

    Parameters
    ----------
    function
        Function of stacked tensors.
    """

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    @accepts_complex
    def forward(self, x: Tensor) -> Tensor:
        """Apply to a stacked or complex tensor."""
        return self.function(x)


class Mish(nn.Module):
    """The function `mish`, for real tensors.

    Parameters
    ----------
    pooled
        Whether 2x2 average pooling follows. It is cheaper here than as a separate layer.
    """

    def __init__(self, *, pooled: bool = False) -> None:
        super().__init__()
        self.pooled = pooled

    def forward(self, x: Tensor) -> Tensor:
        """Apply to a real tensor."""
        return mish(x, pooled=self.pooled)


class ConjMish(Mish):
    """The function `conj_mish`; parameters as in `Mish`."""

    @accepts_complex
    def forward(self, x: Tensor) -> Tensor:
        """Apply to a stacked or complex tensor."""
        return conj_mish(x, pooled=self.pooled)


@unit_layer
class Cardioid(nn.Module):
    r""":math:`\tfrac12 (1 + \cos(\theta + b)) z` (Virtue et al., arXiv:1707.00070; rotated form ISMRM 2019, 0469).

    Parameters
    ----------
    biases
        Number of trained angles b: 0 for none, 1 for one per layer, or the number of channels.
    """

    def __init__(self, biases: int = 0) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(biases)) if biases else None

    @accepts_complex
    def forward(self, x: Tensor) -> Tensor:
        """Apply to a stacked or complex tensor."""
        real, imaginary = _parts(x)
        modulus = _modulus(real, imaginary)
        cosine = real / modulus
        if self.bias is not None:
            bias = _broadcast(self.bias, x)
            cosine = cosine * bias.cos() - imaginary / modulus * bias.sin()
        return _scale(x, (1 + cosine) / 2)


@unit_layer
class ModReLU(nn.Module):
    """``ReLU(|z| + b) z/|z|`` with trained b (Arjovsky et al., arXiv:1511.06464).

    Parameters
    ----------
    biases
        Number of trained thresholds b: 1 for one per layer, or the number of channels. They start at zero, which is the
        identity.
    """

    def __init__(self, biases: int = 1) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(biases))

    @accepts_complex
    def forward(self, x: Tensor) -> Tensor:
        """Apply to a stacked or complex tensor."""
        modulus = _modulus(*_parts(x))
        return _scale(x, functional.relu(modulus + _broadcast(self.bias, x)) / modulus)


ACTIVATIONS: dict[str, Callable[[int], nn.Module]] = {
    "conj_mish": lambda _: ConjMish(),
    "split_mish": lambda _: Pointwise(mish),  # ``Mish(x) + i Mish(y)``
    # ``s(x) + i s(y)`` with the logistic function s: Nitta 1997, doi:10.1016/S0893-6080(97)00036-1.
    "separable_sigmoid": lambda _: Pointwise(torch.sigmoid),
    "zrelu": lambda _: Pointwise(zrelu),
    "cardioid_per_channel": Cardioid,
    "siglog": lambda _: Pointwise(siglog),
    "modrelu_per_channel": ModReLU,
    "cardioid": lambda _: Cardioid(),
    "cardioid_single": lambda _: Cardioid(1),
    "modrelu": lambda _: ModReLU(1),
    # ``ReLU(x) + i ReLU(y)``: Trabelsi et al., arXiv:1705.09792.
    "crelu": lambda _: Pointwise(functional.relu),
    "igaussian": lambda _: Pointwise(igaussian),
    "complex_tanh": lambda _: Pointwise(complex_tanh),
}


def activation(name: str, channels: int) -> nn.Module:
    """Return the activation called ``name``, for ``channels`` complex channels."""
    one_of(ACTIVATIONS, activation=name)
    return ACTIVATIONS[name](channels)


def _parts(x: Tensor) -> tuple[Tensor, Tensor]:
    real, imaginary = x.chunk(2, dim=1)
    return real, imaginary


def _modulus(real: Tensor, imaginary: Tensor) -> Tensor:
    # The clamp gives the square root a finite (zero) gradient at the origin.
    return (real.square() + imaginary.square()).clamp_min(SMALLEST_MODULUS**2).sqrt()


def _scale(x: Tensor, factor: Tensor) -> Tensor:
    """Multiply a stacked tensor by real factors, one for each complex number."""
    return x * torch.cat((factor, factor), dim=1)


def _broadcast(bias: Tensor, x: Tensor) -> Tensor:
    """Return a bias of shape (channel or 1,) for a stacked tensor, to be broadcast over images and positions."""
    spread = per_image(bias, len(x))
    return spread[(...,) + (None,) * (x.ndim - 2)]


class _Mish(torch.autograd.Function):
    """Mish, then 2x2 average pooling if it is ``pooled``. The slope of Mish is saved for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pooled: bool) -> Tensor:  # noqa: ANN401  (PyTorch's)
        x = x.contiguous()
        slope = torch.empty_like(x)
        value = x.new_empty(*x.shape[:2], x.shape[2] // 2, x.shape[3]) if pooled else torch.empty_like(x)
        for part in blocks(x):
            factor = torch.empty_like(x[part]) if pooled else value[part]
            _factor_and_slope(x[part], factor, slope[part])
            if pooled:
                # Mish itself is never stored: the sum of each pair of rows is computed directly.
                upper, lower = _row_pairs(x[part]).unbind(3)
                upper_factor, lower_factor = _row_pairs(factor).unbind(3)
                torch.mul(upper, upper_factor, out=value[part])
                value[part].addcmul_(lower, lower_factor)
            else:
                factor.mul_(x[part])
        ctx.pooled = pooled
        ctx.save_for_backward(slope)
        return (value[..., 0::2] + value[..., 1::2]).mul_(0.25) if pooled else value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401  (PyTorch's)
        (slope,) = ctx.saved_tensors
        if not ctx.pooled:
            return gradient * slope, None
        columns = (0.25 * gradient).repeat_interleave(2, dim=3)
        return (_row_pairs(slope) * columns.unsqueeze(3)).view(slope.shape), None


def _factor_and_slope(x: Tensor, factor: Tensor, slope: Tensor) -> None:
    """Write Mish(x) / x and Mish'(x)."""
    s = torch.sigmoid(x)
    p = torch.rsub(s, 2).mul_(s)
    torch.div(p, torch.rsub(p, 2), out=factor)
    # The middle factor of the slope's second term: x (1 - t^2) = x - x t t.
    torch.mul(x, factor, out=p)
    torch.addcmul(x, p, factor, value=-1, out=p)
    torch.addcmul(factor, s, p, out=slope)


def _row_pairs(x: Tensor) -> Tensor:
    images, channels, rows, columns = x.shape
    return x.view(images, channels, rows // 2, 2, columns)
