"""Public networks: U-Nets that learnt to reconstruct simulated patients of another population than the private ones."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from papers.complex_dp.reconstruction.settings import PublicNetworkSettings
from zetadp.base.tensors import load_tensors, save_tensors, tensors_below
from zetadp.base.validation import UserError

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
        Weights by family and name of the parameter, joined by a point.
    """

    settings: PublicNetworkSettings
    weights: Mapping[str, Tensor]

    def start(self, network: NetworkSettings) -> dict[str, Tensor]:
        """Return the public starting weights of a network.

        Raises
        ------
        UserError
            If there is no public network of this family and shape.
        """
        families = self.settings.families
        public = self.settings.network(families[0])  # all families have one shape
        other = [name for name in SHAPE if getattr(network, name) != getattr(public, name)]
        if network.family not in families or other:
            differing = ", ".join(f"{name} {getattr(public, name)}" for name in other)
            raise UserError(
                f"Expected a network of a public family ({', '.join(families)}) and shape to start from public "
                f"weights, found family {network.family}; needed: {differing or 'another family'}."
            )
        return tensors_below(self.weights, f"{network.family}.")

    def tensors(self) -> dict[str, Tensor]:
        """Return all weights."""
        return dict(self.weights)

    def content(self) -> dict[str, Any]:
        """Return the metadata of the file."""
        return {"public": asdict(self.settings)}

    def save(self, path: Path) -> None:
        """Write the networks to a safetensors file, completely or not at all."""
        save_tensors(path, self.tensors(), self.content())

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
            return cls(PublicNetworkSettings(**content["public"]), tensors)
        except (KeyError, TypeError) as error:
            raise UserError(
                f"Expected {path} to hold public networks, found another file of zetadp: {error}."
            ) from error
