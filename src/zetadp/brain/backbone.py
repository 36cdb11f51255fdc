"""The public backbone: a frozen network trained on simulated patients only, and its features.

It was trained without private patients, so it costs no privacy. Its components are ordered: on public images, the first
are the most informative about the pulse sequence. A head that takes few components has few weights and little noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zetadp.base.randomness import Purpose, stream
from zetadp.base.storage import present
from zetadp.base.tensors import load_tensors, save_tensors, tensors_below
from zetadp.base.validation import UserError
from zetadp.brain.settings import SHIPPED
from zetadp.nn.models import ConvolutionalClassifier, NetworkSettings, build, taper_factors

AT_ONCE = 512
"""Number of images in one pass."""
SHIFTS = ((0, 0), (1, -1), (0, -1), (1, 0))
"""Shifts of an image in pixels (down, right): all positions relative to the first 2x2 pooling."""


@dataclass(frozen=True)
class Backbone:
    """A frozen network, with statistics of its features on public images.

    Attributes
    ----------
    network
        The network, in evaluation mode and without gradients.
    settings
        Its architecture: a complex network with a pooled head.
    sequences
        Names of the classes, in the order of the scores.
    size
        Side of the slices that it was trained on, in pixels.
    centre
        Mean of the network's outputs on public images, shape (number,). The outputs are the stacked features, real
        parts first, or the statistics of all layers.
    projection
        Matrix from centred outputs, as rows, to real components of unit variance, the most informative first; shape
        (number, 2 * component). Two neighbours are real and imaginary part of a complex component.
    heads
        By number of complex components, the affine head that is best on public images: complex weight of shape
        (class, component) and bias of shape (class,). The real parts of its outputs are the scores.
    provenance
        Settings, data and measurements of its training.
    layers
        Whether features are computed from the statistics of all layers (`ConvolutionalClassifier.layer_statistics`)
        instead of the last layer's channels.
    centred
        Whether the mean over the images of one call, those of one record, is subtracted from the features.
    shifts
        Number of shifts, the first of `SHIFTS`; the features of an image are the means over them. More shifts make
        features depend less on the position of the head; the computing time is proportional to their number.
    """

    network: ConvolutionalClassifier
    settings: NetworkSettings
    sequences: tuple[str, ...]
    size: int
    centre: Tensor
    projection: Tensor
    heads: Mapping[int, tuple[Tensor, Tensor]]
    provenance: Mapping[str, Any]
    layers: bool = False
    centred: bool = False
    shifts: int = 1

    @property
    def components(self) -> int:
        """Number of complex components of a feature vector."""
        return self.projection.shape[1] // 2

    @torch.no_grad()
    def features(self, kspace: np.ndarray) -> np.ndarray:
        """Return the features of images from their k-space.

        Each image is divided by its root mean square (`normalise_scale`) and shifted (`shifts`). It is not whitened:
        whitening scales the real and the imaginary part of its k-space differently, which changes a shifted image.

        Parameters
        ----------
        kspace
            k-space of any scale, complex64 array of shape (..., row, column).

        Returns
        -------
        complex64 array of shape (..., 1, component): images of one row, so that they can be handled like images. Each
        image is processed separately, unless the backbone is `centred`. Then an image's features depend on all images
        of the call, so never pass images of two patients together.

        Raises
        ------
        UserError
            If the images do not have the size that the backbone was trained on.
        """
        if kspace.shape[-2:] != (self.size, self.size):
            raise UserError(
                f"The backbone was trained on slices of {self.size} x {self.size} pixels, found {kspace.shape[-2]} x "
                f"{kspace.shape[-1]}. Set task.settings.size to {self.size}, or pretrain a backbone of that size."
            )
        images = torch.from_numpy(np.ascontiguousarray(kspace)).reshape(-1, 1, self.size, self.size)
        device = self.centre.device
        parts = [
            (self._outputs(part.to(device)) - self.centre) @ self.projection for part in torch.split(images, AT_ONCE)
        ]
        features = torch.view_as_complex(torch.cat(parts).view(-1, self.components, 2))
        features = subtract_mean(features) if self.centred else features
        return features.reshape(*kspace.shape[:-2], 1, self.components).cpu().numpy()

    def _outputs(self, kspace: Tensor) -> Tensor:
        """Return the network's outputs for k-space (image, 1, row, column), as means over shifts."""
        read = self.network.layer_statistics if self.layers else self.network.features
        kspace = normalise_scale(kspace)
        total = read(kspace)
        for shift in SHIFTS[1 : self.shifts]:
            total = total + read(shift_images(kspace, shift))
        return total / self.shifts

    def record_features(self, values: np.ndarray) -> np.ndarray:
        """Return `features` of records of k-space, shape (record, sequence, ..., row, column).

        Records are processed one at a time. A record's images then stay in a processor's cache, and no bit of its
        features depends on other records. The features of a sequence that a record lacks are NaN.

        Returns
        -------
        complex64 array of shape (record, ..., 1, component).
        """
        features = np.full((*values.shape[:-2], 1, self.components), np.nan, dtype=np.complex64)
        for index, available in enumerate(present(values)):
            features[index, available] = self.features(values[index, available])
        return features

    def start(self, settings: NetworkSettings) -> dict[str, Tensor]:
        """Return the public starting weights of a network: those of a head, or all of a network of the same shape.

        The weights of a head with a taper still give the scores of the public head.

        Raises
        ------
        UserError
            If the backbone has no public head with this number of components, or the network has another shape.
        """
        if settings.family == "head":
            count = settings.components or self.components
            if count not in self.heads:
                counts = ", ".join(map(str, sorted(self.heads)))
                raise UserError(f"Expected a public head for one of {counts} components, found {count}.")
            weight, bias = self.heads[count]
            if settings.taper:
                factors = taper_factors(count, settings.taper).to(weight.device)
                weight, bias = weight / factors, bias / factors[0]
            return {"affine.weight": weight, "affine.bias": bias}
        shape = ("widths", "convolutions", "head", "groups", "activation", "transform")
        other = [name for name in shape if getattr(settings, name) != getattr(self.settings, name)]
        if other:
            differing = ", ".join(f"{name} {getattr(self.settings, name)}" for name in other)
            raise UserError(f"A network that starts from the public backbone must have its shape: {differing}.")
        return dict(self.network.state_dict())

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that `from_tensors` needs together with `content`."""
        tensors = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        tensors |= {"centre": self.centre, "projection": self.projection}
        for count, (weight, bias) in self.heads.items():
            tensors |= {f"head.{count}.weight": weight, f"head.{count}.bias": bias}
        return {name: value.contiguous() for name, value in tensors.items()}

    def content(self) -> dict[str, Any]:
        """Return the metadata of the file."""
        return {
            "backbone": self.settings.to_json(),
            "sequences": list(self.sequences),
            "size": self.size,
            "provenance": dict(self.provenance),
            "places": self.shifts,
        } | {name: True for name in ("layers", "centred") if getattr(self, name)}

    def save(self, path: Path) -> None:
        """Write the backbone to a safetensors file, whole or not at all."""
        save_tensors(path, self.tensors(), self.content())


def normalise_scale(kspace: Tensor) -> Tensor:
    """Return k-space (..., row, column) divided by each image's root mean square; both parts have unit variance."""
    return kspace * (2 / kspace.abs().square().mean(dim=(-2, -1), keepdim=True)).sqrt()


def shift_images(kspace: Tensor, shift: tuple[int, int]) -> Tensor:
    """Return the k-space of images shifted by whole pixels (down, right), with periodic boundaries."""
    down, right = (
        torch.exp(-2j * torch.pi * pixels * (torch.arange(side, device=kspace.device) - side // 2) / side)
        for pixels, side in zip(shift, kspace.shape[-2:], strict=True)
    )
    return kspace * down[:, None] * right


def subtract_mean(features: Tensor) -> Tensor:
    """Return complex features of one record's images, shape (image, ...), less their mean over the images."""
    parts = torch.view_as_real(features)
    return torch.view_as_complex(parts - parts.mean(dim=0))


def shipped_backbone(network: NetworkSettings) -> Path:
    """Return the file of the packaged backbone whose features a network takes."""
    return Path(__file__).parents[1] / SHIPPED.get(network.domain, SHIPPED["features"])


def load_backbone(path: Path, device: torch.device | str = "cpu") -> Backbone:
    """Read a backbone.

    Raises
    ------
    UserError
        If the file is absent, damaged or not a backbone.
    """
    tensors, content = load_tensors(path, device)
    try:
        return from_tensors(tensors, content, device)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"Expected {path} to be a backbone of this version, found another file of zetadp: {error}."
        ) from error


def from_tensors(tensors: Mapping[str, Tensor], content: Mapping[str, Any], device: torch.device | str) -> Backbone:
    """Return the backbone that `Backbone.tensors` and `Backbone.content` describe; other tensors are ignored."""
    settings = NetworkSettings(**content["backbone"])
    sequences, size = tuple(content["sequences"]), int(content["size"])
    network = build(settings, len(sequences), size, stream(0, Purpose.WEIGHTS)).to(device)
    if not isinstance(network, ConvolutionalClassifier):
        raise TypeError(f"expected a convolutional network, found family {settings.family}")
    network.load_state_dict(tensors_below(tensors, "network."))
    network.eval().requires_grad_(requires_grad=False)
    counts = [int(name.split(".")[1]) for name in tensors if name.startswith("head.") and name.endswith(".weight")]
    return Backbone(
        network=network,
        settings=settings,
        sequences=sequences,
        size=size,
        centre=tensors["centre"],
        projection=tensors["projection"],
        heads={count: (tensors[f"head.{count}.weight"], tensors[f"head.{count}.bias"]) for count in counts},
        provenance=content["provenance"],
        layers=content.get("layers", False),
        centred=content.get("centred", False),
        shifts=content["places"],
    )
