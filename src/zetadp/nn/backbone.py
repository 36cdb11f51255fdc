"""The public backbone: a frozen network that was trained on simulated patients only, and its features.

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
from zetadp.nn.models import ConvolutionalClassifier, NetworkSettings, build, taper_factors
from zetadp.nn.settings import SHIPPED

AT_ONCE = 512
"""Number of images in one pass."""
SHIFTS = ((0, 0), (1, -1), (0, -1), (1, 0))
"""Places of an image, in pixels (down, right): all that the first pooling of two pixels tells apart."""


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
    places
        Number of places, the first of `SHIFTS`, to which an image is moved; its features are the means over them. More
        places make features depend less on where a head lies, and take as many times as long.
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
    places: int = 1

    @property
    def components(self) -> int:
        """Number of complex components of a feature vector."""
        return self.projection.shape[1] // 2

    @torch.no_grad()
    def features(self, kspace: np.ndarray) -> np.ndarray:
        """Return the features of images from their k-space.

        Each image is divided by its root mean square (`scaled`) and seen from `places` of it. It is not whitened:
        whitening scales the real and the imaginary part of its k-space apart, which changes an image that is moved.

        Parameters
        ----------
        kspace
            k-space of any scale, complex64 array of shape (..., row, column).

        Returns
        -------
        complex64 array of shape (..., 1, component): images of one row, so that they can be handled like images. Each
        image is treated by itself, unless the backbone is `centred`. Then an image's features depend on all images of
        the call, so never pass images of two patients together.

        Raises
        ------
        UserError
            If the images do not have the size that the backbone was trained on.
        """
        if kspace.shape[-2:] != (self.size, self.size):
            raise UserError(
                f"The backbone was trained on slices of {self.size} x {self.size} pixels, found {kspace.shape[-2]} x "
                f"{kspace.shape[-1]}. Set slices.size to {self.size}, or pretrain a backbone of that size."
            )
        images = torch.from_numpy(np.ascontiguousarray(kspace)).reshape(-1, 1, self.size, self.size)
        device = self.centre.device
        parts = [
            (self._outputs(part.to(device)) - self.centre) @ self.projection for part in torch.split(images, AT_ONCE)
        ]
        found = torch.view_as_complex(torch.cat(parts).view(-1, self.components, 2))
        found = less_their_mean(found) if self.centred else found
        return found.reshape(*kspace.shape[:-2], 1, self.components).cpu().numpy()

    def _outputs(self, kspace: Tensor) -> Tensor:
        """Return the network's outputs for k-space (image, 1, row, column), as means over places."""
        read = self.network.layer_statistics if self.layers else self.network.features
        kspace = scaled(kspace)
        total = read(kspace)
        for shift in SHIFTS[1 : self.places]:
            total = total + read(moved(kspace, shift))
        return total / self.places

    def record_features(self, values: np.ndarray) -> np.ndarray:
        """Return `features` of records of k-space, shape (record, sequence, ..., row, column).

        Records are processed one at a time. A record's images then stay in a processor's cache, and no bit of its
        features depends on other records. The features of a sequence that a record lacks are NaN.

        Returns
        -------
        complex64 array of shape (record, ..., 1, component).
        """
        found = np.full((*values.shape[:-2], 1, self.components), np.nan, dtype=np.complex64)
        for place, known in enumerate(present(values)):
            found[place, known] = self.features(values[place, known])
        return found

    def start(self, settings: NetworkSettings) -> dict[str, Tensor]:
        """Return the public starting weights of a network: those of a head, or all of a network of the same shape.

        A head with a taper has weights that give the scores of the public head all the same.

        Raises
        ------
        UserError
            If there is no public head for this number of components, or the network has another shape.
        """
        if settings.family == "head":
            wanted = settings.components or self.components
            if wanted not in self.heads:
                known = ", ".join(map(str, sorted(self.heads)))
                raise UserError(f"Expected a public head for one of {known} components, found {wanted}.")
            weight, bias = self.heads[wanted]
            if settings.taper:
                factors = taper_factors(wanted, settings.taper).to(weight.device)
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
        found = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        found |= {"centre": self.centre, "projection": self.projection}
        for count, (weight, bias) in self.heads.items():
            found |= {f"head.{count}.weight": weight, f"head.{count}.bias": bias}
        return {name: value.contiguous() for name, value in found.items()}

    def content(self) -> dict[str, Any]:
        """Return the metadata of the file."""
        return {
            "backbone": self.settings.to_json(),
            "sequences": list(self.sequences),
            "size": self.size,
            "provenance": dict(self.provenance),
            "places": self.places,
        } | {name: True for name in ("layers", "centred") if getattr(self, name)}

    def save(self, path: Path) -> None:
        """Write the backbone to a safetensors file, whole or not at all."""
        save_tensors(path, self.tensors(), self.content())


def scaled(kspace: Tensor) -> Tensor:
    """Return k-space (..., row, column) divided by each image's root mean square; both parts have unit variance."""
    return kspace * (2 / kspace.abs().square().mean(dim=(-2, -1), keepdim=True)).sqrt()


def moved(kspace: Tensor, shift: tuple[int, int]) -> Tensor:
    """Return the k-space of images that are moved by whole pixels (down, right); what leaves returns opposite."""
    down, right = (
        torch.exp(-2j * torch.pi * pixels * (torch.arange(side, device=kspace.device) - side // 2) / side)
        for pixels, side in zip(shift, kspace.shape[-2:], strict=True)
    )
    return kspace * down[:, None] * right


def less_their_mean(features: Tensor) -> Tensor:
    """Return complex features of one record's images, shape (image, ...), less their mean over the images."""
    parts = torch.view_as_real(features)
    return torch.view_as_complex(parts - parts.mean(dim=0))


def shipped_backbone(network: NetworkSettings) -> Path:
    """Return the file of the packaged backbone with the features that a network takes."""
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
        places=content["places"],
    )
