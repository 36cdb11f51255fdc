"""Public networks: U-Nets that learnt to reconstruct simulated patients of another population than the private ones."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from zetadp.backbone.encoder import Learning
from zetadp.nn.models import build
from zetadp.nn.settings import NetworkSettings
from zetadp.randomness import Purpose, stream
from zetadp.tasks.reconstruction.masks import MaskSettings
from zetadp.tasks.reconstruction.simulated import Examinations
from zetadp.tensors import load_tensors, save_tensors
from zetadp.validation import UserError, one_of, positive

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

logger = logging.getLogger(__name__)

FAMILIES = ("unet", "real_unet")
SHAPE = ("widths", "convolutions", "activation")
"""Settings of a network in which it must agree with the public one that it starts from."""


@dataclass(frozen=True)
class PublicSettings:
    """How the public networks are made.

    Attributes
    ----------
    families
        Families of the networks.
    widths, convolutions, activation
        As of `zetadp.nn.settings.NetworkSettings`.
    patients
        Number of public patients.
    passes
        How often each slice is seen, each time with another mask.
    batch
        Slices of a step.
    learning_rate
        The highest rate of AdamW.
    seed
        Seed of patients, masks and starting weights.
    examinations
        What the public patients are (`zetadp.tasks.reconstruction.simulated.Examinations`).
    """

    families: Sequence[str] = ("unet",)
    widths: Sequence[int] = (8, 16, 32)
    convolutions: int = 1
    activation: str = "crelu"
    patients: int = 100
    passes: int = 12
    batch: int = 8
    learning_rate: float = 3e-3
    seed: int = 1000
    examinations: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check every setting."""
        for family in self.families:
            one_of(FAMILIES, families=family)
        positive(patients=self.patients, passes=self.passes, batch=self.batch, learning_rate=self.learning_rate)

    def network(self, family: str) -> NetworkSettings:
        """Return the settings of a public network."""
        shape = {"widths": tuple(self.widths), "convolutions": self.convolutions, "activation": self.activation}
        return NetworkSettings(family, **shape)  # type: ignore[arg-type]


@dataclass(frozen=True)
class PublicNetworks:
    """Public networks, one a family.

    Attributes
    ----------
    settings
        What they were made by.
    weights
        Weights of the network of each family.
    """

    settings: PublicSettings
    weights: Mapping[str, Mapping[str, Tensor]]

    @classmethod
    def fit(cls, settings: PublicSettings, masks: MaskSettings, size: int) -> Self:
        """Train the networks on simulated patients.

        Parameters
        ----------
        settings
            How.
        masks
            How lines are left out, as for the private patients.
        size
            Rows and columns of a slice.
        """
        kspace, target = public_slices(settings, size)
        found = {family: _fitted(settings, family, masks, kspace, target) for family in settings.families}
        return cls(settings, found)

    def start(self, network: NetworkSettings) -> dict[str, Tensor]:
        """Return the public starting weights of a network.

        Raises
        ------
        UserError
            If there is no public network of its family and shape.
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
        """Return all weights."""
        return {f"{family}.{name}": value for family, own in self.weights.items() for name, value in own.items()}

    def save(self, path: Path) -> None:
        """Write the networks to a safetensors file, whole or not at all."""
        content = {"public": {**asdict(self.settings), "examinations": dict(self.settings.examinations)}}
        save_tensors(path, self.tensors(), content)

    @classmethod
    def load(cls, path: Path, device: torch.device | str = "cpu") -> Self:
        """Read networks that `save` wrote.

        Raises
        ------
        UserError
            If the file is absent, damaged or another one.
        """
        tensors, content = load_tensors(path, device)
        try:
            own = content["public"]
            settings = PublicSettings(**{**own, "families": tuple(own["families"]), "widths": tuple(own["widths"])})
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"Expected {path} to hold public networks for reconstruction, found another file of zetadp: {error}."
            ) from error
        weights: dict[str, dict[str, Tensor]] = {family: {} for family in settings.families}
        for name, value in tensors.items():
            family, _, rest = name.partition(".")
            weights[family][rest] = value
        return cls(settings, weights)


def public_slices(settings: PublicSettings, size: int) -> tuple[Tensor, Tensor]:
    """Return complete k-space and targets of all public patients, both of shape (slice, size, size)."""
    common = replace(Examinations(**settings.examinations), size=size)
    made = [common.patient(settings.seed, number, "public").slices(size) for number in range(settings.patients)]
    logger.info("simulated %d public patients", settings.patients)
    kspace, target = (torch.from_numpy(np.concatenate(parts)) for parts in zip(*made, strict=True))
    return kspace, target


def _fitted(
    settings: PublicSettings, family: str, masks: MaskSettings, kspace: Tensor, target: Tensor
) -> dict[str, Tensor]:
    """Return the weights of a network that learnt of some slices, each seen with ever new masks."""
    random = stream(settings.seed, Purpose.PRETRAINING)
    model = build(settings.network(family), 1, kspace.shape[-1], random)
    steps = len(kspace) // settings.batch
    learning = Learning(model, settings.learning_rate, settings.passes * steps)
    for turn in range(settings.passes):
        total = 0.0
        for chosen in random.permutation(len(kspace))[: steps * settings.batch].reshape(steps, -1):
            lines = np.stack([masks.draw(kspace.shape[-1], random) for _ in chosen])
            seen = kspace[chosen] * torch.from_numpy(lines)[:, None]
            loss = (model(seen[:, None]) - target[chosen]).abs().mean()
            learning.step(loss)
            total += float(loss.detach())
        logger.info("%s, pass %d of %d: loss %.4f", family, turn + 1, settings.passes, total / steps)
    return {name: value.detach() for name, value in model.state_dict().items()}
