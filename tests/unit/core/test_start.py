"""What public weights reach alone is measured on the network that training starts from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from training_builder import CLASSES, SIZE, backbone, network, patients

from zetadp.base.validation import UserError
from zetadp.core.pretrained import FinishedModel, starting_weights
from zetadp.core.task import task_of
from zetadp.nn.heads import head_scores
from zetadp.nn.models import NetworkSettings, build

TASK = {"name": "brain_sequences", "slices": 3, "size": SIZE}


@pytest.mark.parametrize(("components", "taper"), [(2, 0.0), (0, 0.0), (2, 1.5)])
def test_a_head_starts_as_the_public_head(components, taper):
    public = backbone()
    settings = NetworkSettings("head", "features", components=components, start="public", taper=taper)
    trained = build(settings, CLASSES, 4, np.random.default_rng(1))
    start = FinishedModel(trained, settings, task_of(TASK), "brain_sequences", 4, public).public_start(public)
    features = torch.randn(5, 1, 1, 4, dtype=torch.complex64)
    expected = head_scores(features[:, 0, 0], public.heads[components or 4])
    torch.testing.assert_close(start(features), expected)
    assert not torch.allclose(trained(features), expected)


@pytest.mark.parametrize("trained", ["all", "norms"])
def test_a_whole_network_starts_as_the_backbone(trained):
    public = backbone()
    settings = replace(public.settings, trained=trained, start="public")
    finished = network(settings, 5)
    for parameter in finished.parameters():
        parameter.data += 0.1  # updates of a trained network are not those it began with
    images, _ = patients(1, 6)
    start = FinishedModel(finished, settings, task_of(TASK), "brain_sequences", SIZE).public_start(public)
    torch.testing.assert_close(start(images[0]), public.network(images[0]))


def test_a_public_start_without_a_backbone_is_refused_and_not_taken_for_a_random_one():
    network = NetworkSettings(family="head", domain="features", start="public")
    with pytest.raises(UserError, match="no public backbone"):
        starting_weights(network, None)
    assert starting_weights(replace(network, start="random"), None) is None
