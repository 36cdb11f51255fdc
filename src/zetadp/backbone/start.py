"""Inputs of a run from the public backbone: starting weights, features, or both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from zetadp.core.plan import Plan
from zetadp.core.pretrained import FinishedModel
from zetadp.nn.backbone import Backbone, load_backbone
from zetadp.nn.layers import updates
from zetadp.nn.models import build
from zetadp.nn.settings import SHIPPED, NetworkSettings
from zetadp.randomness import Purpose, stream
from zetadp.tensors import tensors_digest
from zetadp.validation import UserError


def starting_weights(network: NetworkSettings, backbone: Backbone | None) -> dict[str, Tensor] | None:
    """Return a network's public starting weights, or None if it starts at random.

    Raises
    ------
    UserError
        If it starts from a backbone and none is given.
    """
    if network.start != "public":
        return None
    if backbone is None:
        msg = f"Expected start random for a network of family {network.family}: its task has no public backbone."
        raise UserError(msg)
    return backbone.start(network)


def with_public(plan: Plan, backbone: Backbone | None) -> Plan:
    """Return a plan with the hashes of its inputs from a backbone."""
    if backbone is None:
        return plan
    start = starting_weights(plan.network, backbone)
    digests = {} if start is None else {"start": tensors_digest(start)}
    return plan.with_public(backbone=tensors_digest(backbone.tensors()), **digests)


def backbone_of(plan: Plan, file: Path | None, device: torch.device | str = "cpu") -> Backbone | None:
    """Return the backbone that a plan names, or None.

    Parameters
    ----------
    plan
        The plan.
    file
        The backbone's file; None takes the one that comes with the package for the network's domain.
    device
        Where to compute.

    Raises
    ------
    UserError
        If the file is another backbone.
    """
    wanted = plan.public.get("backbone")
    if wanted is None:
        return None
    file = file or shipped_backbone(plan.network)
    found = load_backbone(file, device)
    digest = tensors_digest(found.tensors())
    if digest != wanted:
        raise UserError(
            f"Expected the public backbone of the plan ({wanted[:12]}), found another in {file} ({digest[:12]})."
        )
    return found


def shipped_backbone(network: NetworkSettings) -> Path:
    """Return the file of the backbone that comes with the package, with the features that a network takes."""
    return Path(__file__).parents[1] / SHIPPED.get(network.domain, SHIPPED["features"])


def record_features(backbone: Backbone, values: np.ndarray) -> np.ndarray:
    """Return the features of records of whitened k-space, shape (record, ..., row, column), as `Backbone.features`.

    One record at a time: its images stay in the cache of a processor, and no bit depends on which records are together.
    """
    found = np.empty((*values.shape[:-2], 1, backbone.components), dtype=np.complex64)
    for place, record in enumerate(values):
        found[place] = backbone.features(record)
    return found


def public_start(model: FinishedModel, backbone: Backbone) -> nn.Module:
    """Return the network of a finished model as it was before its training, with the backbone's public weights."""
    network = build(model.settings, model.task.outputs, model.inputs, stream(0, Purpose.WEIGHTS))
    # Low-rank updates have no public weights: as drawn, they change nothing.
    start = backbone.start(model.settings)
    network.load_state_dict({**updates(network), **start})
    return network.to(next(iter(start.values())).device).eval()
