"""Training of the public networks on simulated patients."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from papers.complex_dp.encoder import learn
from papers.complex_dp.reconstruction.public import PublicNetworks
from papers.complex_dp.reconstruction.settings import (
    SEED,
    Examinations,
    MaskSettings,
    PublicNetworkSettings,
    settings_of,
)
from papers.complex_dp.reconstruction.simulated import examination
from zetadp.base.randomness import Purpose, stream
from zetadp.nn.models import build

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RATE = 3e-3
"""Highest learning rate."""


def make(*, networks: Path, settings: dict[str, Any], mask: dict[str, Any], size: int) -> None:
    """Train a public network of each family on simulated patients, and write them.

    Parameters
    ----------
    networks
        File that is written (`PublicNetworks`).
    settings, mask
        Settings of networks, patients and training (`PublicNetworkSettings`), and of the masks, the same as for the
        private patients (`MaskSettings`).
    size
        Rows and columns of a slice.
    """
    public, masks = settings_of(PublicNetworkSettings, settings, "public"), MaskSettings(**mask)
    kspace, target = public_slices(public, size)
    weights: dict[str, Tensor] = {}
    for family in public.families:
        fitted = _fitted(public, family, masks, kspace, target)
        weights |= {f"{family}.{name}": value for name, value in fitted.items()}
    PublicNetworks(public, weights).save(networks)


def public_slices(settings: PublicNetworkSettings, size: int) -> tuple[Tensor, Tensor]:
    """Return complete k-space (complex64) and targets (float32) of all public patients, shape (slice, size, size)."""
    common = replace(Examinations(**settings.examinations), size=size)
    slices = [examination(common, SEED, number, "public").slices(size) for number in range(settings.patients)]
    kspace, target = (torch.from_numpy(np.concatenate(parts)) for parts in zip(*slices, strict=True))
    return kspace, target


def _fitted(
    settings: PublicNetworkSettings, family: str, masks: MaskSettings, kspace: Tensor, target: Tensor
) -> dict[str, Tensor]:
    """Train a network on slices, with a new mask for each slice in each pass, and return its weights."""
    random = stream(SEED, Purpose.PRETRAINING)
    model = build(settings.network(family), 1, kspace.shape[-1], random)
    steps = len(kspace) // settings.batch

    def losses() -> Iterator[Tensor]:
        for _ in range(settings.passes):
            for chosen in random.permutation(len(kspace))[: steps * settings.batch].reshape(steps, -1):
                lines = np.stack([masks.draw(kspace.shape[-1], random) for _ in chosen])
                seen = kspace[chosen] * torch.from_numpy(lines)[:, None]
                yield (model(seen[:, None]) - target[chosen]).abs().mean()

    learn(model, RATE, settings.passes * steps, losses())
    return {name: value.detach() for name, value in model.state_dict().items()}
