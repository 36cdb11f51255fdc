"""Inputs of a run from the public backbone: starting weights, features, or both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from zetadp.base.randomness import Purpose, stream
from zetadp.base.tensors import tensors_digest
from zetadp.base.validation import UserError
from zetadp.core.plan import Plan
from zetadp.core.pretrained import FinishedModel
from zetadp.nn.backbone import Backbone, load_backbone
from zetadp.nn.models import build, taper_factors
from zetadp.nn.settings import SHIPPED, NetworkSettings


def starting_weights(network: NetworkSettings, backbone: Backbone | None) -> dict[str, Tensor] | None:
    """Return a network's public starting weights, or None if it starts at random.

    Raises
    ------
    UserError
        If it starts from a backbone and none is given, or the backbone has no weights for it.
    """
    if network.start != "public":
        return None
    if backbone is None:
        msg = f"Expected start random for a network of family {network.family}: its task has no public backbone."
        raise UserError(msg)
    return _public_weights(network, backbone)


def _public_weights(network: NetworkSettings, backbone: Backbone) -> dict[str, Tensor]:
    found = backbone.start(network)
    if network.taper:
        weight = found["affine.weight"]
        factors = taper_factors(weight.shape[1], network.taper).to(weight.device)
        found |= {"affine.weight": weight / factors, "affine.bias": found["affine.bias"] / factors[0]}
    return found


def with_public(plan: Plan, backbone: Backbone | None) -> Plan:
    """Return a plan with the hashes of its inputs from a backbone."""
    if backbone is None:
        return plan
    start = starting_weights(plan.network, backbone)
    digests = {} if start is None else {"start": tensors_digest(start)}
    return plan.with_public(backbone=tensors_digest(backbone.tensors()), **digests)


def backbone_of(plan: Plan, file: Path | None, device: torch.device | str = "cpu") -> Backbone | None:
    """Return the backbone that a plan names, or None if it names none.

    Parameters
    ----------
    plan
        The plan.
    file
        The backbone's file; None takes the packaged one for the network's domain.
    device
        Device of the backbone.

    Raises
    ------
    UserError
        If the file is no backbone, or another one than the plan's.
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
    """Return the file of the packaged backbone with the features that a network takes."""
    return Path(__file__).parents[1] / SHIPPED.get(network.domain, SHIPPED["features"])


def record_features(backbone: Backbone, values: np.ndarray) -> np.ndarray:
    """Return `Backbone.features` of records of whitened k-space, shape (record, ..., row, column).

    Records are processed one at a time. A record's images then stay in a processor's cache, and no bit of its features
    depends on other records.

    Returns
    -------
    complex64 array of shape (record, ..., 1, component).
    """
    found = np.empty((*values.shape[:-2], 1, backbone.components), dtype=np.complex64)
    for place, record in enumerate(values):
        found[place] = backbone.features(record)
    return found


def public_start(model: FinishedModel, backbone: Backbone) -> nn.Module:
    """Return the network of a finished model with the public weights from before its training, in evaluation mode."""
    network = build(model.settings, model.task.outputs, model.inputs, stream(0, Purpose.WEIGHTS))
    start = _public_weights(model.settings, backbone)
    network.load_state_dict(start)
    return network.to(next(iter(start.values())).device).eval()
