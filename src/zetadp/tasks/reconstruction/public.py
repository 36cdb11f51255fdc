"""Public networks: U-Nets that learnt to reconstruct simulated patients of another population than the private ones."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

from zetadp.nn.settings import NetworkSettings
from zetadp.tensors import load_tensors, save_tensors
from zetadp.validation import UserError, one_of, positive

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import torch
    from torch import Tensor

FAMILIES = ("unet", "real_unet")
SHAPE = ("widths", "convolutions", "activation")
"""Settings of a network in which it must agree with the public one that it starts from."""


@dataclass(frozen=True)
class PublicNetworkSettings:
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
        What the public patients are (`zetadp.tasks.reconstruction.examinations.Examinations`).
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

    settings: PublicNetworkSettings
    weights: Mapping[str, Mapping[str, Tensor]]

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
