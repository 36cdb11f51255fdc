from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from training_builder import TINY, network, records

import zetadp.training.evaluation
from zetadp.brain import BrainSequences
from zetadp.mri.decathlon import SEQUENCES
from zetadp.training.evaluation import outputs_of, watched, without_absent
from zetadp.training.records import LabelledItems
from zetadp.training.task import Classification

TASK = Classification(3)


class FirstPixels(nn.Module):
    """Scores are the first three pixels: what is right is known beforehand."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        assert images.ndim == 4
        assert images.shape[1] == 1
        return images[:, 0, 0, :3]


def test_accuracy_and_loss_are_means_over_all_images():
    images = torch.zeros(2, 3, 2, 4)
    for place, (record, image) in enumerate([(r, i) for r in range(2) for i in range(3)]):
        images[record, image, 0, image if place < 5 else 0] = 2.0  # all right but the last
    data = LabelledItems.stacked(images.unsqueeze(2), torch.tensor([0, 1, 2]))
    accuracy, loss = watched(TASK, FirstPixels(), data)
    assert accuracy == pytest.approx(5 / 6)
    right, wrong = -math.log(math.e**2 / (math.e**2 + 2)), -math.log(1 / (math.e**2 + 2))
    assert loss == pytest.approx((5 * right + wrong) / 6, rel=1e-6)


def test_absent_images_are_in_no_mean():
    images = torch.zeros(1, 3, 2, 4)
    images[0, 0, 0, 0] = images[0, 2, 0, 2] = 2.0
    whole = LabelledItems.stacked(images[:, [0, 2]].unsqueeze(2), torch.tensor([0, 2]))
    images[0, 1] = torch.nan
    lacking = LabelledItems.stacked(images.unsqueeze(2), torch.arange(3))
    lacking = replace(lacking, present=np.array([True, False, True]))
    assert watched(TASK, FirstPixels(), lacking) == watched(TASK, FirstPixels(), whole)
    # An activation may have made a number of the NaN.
    outputs = without_absent(torch.ones(3, 4), lacking.present)
    assert outputs.isnan().tolist() == [[False] * 4, [True] * 4, [False] * 4]


def test_scores_do_not_depend_on_how_many_go_at_once(monkeypatch):
    model, data = network(TINY), records(5)
    images = data.inputs
    whole = outputs_of(model, images)
    assert not whole.requires_grad
    torch.testing.assert_close(whole, model(images).detach())
    monkeypatch.setattr(zetadp.training.evaluation, "ITEMS_AT_ONCE", 3)
    torch.testing.assert_close(outputs_of(model, images), whole)


def test_predictions_name_the_true_and_the_predicted_class():
    truth, guesses = [0, 1, 2, 3], [0, 2, 1, 3]
    found = BrainSequences(decision="image").measure(2 * torch.eye(4)[guesses], torch.tensor(truth))
    assert list(found) == ["sequence", "predicted", "probability"]
    assert found["sequence"] == [SEQUENCES[place] for place in truth]
    assert found["predicted"] == [SEQUENCES[place] for place in guesses]
    assert found["probability"] == pytest.approx(math.e**2 / (math.e**2 + 3))
