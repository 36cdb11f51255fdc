"""A finished model: the network, what its classes are called, and how its input is prepared."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from zetadp.dataset import standardise
from zetadp.kspace.fourier import to_kspace
from zetadp.kspace.whitening import whiten
from zetadp.nn.backbone import Backbone, from_tensors
from zetadp.nn.models import NetworkSettings, build
from zetadp.randomness import Purpose, stream
from zetadp.tensors import load_tensors, save_tensors
from zetadp.validation import UserError

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from torch import Tensor, nn

    from zetadp.core.plan import Plan

BACKBONE = "backbone."
"""What the names of the public backbone's tensors begin with in a model's file."""


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
    backbone
        The public backbone whose features the network takes, if it takes features.
    """

    network: nn.Module
    settings: NetworkSettings
    sequences: tuple[str, ...]
    size: int
    slices: int
    backbone: Backbone | None = None

    def prepare(self, values: np.ndarray) -> Tensor:
        """Turn slices or whitened k-space, shape (..., row, column), into what the network takes.

        Slices are transformed and whitened for a network on k-space; whitened k-space is taken as it is. Features are
        computed of either; those that were computed already are taken as they are.
        """
        if values.dtype.kind != "c" and self.settings.domain == "image":
            return torch.from_numpy(standardise(values))
        if self.backbone is not None and values.shape[-2:] == (1, self.backbone.components):
            return torch.from_numpy(values)
        kspace = values if values.dtype.kind == "c" else whiten(to_kspace(values))
        return torch.from_numpy(kspace if self.backbone is None else self.backbone.features(kspace))


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
        backbone = None
        if settings.domain == "features":
            public = {key.removeprefix(BACKBONE): value for key, value in tensors.items() if key.startswith(BACKBONE)}
            backbone = from_tensors(public, content["public"], device)
        inputs = size if backbone is None else backbone.components
        network = build(settings, len(sequences), inputs, stream(0, Purpose.WEIGHTS)).to(device)
        network.load_state_dict({key: value for key, value in tensors.items() if not key.startswith(BACKBONE)})
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        msg = f"Expected {path} to be a trained model of this version, found another file of zetadp: {error}."
        raise UserError(msg) from error
    network.eval().requires_grad_(requires_grad=False)
    return FinishedModel(network, settings, sequences, size, slices, backbone)


def save_model(
    path: Path, model: nn.Module, plan: Plan, *, sequences: tuple[str, ...], ledger_head: str, backbone: Backbone | None
) -> None:
    """Write a trained network with all that its use needs.

    Parameters
    ----------
    path
        The file, written whole or not at all.
    model, plan
        The network, and the plan that it was trained by.
    sequences
        Names of the classes, in the order of the scores.
    ledger_head
        Head of the training's ledger at its end.
    backbone
        The public backbone, which the file of a head holds as well: a head is of no use without it.
    """
    tensors = {key: value.detach().cpu() for key, value in model.named_parameters()}
    content: dict[str, Any] = {"ledger_head": ledger_head}
    if backbone is not None and plan.network.domain == "features":
        tensors |= {f"{BACKBONE}{key}": value.detach().cpu() for key, value in backbone.tensors().items()}
        content |= {"public": backbone.content()}
    settings = {**asdict(plan.network), "widths": list(plan.network.widths)}
    content |= model_content(settings, sequences, plan.task["slices"], plan.task["size"])
    save_tensors(path, tensors, content)


def model_content(settings: dict[str, Any], sequences: tuple[str, ...], slices: int, size: int) -> dict[str, Any]:
    """Return what a model's file says besides its weights: ``slices`` of each sequence, ``size`` pixels a side."""
    return {"network": settings, "sequences": list(sequences), "slices": slices, "size": size}
