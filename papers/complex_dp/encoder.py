"""Public encoders: a network trained on simulated items, and principal axes of its features and of others.

An encoder turns an item into features of norm one. Those of an item depend on this item alone. Nothing in an encoder
comes from a cohort, so its features cost no privacy.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from zetadp.base.logs import PROGRESS
from zetadp.base.randomness import Purpose, stream
from zetadp.base.storage import Items
from zetadp.base.tensors import fix_signs, load_tensors, save_tensors, tensors_below
from zetadp.base.validation import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    Extract = Callable[[Tensor], Tensor]

progress = logging.getLogger(PROGRESS)

NAMES = ("centre", "axes", "variances")
HALVED = 3
"""Number of convolutions after which sizes are halved, counted from the first."""
NETWORK = "network."
"""Prefix of the network's tensors in an encoder's file."""
WHITENING = 0.5
"""Strength of whitening: 0 leaves the components' variances on public items as they are, 1 makes them all equal."""
AT_ONCE = 1000
"""Number of items whose coefficients are in memory at once; for scattering they take 16 MB."""


@dataclass(frozen=True)
class Axes:
    """A public map from an item to features.

    Attributes
    ----------
    extract
        Function from items of shape (item, ...) to coefficients of shape (item, coefficient). The
        coefficients of an item depend on that item only.
    centre
        Mean of the coefficients of public items, shape (coefficient,).
    axes
        Principal axes of these coefficients, the one of largest variance first, shape (coefficient, component).
    variances
        Variance of the coefficients along each axis, shape (component,).
    """

    extract: Extract
    centre: Tensor
    axes: Tensor
    variances: Tensor

    @torch.no_grad()
    def components(self, items: Tensor) -> Tensor:
        """Return principal components of items, shape (item, component)."""
        starts = range(0, len(items), AT_ONCE)
        return torch.cat([(self.extract(items[at : at + AT_ONCE]) - self.centre) @ self.axes for at in starts])

    def scaled(self, components: Tensor) -> Tensor:
        """Return features of norm one from `components`, both of shape (item, component)."""
        return unit(components * self.variances ** (-WHITENING / 2))


@torch.no_grad()
def fit_axes(extract: Extract, items: Tensor, components: int) -> Axes:
    """Compute principal axes from public items.

    Parameters
    ----------
    extract
        As in `Axes`.
    items
        Public items, shape (item, ...). They must not come from the data set that is trained on.
    components
        Number of axes.
    """
    total, second = torch.zeros(()), torch.zeros(())
    for start in range(0, len(items), AT_ONCE):
        part = extract(items[start : start + AT_ONCE])
        total, second = total + part.sum(dim=0), second + part.T @ part
    centre = total / len(items)
    # In double precision, because for covariances of low rank MKL's float32 routine sometimes returns NaN or fails.
    variances, axes = torch.linalg.eigh((second / len(items) - torch.outer(centre, centre)).double())
    axes = fix_signs(axes.flip(1)[:, :components]).float().contiguous()
    return Axes(extract, centre, axes, variances.flip(0)[:components].float().clamp_min(1e-6).contiguous())


def unit(vectors: Tensor) -> Tensor:
    """Return vectors of shape (item, component) scaled to norm one; a zero vector stays zero."""
    scaled: Tensor = vectors / vectors.norm(dim=1, keepdim=True).clamp_min(1e-12)
    return scaled


def learn(network: nn.Module, rate: float, steps: int, losses: Iterable[Tensor]) -> None:
    """Train a network on public items, by AdamW with a learning rate that rises and falls once.

    Parameters
    ----------
    network
        Network that is changed in place.
    rate
        Highest learning rate.
    steps
        Total number of steps.
    losses
        Loss of each step. The next loss is computed after the network was changed.
    """
    optimiser = torch.optim.AdamW(network.parameters(), rate, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps)
    for number, loss in enumerate(losses, 1):
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
        if number % max(1, steps // 10) == 0:
            progress.info("step %d of %d, loss %.3f", number, steps, float(loss.detach()))


class PublicEncoder(nn.Module, ABC):
    """An encoder of items: a network that learns from simulated items, and principal axes of its hidden layer or more.

    The network has convolutions, each with normalisation within the item, then a hidden layer and a head. A task's own
    class says with class attributes how large they are and how much they learn. It defines how the network learns.

    Attributes
    ----------
    parts
        Principal axes of the outputs of each of `maps`.
    """

    of: ClassVar[str]
    """Name of the items in error messages."""
    recipe: ClassVar[dict[str, int]]
    """Numbers that an encoder follows from: its ``seed``, and how much it learns from. They stand in its file."""
    component_keys: ClassVar[tuple[str, ...]]
    """Keys of `recipe` with the number of components of each of `parts`."""
    names: ClassVar[Sequence[str]] = ("record",)
    """Columns of texts in a file of items."""
    channels: ClassVar[int] = 1
    """Channels of an item. With one channel, items have no axis of channels."""
    axes: ClassVar[int] = 2
    """Axes of an item that convolutions run along."""
    widths: ClassVar[Sequence[int]]
    """Channels of each convolution."""
    kernel: ClassVar[int] = 3
    flat: ClassVar[int]
    """Number of values that the hidden layer takes: the size of what `pooled` returns."""
    hidden_units: ClassVar[int]
    outputs: ClassVar[int]

    def __init__(self) -> None:
        super().__init__()
        self.parts = tuple[Axes, ...]()
        convolution, pool = (nn.Conv1d, nn.MaxPool1d) if self.axes == 1 else (nn.Conv2d, nn.MaxPool2d)
        layers: list[nn.Module] = []
        for number, (before, width) in enumerate(pairwise((self.channels, *self.widths))):
            layers += [convolution(before, width, self.kernel, padding=self.kernel // 2), nn.GroupNorm(4, width)]
            layers += [nn.ReLU(), *([pool(2)] if number < HALVED else [])]
        self.blocks = nn.Sequential(*layers)
        self.hidden = nn.Linear(self.flat, self.hidden_units)
        self.head = nn.Linear(self.hidden_units, self.outputs)

    @abstractmethod
    def learn_simulated(self, random: np.random.Generator) -> Tensor:
        """Train the network on simulated items, and return simulated items for the principal axes."""

    def maps(self) -> tuple[Extract, ...]:
        """Return the functions from items to coefficients, each item on its own, in the order of `parts`."""
        return (self.hidden_layer,)

    def hidden_layer(self, items: Tensor) -> Tensor:
        """Return the hidden layer, shape (item, hidden unit), for items of shape (item, ...)."""
        channels = items.unsqueeze(1) if self.channels == 1 else items
        return functional.relu(self.hidden(self.pooled(self.blocks(channels))))

    def pooled(self, maps: Tensor) -> Tensor:
        """Return the outputs of the convolutions as the hidden layer takes them, shape (item, `flat`)."""
        return maps.flatten(1)

    def forward(self, items: Tensor) -> Tensor:
        """Return the head's outputs, shape (item, `outputs`)."""
        outputs: Tensor = self.head(self.hidden_layer(items))
        return outputs

    @classmethod
    def fit(cls) -> Self:
        """Train the network and find the principal axes, on simulated items alone."""
        random = stream(cls.recipe["seed"], Purpose.WEIGHTS)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(random.integers(2**31)))
            encoder = cls()
        items = encoder.learn_simulated(random)
        encoder.eval().requires_grad_(requires_grad=False)
        pairs = zip(encoder.maps(), cls.component_keys, strict=True)
        encoder.parts = tuple(fit_axes(extract, items, cls.recipe[key]) for extract, key in pairs)
        return encoder

    @classmethod
    def make(cls, *, encoder: Path) -> None:
        """Fit the encoder, and write it."""
        cls.fit().save(encoder)

    def features(self, items: np.ndarray) -> np.ndarray:
        """Return features of norm one, complex64, shape (item, 1, 1, component), for items of shape (item, ...)."""
        return np.asarray(self.unit_features(torch.from_numpy(items)).to(torch.complex64)[:, None, None].numpy())

    @classmethod
    def encode(cls, *, records: Path, encoder: Path, features: Path) -> None:
        """Write the features of all items of a file, each computed from this item alone."""
        items = Items.read(records, names=cls.names)
        values = cls.load(encoder).features(items.arrays["values"])
        axes = ("item", "channel", "row", "component")
        Items({**items.arrays, "values": values}, items.names).write(features, axes, "1")

    def unit_features(self, items: Tensor) -> Tensor:
        """Return features of norm one, shape (item, component), from the partly whitened components of all parts."""
        return unit(torch.cat([part.scaled(part.components(items)) for part in self.parts], dim=1))

    def tensors(self) -> dict[str, Tensor]:
        """Return all weights and axes."""
        tensors = {f"{NETWORK}{name}": value for name, value in self.state_dict().items()}
        for number, part in enumerate(self.parts):
            tensors |= {f"{number}.{name}": getattr(part, name) for name in NAMES}
        return tensors

    def save(self, path: Path) -> None:
        """Write the encoder to a safetensors file, completely or not at all."""
        save_tensors(path, self.tensors(), {"encoder": self.recipe, "of": self.of})

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read an encoder that `save` wrote.

        Raises
        ------
        UserError
            If the file is missing or damaged, or is not an encoder of these items.
        """
        tensors, content = load_tensors(path)
        if content.get("of") != cls.of:
            raise UserError(f"Expected {path} to be an encoder of {cls.of}, found another file of zetadp.")
        encoder = cls()
        encoder.load_state_dict(tensors_below(tensors, NETWORK))
        encoder.eval().requires_grad_(requires_grad=False)
        encoder.parts = tuple(
            Axes(extract, *(tensors[f"{number}.{name}"] for name in NAMES))
            for number, extract in enumerate(encoder.maps())
        )
        return encoder
