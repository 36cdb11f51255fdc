"""What a network that starts from public weights is before any private training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zetadp.nn.low_rank import updates
from zetadp.nn.models import build
from zetadp.randomness import Purpose, stream

if TYPE_CHECKING:
    from torch import nn

    from zetadp.nn.backbone import Backbone
    from zetadp.pretrained import FinishedModel


def public_start(model: FinishedModel, backbone: Backbone) -> nn.Module:
    """Return the network of a finished model as it was before its training, with the backbone's public weights."""
    inputs = backbone.components if model.settings.domain == "features" else model.size
    network = build(model.settings, len(model.sequences), inputs, stream(0, Purpose.WEIGHTS))
    # Low-rank updates have no public weights: as drawn, they change nothing.
    network.load_state_dict({**updates(network), **backbone.start(model.settings)})
    return network.to(backbone.centre.device).eval()
