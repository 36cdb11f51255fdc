"""Public encoders: a network trained on simulated items, and principal axes of its features and of others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor, nn

from zetadp.backbone.axes import Axes, unit
from zetadp.base.tensors import load_tensors, save_tensors
from zetadp.base.validation import UserError

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from zetadp.backbone.axes import Extract

Settings = TypeVar("Settings")
Network = TypeVar("Network", bound=nn.Module)
NAMES = ("centre", "axes", "variances")


@dataclass(frozen=True)
class PublicEncoder(ABC, Generic[Settings, Network]):
    """An encoder of items; a task defines the network and the items.

    Attributes
    ----------
    settings
        Settings of its training.
    network
        The network, trained on simulated items.
    parts
        Principal axes of the outputs of each of `maps`.
    """

    settings: Settings
    network: Network
    parts: tuple[Axes, ...]

    of: ClassVar[str]
    """Name of the items in error messages."""
    key: ClassVar[str] = "encoder"
    """Key of the settings in a file."""
    kinds: ClassVar[tuple[type, type[nn.Module]]]
    """Classes of settings and network."""

    @staticmethod
    @abstractmethod
    def maps(network: Any) -> tuple[Extract, ...]:  # noqa: ANN401  (the network's class is the task's)
        """Return the functions from items to coefficients, each item on its own, in the order of `parts`."""

    def joined(self, items: Tensor, *counts: int) -> Tensor:
        """Return features of norm one, shape (item, component), from the partly whitened components of all parts.

        Parameters
        ----------
        items
            Items of shape (item, ...).
        *counts
            For each part, the number of components that are used, counted from the first.
        """
        scaled = [part.scaled(part.components(items), n) for part, n in zip(self.parts, counts, strict=True)]
        return unit(torch.cat(scaled, dim=1))

    def tensors(self) -> dict[str, Tensor]:
        """Return all weights and axes."""
        found = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        for number, part in enumerate(self.parts):
            found |= {f"{number}.{name}": getattr(part, name) for name in NAMES}
        return found

    def save(self, path: Path) -> None:
        """Write the encoder to a safetensors file, whole or not at all."""
        save_tensors(path, self.tensors(), {self.key: asdict(self.settings)})  # type: ignore[call-overload]

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read an encoder that `save` wrote.

        Raises
        ------
        UserError
            If the file is absent, damaged or not such an encoder.
        """
        tensors, content = load_tensors(path)
        settings, kind = cls.kinds
        try:
            network = kind().eval().requires_grad_(requires_grad=False)
            own = {name.removeprefix("network."): t for name, t in tensors.items() if name.startswith("network.")}
            network.load_state_dict(own)
            parts = [
                Axes(extract, *(tensors[f"{number}.{name}"] for name in NAMES))
                for number, extract in enumerate(cls.maps(network))
            ]
            return cls(settings(**content[cls.key]), network, tuple(parts))  # type: ignore[arg-type]
        except (KeyError, TypeError, RuntimeError) as error:
            raise UserError(
                f"Expected {path} to be an encoder of {cls.of}, found another file of zetadp: {error}."
            ) from error


def new(kind: type[Network], random: np.random.Generator) -> Network:
    """Return a network whose weights are drawn with a seed from ``random``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(random.integers(2**31)))
        return kind()


class Learning:
    """Ordinary training of a network on public items, by AdamW with a learning rate that rises and falls once.

    Parameters
    ----------
    network
        Network that is changed in place.
    rate
        Highest learning rate.
    steps
        Total number of steps.
    """

    def __init__(self, network: nn.Module, rate: float, steps: int) -> None:
        self.optimiser = torch.optim.AdamW(network.parameters(), rate, weight_decay=1e-2)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimiser, rate, total_steps=steps)

    def step(self, loss: Tensor) -> None:
        """Move the weights along the gradient of a loss."""
        self.optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        self.schedule.step()
