"""Public networks: U-Nets that learnt to reconstruct simulated patients of another population than the private ones."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Self

from zetadp.base.tensors import load_tensors, save_tensors
from zetadp.base.validation import UserError
from zetadp.tasks.reconstruction.settings import FAMILIES, PublicNetworkSettings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch
    from torch import Tensor

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
