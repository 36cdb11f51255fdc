"""Public networks: U-Nets that learn to reconstruct simulated patients of another population than the private ones."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from zetadp.base.randomness import Purpose, stream
from zetadp.base.tensors import load_tensors, save_tensors
from zetadp.base.validation import UserError, settings_of
from zetadp.nn.models import build
from zetadp.tasks.encoder import learn
from zetadp.tasks.reconstruction.settings import FAMILIES, Examinations, MaskSettings, PublicNetworkSettings
from zetadp.tasks.reconstruction.simulated import examination

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from zetadp.nn.settings import NetworkSettings

SHAPE = ("widths", "convolutions", "activation")
"""Settings that a network must share with the public network from which it starts."""


@dataclass(frozen=True)
class PublicNetworks:
    """Public networks, one per family.

    Attributes
    ----------
    settings
        Settings with which the networks were trained.
    weights
        Weights by family, then by the name of the parameter.
    """

    settings: PublicNetworkSettings
    weights: Mapping[str, Mapping[str, Tensor]]

    def start(self, network: NetworkSettings) -> dict[str, Tensor]:
        """Return the public starting weights of a network.

        Raises
        ------
        UserError
            If there is no public network of this family and shape.
        """
        own = self.settings.network(network.family if network.family in FAMILIES else FAMILIES[0])
        other = [name for name in SHAPE if getattr(network, name) != getattr(own, name)]
        if network.family not in self.weights or other:
            differing = ", ".join(f"{name} {getattr(own, name)}" for name in other)
            families = ", ".join(self.weights)
            raise UserError(
                f"Expected a network of a public family ({families}) and shape to start from public weights, found "
                f"family {network.family}; needed: {differing or 'another family'}."
            )
        return dict(self.weights[network.family])

    def tensors(self) -> dict[str, Tensor]:
        """Return all weights, by family and name of the parameter."""
        return {f"{family}.{name}": value for family, own in self.weights.items() for name, value in own.items()}

    def save(self, path: Path) -> None:
        """Write the networks to a safetensors file, completely or not at all."""
        content = {"public": {**asdict(self.settings), "examinations": dict(self.settings.examinations)}}
        save_tensors(path, self.tensors(), content)

    @classmethod
    def load(cls, path: Path, device: torch.device | str = "cpu") -> Self:
        """Read networks that `save` wrote.

        Raises
        ------
        UserError
            If the file is missing or damaged, or does not contain public networks.
        """
        tensors, content = load_tensors(path, device)
        try:
            own = content["public"]
            settings = PublicNetworkSettings(
                **{**own, "families": tuple(own["families"]), "widths": tuple(own["widths"])}
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"Expected {path} to hold public networks for reconstruction, found another file of zetadp: {error}."
            ) from error
        weights: dict[str, dict[str, Tensor]] = {family: {} for family in settings.families}
        for name, value in tensors.items():
            family, _, rest = name.partition(".")
            weights[family][rest] = value
        return cls(settings, weights)


logger = logging.getLogger(__name__)


def fit(settings: PublicNetworkSettings, masks: MaskSettings, size: int) -> PublicNetworks:
    """Train the public networks on simulated patients.

    Parameters
    ----------
    settings
        Settings of the networks, the patients and the training.
    masks
        Settings of the masks, the same as for the private patients.
    size
        Rows and columns of a slice.

    Returns
    -------
    One network for each family in the settings.
    """
    kspace, target = public_slices(settings, size)
    found = {family: _fitted(settings, family, masks, kspace, target) for family in settings.families}
    return PublicNetworks(settings, found)


def make(*, networks: Path, settings: dict[str, Any], mask: dict[str, Any], size: int) -> None:
    """Train public networks with settings from the configuration, and write them."""
    fit(settings_of(PublicNetworkSettings, settings, "public"), MaskSettings(**mask), size).save(networks)


def public_slices(settings: PublicNetworkSettings, size: int) -> tuple[Tensor, Tensor]:
    """Return complete k-space (complex64) and targets (float32) of all public patients, shape (slice, size, size)."""
    common = replace(Examinations(**settings.examinations), size=size)
    made = [examination(common, settings.seed, number, "public").slices(size) for number in range(settings.patients)]
    logger.info("simulated %d public patients", settings.patients)
    kspace, target = (torch.from_numpy(np.concatenate(parts)) for parts in zip(*made, strict=True))
    return kspace, target


def _fitted(
    settings: PublicNetworkSettings, family: str, masks: MaskSettings, kspace: Tensor, target: Tensor
) -> dict[str, Tensor]:
    """Train a network on slices, with a new mask for each slice in each pass, and return its weights."""
    random = stream(settings.seed, Purpose.PRETRAINING)
    model = build(settings.network(family), 1, kspace.shape[-1], random)
    steps = len(kspace) // settings.batch
    logger.info("training %s", family)

    def losses() -> Iterator[Tensor]:
        for _ in range(settings.passes):
            for chosen in random.permutation(len(kspace))[: steps * settings.batch].reshape(steps, -1):
                lines = np.stack([masks.draw(kspace.shape[-1], random) for _ in chosen])
                seen = kspace[chosen] * torch.from_numpy(lines)[:, None]
                yield (model(seen[:, None]) - target[chosen]).abs().mean()

    learn(model, settings.learning_rate, settings.passes * steps, losses())
    return {name: value.detach() for name, value in model.state_dict().items()}
