"""The networks: complex ones, their real twins, the linear baseline, and heads on features of the public backbone.

Classifiers take inputs of shape (image, 1, row, column), complex64 or float32 as their ``domain`` requires, and return
real class scores of shape (image, class). Features are complex64 images of one row. U-Nets return images.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from zetadp.base.complex_images import inverse_fourier
from zetadp.base.validation import UserError
from zetadp.nn.activations import ConjMish, Mish, activation
from zetadp.nn.layers import Conv2d, Linear, apply_weight, real_width
from zetadp.nn.normalisation import ComplexGroupNorm, GroupNorm, centre, transform, whitening
from zetadp.nn.settings import ONE_DIMENSION, OWN
from zetadp.nn.settings import NetworkSettings as NetworkSettings
from zetadp.nn.spectral import SpectrogramClassifier
from zetadp.nn.stacked import blocks, modulus, stack, unstack, uses_ordinary_operations
from zetadp.nn.unet import UNet

SIGNAL_POWER = 3.0
"""Power by which the signal's variance falls over the components of a head, from public patients (docs/settings.md)."""
UNTRAINED_BLOCK = 1 << 17
"""Numbers in a block without gradients. A block and its copy take 1 MiB in float32, as common L2 caches have."""


class ConvolutionalClassifier(nn.Module):
    """Convolution blocks and a classification head, complex or real.

    A complex network returns the modulus of its complex scores, a real one returns the scores themselves.

    Parameters
    ----------
    settings
        Settings of the network.
    classes
        Number of classes.
    size
        Side of the square images, in pixels.
    """

    def __init__(self, settings: NetworkSettings, classes: int, size: int) -> None:
        super().__init__()
        self.complex = settings.family == "complex"
        self.transform = settings.transform
        dtype = torch.complex64 if self.complex else torch.float32
        # A real network on k-space takes real and imaginary part as two channels.
        channels = 2 if not self.complex and settings.domain == "kspace" else 1
        widths = settings.widths if self.complex else tuple(real_width(w, settings.groups) for w in settings.widths)
        norm = ComplexGroupNorm if self.complex else GroupNorm
        blocks: list[nn.Module] = []
        for before, width in pairwise((channels, *widths)):
            for index in range(settings.convolutions):
                blocks += [
                    Conv2d(before if index == 0 else width, width, dtype=dtype),
                    norm(settings.groups, width),
                    self._activation(settings, width),
                ]
            last = blocks[-1]
            if isinstance(last, Mish):
                last.pooled = True
                blocks.append(nn.Identity())
            else:
                blocks.append(nn.AvgPool2d(2))
        self.blocks = nn.Sequential(*blocks)
        if settings.head == "hidden":
            features = widths[-1] * (size // 2 ** len(widths)) ** 2
            hidden = settings.hidden if self.complex else real_width(settings.hidden)
            self.head = nn.Sequential(
                Linear(features, hidden, dtype=dtype),
                self._activation(settings, hidden),
                Linear(hidden, classes, dtype=dtype),
            )
            self.pooled = False
        else:
            self.head = nn.Sequential(Linear(widths[-1], classes, dtype=dtype))
            self.pooled = True

    def _activation(self, settings: NetworkSettings, channels: int) -> nn.Module:
        return activation(settings.activation, channels) if self.complex else Mish()

    def features(self, images: Tensor) -> Tensor:
        """Return the inputs of the head, shape (image, feature); complex features are stacked."""
        x = self._run(self.blocks, self._stack_images(images))
        # Stacked tensors keep all real parts before all imaginary parts, so flattening and averaging act on both alike.
        return x.mean(dim=(2, 3)) if self.pooled else x.flatten(1)

    def layer_statistics(self, images: Tensor) -> Tensor:
        """Return statistics over pixels of a complex network's layers for images.

        Returns
        -------
        Real numbers of shape (image, statistic). After each activation and its pooling, if any, these are for every
        channel the mean of the real part and of the imaginary part, and the mean and standard deviation of the modulus.
        """
        x = self._stack_images(images)
        statistics: list[Tensor] = []
        layers = list(self.blocks)
        starts = [index for index, layer in enumerate(layers) if isinstance(layer, Conv2d)]
        for first, following in pairwise((*starts, len(layers))):
            x = self._run(nn.Sequential(*layers[first:following]), x)
            size = modulus(x).flatten(2)
            mean = size.mean(2)
            # torch.std takes twenty times as long on a processor.
            deviation = torch.linalg.vector_norm(size - mean[..., None], dim=2) / math.sqrt(size.shape[2] - 1)
            statistics += [x.mean((2, 3)), mean, deviation]
        return torch.cat(statistics, dim=1)

    def _stack_images(self, images: Tensor) -> Tensor:
        if self.transform == "fourier":
            images = inverse_fourier(images, torch)
        return stack(images) if images.is_complex() else images

    @staticmethod
    def _run(layers: nn.Sequential, x: Tensor) -> Tensor:
        fast = without_gradients(layers, x)
        outputs: Tensor = layers(x) if fast is None else fast
        return outputs

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores of shape (image, class) for images of shape (image, 1, row, column)."""
        x: Tensor = self.head(self.features(images))
        return modulus(x) if self.complex else x


class DenseClassifier(nn.Module):
    """Fully connected layers on all pixels of an image, or all values of a row, complex or real.

    A complex network returns the modulus of its complex scores. A real one uses ReLU, which is the cardioid of a real
    number.
    """

    def __init__(self, settings: NetworkSettings, classes: int, size: int) -> None:
        super().__init__()
        self.complex = settings.domain in {"complex", "spectrum"}
        values = size if settings.domain in ONE_DIMENSION else size * size
        dtype = torch.complex64 if self.complex else torch.float32
        layers: list[nn.Module] = []
        for before, width in pairwise((values, *settings.widths)):
            activate = activation(settings.activation, width) if self.complex else nn.ReLU()
            layers += [Linear(before, width, dtype=dtype), activate]
        self.layers = nn.Sequential(*layers, Linear(settings.widths[-1], classes, dtype=dtype))

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores of shape (image, class) for images of shape (image, 1, row, column)."""
        flat = images.flatten(1)
        x: Tensor = self.layers(stack(flat) if self.complex else flat)
        return modulus(x) if self.complex else x


class LinearClassifier(nn.Module):
    """Softmax regression on the log magnitude of every coefficient (or pixel), standardised per image."""

    def __init__(self, classes: int, size: int) -> None:
        super().__init__()
        self.affine = Linear(size * size, classes, dtype=torch.float32)

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores of shape (image, class) for images of shape (image, 1, row, column)."""
        features = (images.abs() + 1e-3).log().flatten(1)
        return self.affine(functional.layer_norm(features, features.shape[1:]))  # type: ignore[no-any-return]


def taper_factors(components: int, taper: float | str, power: float = SIGNAL_POWER) -> Tensor:
    """Return the factors by which a head multiplies its components, shape (component,).

    The square of a factor is the best shrinkage of a signal with variance ``(1 + i / 4) ** -power`` in noise with
    variance ``taper**2``. Without noise all factors are one.

    Raises
    ------
    UserError
        If the taper is not a number yet.
    """
    if isinstance(taper, str):
        raise UserError(f"Expected taper as a number, found {taper}, which a plan sets when it has its noise.")
    return (1 + taper**2 * (1 + torch.arange(components) / 4) ** power) ** -0.5


class HeadClassifier(nn.Module):
    """A complex affine map of complex features, with the real parts of its outputs as scores.

    The loss is convex in its weights, so few rounds with averaged weights are enough. With a taper, the weights act on
    scaled features, and the bias counts as much as the first of them. Their gradients are clipped like any other, so
    the guarantee does not change.
    """

    factors: Tensor

    def __init__(self, components: int, classes: int, taper: float | str = 0.0) -> None:
        super().__init__()
        self.components = components
        self.register_buffer("factors", taper_factors(components, taper), persistent=False)
        self.affine = Linear(components, classes, dtype=torch.complex64)

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores of shape (image, class) for features of shape (image, 1, 1, feature)."""
        first = self.factors[0]
        features = images.flatten(1)[:, : self.components] * (self.factors / first)
        real, _ = self.affine(stack(features)).chunk(2, dim=1)
        scores: Tensor = real * first
        return scores


def build(settings: NetworkSettings, classes: int, size: int, generator: np.random.Generator) -> nn.Module:
    """Return a network with newly drawn weights. Only its trained weights require a gradient.

    Parameters
    ----------
    settings
        Settings of the network.
    classes
        Number of classes; a U-Net ignores it.
    size
        Side of the square images in pixels; for a head the number of features, in one dimension the length.
    generator
        Source of the starting weights.

    Raises
    ------
    UserError
        If the network is of family ``own``.
    ValueError
        If the settings do not fit ``size``.
    """
    model: nn.Module
    if settings.family == OWN:
        raise UserError("Expected a PyTorch module for a network of family own, found none. Pass it to train as model.")
    if settings.family == "dense":
        model = DenseClassifier(settings, classes, size)
    elif settings.family == "spectrogram":
        model = SpectrogramClassifier(settings, classes)
    elif settings.family in {"unet", "real_unet"}:
        _check_side(size, len(settings.widths) - 1, "steps between widths")
        model = UNet(settings)
        _train(settings.trained, model, model.last, model.consistency)
    elif settings.family == "linear":
        model = LinearClassifier(classes, size)
    elif settings.family == "head":
        if settings.components > size:
            raise ValueError(
                f"Expected at most the {size} components that the features have, found {settings.components}."
            )
        model = HeadClassifier(settings.components or size, classes, settings.taper)
    else:
        _check_side(size, len(settings.widths), "blocks")
        model = ConvolutionalClassifier(settings, classes, size)
        _train(settings.trained, model, model.head)
    initialise(model, generator)
    if isinstance(model, UNet):
        nn.init.zeros_(model.last.weight)  # so that the first output is the zero-filled image
    return model


def _check_side(size: int, halvings: int, unit: str) -> None:
    """Refuse images whose side cannot be halved this often."""
    if size % 2**halvings:
        raise ValueError(f"Expected an image side divisible by 2 for each of {halvings} {unit}, found {size}.")


def _train(trained: str, model: nn.Module, *last: nn.Module) -> None:
    """Make only trained parameters require a gradient: all of them, or those of the last parts and of norms."""
    if trained == "all":
        return
    norms = [module for module in model.modules() if isinstance(module, (ComplexGroupNorm, GroupNorm))]
    model.requires_grad_(requires_grad=False)
    for part in (*last, *norms):
        part.requires_grad_(requires_grad=True)


@torch.no_grad()
def initialise(model: nn.Module, generator: np.random.Generator) -> None:
    """Draw the weights of every linear map by He's rule; biases become zero, scales and shifts do not change.

    Real and imaginary part of a complex weight come from ``N(0, 1 / fan_in)`` each. Its total variance is then
    ``2 / fan_in``, the value of He et al. (doi:10.1109/ICCV.2015.123) for a real weight.
    """
    maps = [module for module in model.modules() if isinstance(module, (Conv2d, Linear))]
    for module in maps:
        weight = module.weight
        fan_in = weight[0].numel()
        parts = torch.view_as_real(weight) if weight.is_complex() else weight
        spread = math.sqrt((1 if weight.is_complex() else 2) / fan_in)
        draw = generator.standard_normal(parts.shape, dtype=np.float32) * np.float32(spread)
        parts.copy_(torch.from_numpy(draw))
    for module in maps:
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def without_gradients(layers: Iterable[nn.Module], x: Tensor) -> Tensor | None:
    """Return the layers' output for stacked images; ``None`` with gradients, without a CPU, or for any other layer.

    In training, most of the time is spent on values for the backward pass: the centred images and the slopes of Mish.
    Without them, each block of images is normalised and activated in place while it is in cache, and Mish takes four
    passes, as :math:`x - 2x / ((1 + e^x)^2 + 1)`. The linear factors, ``1 + i`` of ConjMish and a quarter of 2x2
    pooling, are multiplied into the weights of the next convolution.

    Parameters
    ----------
    layers
        Repetitions of convolution, `ComplexGroupNorm` and `ConjMish`; identities are skipped.
    x
        Images of shape (image, 2 * channel, row, column).
    """
    steps = (
        None
        if torch.is_grad_enabled() or uses_ordinary_operations() or x.device.type != "cpu"
        else _group_layers(layers)
    )
    if steps is None:
        return None
    factor = 1 + 0j
    for convolution, norm, mish_layer in steps:
        x = apply_weight(x, factor * convolution.weight, convolution.geometry)
        x = _activate(x.contiguous(), norm, pooled=mish_layer.pooled)
        factor = 0.25 + 0.25j if mish_layer.pooled else 1 + 1j
    return stack(factor * unstack(x))


def _group_layers(layers: Iterable[nn.Module]) -> list[tuple[Conv2d, ComplexGroupNorm, ConjMish]] | None:
    """Group layers in threes; return ``None`` for a layer of another kind or with one weight per patient."""
    working = [layer for layer in layers if not isinstance(layer, nn.Identity)]
    steps = []
    while working:
        match working[:3]:
            case [Conv2d() as convolution, ComplexGroupNorm() as norm, ConjMish() as activation] if (
                convolution.weight.ndim == 4 and norm.scale.ndim == 1
            ):
                steps.append((convolution, norm, activation))
            case _:
                return None
        working = working[3:]
    return steps


def _activate(x: Tensor, norm: ComplexGroupNorm, *, pooled: bool) -> Tensor:
    """Normalise, apply Mish to both parts and, if ``pooled``, sum 2x2 neighbours; ``x`` is overwritten."""
    images, channels, rows, columns = x.shape
    out = x.new_empty(images, channels, rows // 2, columns // 2) if pooled else x
    scale, shift = (torch.view_as_real(parameter).unsqueeze(0) for parameter in (norm.scale, norm.shift))
    unit = x.new_ones(())
    parts = list(blocks(x, UNTRAINED_BLOCK))
    pairs = x.view(images, 2, channels // 2, -1)
    moments = x.new_empty(images, 3, norm.groups)
    for part in parts:
        moments[part] = centre(pairs[part], norm.groups, out=pairs[part])
    # For all images at once, because these are many operations on few numbers.
    matrix = whitening(moments, scale, norm.epsilon)
    for part in parts:
        block = x[part]
        value = torch.empty_like(block)
        transform(pairs[part], matrix[part], shift, out=value.view_as(pairs[part]))
        # The centred images are no longer needed, so Mish's divisor overwrites them. Where it overflows, Mish(x) is x.
        torch.exp(value, out=block).add_(1)
        torch.addcmul(unit, block, block, out=block)
        if pooled:
            value.addcdiv_(value, block, value=-2)
            upper, lower = value.view(len(block), channels, rows // 2, 2, columns).unbind(3)
            half = upper.add_(lower)
            torch.add(half[..., 0::2], half[..., 1::2], out=out[part])
        else:
            torch.addcdiv(value, value, block, value=-2, out=block)
    return out
