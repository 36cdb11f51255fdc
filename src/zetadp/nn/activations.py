r"""Activations of complex tensors, acting on stacked real and imaginary parts.

The names and formulas are those of the literature on complex-valued networks. Of these formulas, the two papers behind
this project print only ConjMish, with a misprint in Mish. Below, :math:`z = x + iy` and :math:`\theta = \arg z`.
Trained biases are real parameters. They are part of the clipped gradient and receive noise like every other component.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from zetadp.base.validation import one_of
from zetadp.nn.layers import PatientLayer, per_image
from zetadp.nn.mish import conj_mish, mish, pooled_conj_mish, pooled_mish

# Below this modulus the phase of a number is noise; dividing by it would turn rounding into gradients.
SMALLEST_MODULUS = 1e-8
NEAREST_POLE = 0.01
"""Distance from a pole of the hyperbolic tangent below which its modulus no longer grows: it stays below 100."""


def _split(x: Tensor) -> tuple[Tensor, Tensor]:
    real, imaginary = x.chunk(2, dim=1)
    return real, imaginary


def _modulus(real: Tensor, imaginary: Tensor) -> Tensor:
    # The clamp gives the square root a finite (zero) gradient at the origin.
    return (real.square() + imaginary.square()).clamp_min(SMALLEST_MODULUS**2).sqrt()


class SplitMish(nn.Module):
    """``Mish(x) + i Mish(y)`` with Misra's ``Mish(x) = x tanh(softplus(x))``."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply to a stacked tensor."""
        return mish(x)


class ConjMish(nn.Module):
    r"""``(1 + i) Mish(x) - (1 - i) Mish(y)``, that is ``(1 + i) (Mish(x) + i Mish(y))``.

    Riess et al., eq. 6, but with Mish as Misra defines it (arXiv:1908.08681). The form printed in eq. 6,
    :math:`x \tanh(\log(e^x + 1)/x)`, is a misprint: it is positive for negative x.

    Parameters
    ----------
    pooled
        Whether 2x2 average pooling follows. It is cheaper here than as a separate layer.
    """

    def __init__(self, *, pooled: bool = False) -> None:
        super().__init__()
        self.pooled = pooled

    def forward(self, x: Tensor) -> Tensor:
        """Apply to a stacked tensor."""
        return pooled_conj_mish(x) if self.pooled else conj_mish(x)


class Mish(nn.Module):
    """Misra's ``Mish(x) = x tanh(softplus(x))`` of real tensors.

    Parameters
    ----------
    pooled
        Whether 2x2 average pooling follows.
    """

    def __init__(self, *, pooled: bool = False) -> None:
        super().__init__()
        self.pooled = pooled

    def forward(self, x: Tensor) -> Tensor:
        """Apply to a real tensor."""
        return pooled_mish(x) if self.pooled else mish(x)


class ZReLU(nn.Module):
    """``z`` where both parts are non-negative, else 0 (Guberman, arXiv:1602.09046)."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply to a stacked tensor."""
        real, imaginary = _split(x)
        keep = (real >= 0) & (imaginary >= 0)
        return x * torch.cat((keep, keep), dim=1)


class SigLog(nn.Module):
    """``z / (1 + |z|)`` (Georgiou and Koutsougeras 1992, doi:10.1109/82.142037, with c = r = 1)."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply to a stacked tensor."""
        factor = 1 / (1 + _modulus(*_split(x)))
        return x * torch.cat((factor, factor), dim=1)


class IGaussian(nn.Module):
    r""":math:`(1 - e^{-|z|^2 / 2 w^2}) z/|z|` (Virtue et al., arXiv:1707.00070).

    Parameters
    ----------
    width
        The width w. The literature gives none; later code of the benchmark's first author uses 0.4.
    """

    def __init__(self, width: float = 0.4) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        """Apply to a stacked tensor."""
        modulus = _modulus(*_split(x))
        # expm1 keeps the limit |z| / (2 w^2) near the origin, where 1 - exp cancels.
        factor = -torch.expm1(-modulus.square() / (2 * self.width**2)) / modulus
        return x * torch.cat((factor, factor), dim=1)


class ComplexTanh(nn.Module):
    r"""``tanh(z)``, the hyperbolic tangent of a complex number (Kim and Adali 2003, doi:10.1162/089976603321891846).

    :math:`\tanh z = (\tanh x + i \sin y \cos y\, (1 - \tanh^2 x)) / (\cos^2 y + \tanh^2 x \sin^2 y)`, a form in
    which nothing overflows. Poles lie at :math:`z = i \pi (k + 1/2)`. Near a pole, the denominator is about the squared
    distance from it. It is clamped to at least `NEAREST_POLE` squared, so that values and gradients stay finite. At a
    pole itself the value is zero. Any fully complex activation has such points, because no non-constant function is
    both bounded and differentiable at every complex number (Liouville).
    """

    def forward(self, x: Tensor) -> Tensor:
        """Apply to a stacked tensor."""
        real, imaginary = _split(x)
        slope, cosine, sine = real.tanh(), imaginary.cos(), imaginary.sin()
        below = (cosine.square() + (slope * sine).square()).clamp_min(NEAREST_POLE**2)
        return torch.cat((slope, sine * cosine * (1 - slope.square())), dim=1) / torch.cat((below, below), dim=1)


class Cardioid(PatientLayer):
    r""":math:`\tfrac12 (1 + \cos(\theta + b)) z` (Virtue et al., arXiv:1707.00070; rotated form ISMRM 2019, 0469).

    Parameters
    ----------
    biases
        Number of trained angles b: 0 for none, 1 for one a layer, or the number of channels.
    """

    def __init__(self, biases: int = 0) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(biases)) if biases else None

    def forward(self, x: Tensor) -> Tensor:
        """Apply to a stacked tensor."""
        real, imaginary = _split(x)
        modulus = _modulus(real, imaginary)
        cosine = real / modulus
        if self.bias is not None:
            bias = _spread(self.bias, x)
            cosine = cosine * bias.cos() - imaginary / modulus * bias.sin()
        factor = (1 + cosine) / 2
        return x * torch.cat((factor, factor), dim=1)


class ModReLU(PatientLayer):
    """``ReLU(|z| + b) z/|z|`` with trained b (Arjovsky et al., arXiv:1511.06464).

    Parameters
    ----------
    biases
        Number of trained thresholds b: 1 for one a layer, or the number of channels. They start at zero, which is the
        identity.
    """

    def __init__(self, biases: int = 1) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(biases))

    def forward(self, x: Tensor) -> Tensor:
        """Apply to a stacked tensor."""
        modulus = _modulus(*_split(x))
        factor = functional.relu(modulus + _spread(self.bias, x)) / modulus
        return x * torch.cat((factor, factor), dim=1)


def _spread(bias: Tensor, x: Tensor) -> Tensor:
    """Return a bias of shape (channel or 1,) for a stacked tensor, to be broadcast over images and positions."""
    spread = per_image(bias, len(x), 1)
    return spread[(...,) + (None,) * (x.ndim - 2)]


ACTIVATIONS: dict[str, Callable[[int], nn.Module]] = {
    "conj_mish": lambda _: ConjMish(),
    "split_mish": lambda _: SplitMish(),
    # ``s(x) + i s(y)`` with the logistic function s: Nitta 1997, doi:10.1016/S0893-6080(97)00036-1.
    "separable_sigmoid": lambda _: nn.Sigmoid(),
    "zrelu": lambda _: ZReLU(),
    "cardioid_per_channel": Cardioid,
    "siglog": lambda _: SigLog(),
    "modrelu_per_channel": ModReLU,
    "cardioid": lambda _: Cardioid(),
    "cardioid_single": lambda _: Cardioid(1),
    "modrelu": lambda _: ModReLU(1),
    # ``ReLU(x) + i ReLU(y)``: Trabelsi et al., arXiv:1705.09792.
    "crelu": lambda _: nn.ReLU(),
    "igaussian": lambda _: IGaussian(),
    "complex_tanh": lambda _: ComplexTanh(),
}


def activation(name: str, channels: int) -> nn.Module:
    """Return the activation called ``name``, for stacked tensors of ``channels`` complex channels."""
    one_of(ACTIVATIONS, activation=name)
    return ACTIVATIONS[name](channels)
