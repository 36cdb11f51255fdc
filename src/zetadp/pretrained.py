"""A finished model: the network, what its classes are called, and how its input is prepared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from zetadp.checkpoint import load_tensors
from zetadp.dataset import standardise
from zetadp.kspace.fourier import to_kspace
from zetadp.kspace.whitening import whiten
from zetadp.nn.models import NetworkSettings, build
from zetadp.randomness import Purpose, stream
from zetadp.validation import UserError

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from torch import Tensor, nn


@dataclass(frozen=True)
class FinishedModel:
    """A trained network with all that its use needs.

    Attributes
    ----------
    network
        The network, in evaluation.
    settings
        Its architecture.
    sequences
        Names of the classes, in the order of the scores.
    size
        Side of the slices in pixels.
    slices
        Centre slices of a volume that it was trained on.
    """

    network: nn.Module
    settings: NetworkSettings
    sequences: tuple[str, ...]
    size: int
    slices: int

    def prepare(self, values: np.ndarray) -> Tensor:
        """Turn slices or whitened k-space, shape (..., row, column), into what the network takes.

        Slices are transformed and whitened for a network on k-space; whitened k-space is taken as it is.
        """
        if values.dtype.kind == "c":
            return torch.from_numpy(values)
        if self.settings.domain == "image":
            return torch.from_numpy(standardise(values))
        return torch.from_numpy(whiten(to_kspace(values)))


def load_model(path: Path, device: torch.device | str = "cpu") -> FinishedModel:
    """Read a model that training wrote.

    Raises
    ------
    UserError
        If the file is absent, damaged or not a model of this project.
    """
    tensors, content = load_tensors(path, device)
    try:
        settings = NetworkSettings(**content["network"])
        sequences, size, slices = tuple(content["sequences"]), content["size"], content["slices"]
        network = build(settings, len(sequences), size, stream(0, Purpose.WEIGHTS)).to(device)
        network.load_state_dict(tensors)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        msg = f"Expected {path} to be a trained model of this version, found another file of zetadp: {error}."
        raise UserError(msg) from error
    network.eval().requires_grad_(requires_grad=False)
    return FinishedModel(network, settings, sequences, size, slices)


def model_content(settings: dict[str, Any], sequences: tuple[str, ...], shape: tuple[int, ...]) -> dict[str, Any]:
    """Return what a model's file says besides its weights; ``shape`` is (record, sequence, slice, row, column)."""
    return {"network": settings, "sequences": list(sequences), "slices": shape[2], "size": shape[4]}
