from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional
from training_builder import TINY, network, records

import zetadp.core.evaluation
from zetadp.core.evaluation import outputs_of, predict, watched
from zetadp.core.records import LabelledItems
from zetadp.core.task import Classification
from zetadp.mri.decathlon import SEQUENCES
from zetadp.tasks.brain_sequences import BrainSequences

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


def test_scores_do_not_depend_on_how_many_go_at_once(monkeypatch):
    model, data = network(TINY), records(5)
    images = data.inputs
    whole = outputs_of(model, images)
    assert not whole.requires_grad
    torch.testing.assert_close(whole, model(images).detach())
    monkeypatch.setattr(zetadp.core.evaluation, "ITEMS_AT_ONCE", 3)
    torch.testing.assert_close(outputs_of(model, images), whole)


def test_predictions_name_patient_sequence_and_slice():
    images = torch.zeros(2, 3, 2, 4, 4)  # patient, sequence, slice, row, column
    answer = {}
    for patient, sequence, number in [(p, s, n) for p in range(2) for s in range(3) for n in range(2)]:
        guess = (sequence + patient * number) % 3  # the second slices of the second patient are all wrong
        images[patient, sequence, number, 0, guess] = 1.0 + patient
        answer[f"p{patient}", SEQUENCES[sequence], number] = SEQUENCES[guess], patient
    data = LabelledItems.stacked(images.flatten(1, 2).unsqueeze(2), torch.arange(3).repeat_interleave(2))
    items = pd.DataFrame({"patient": np.repeat(["p0", "p1"], 6), "slice": np.tile([0, 1], 6)})
    table = predict(BrainSequences(classes=3), FirstPixels(), data, items)
    assert len(table) == 12
    assert list(table.columns) == ["patient", "slice", "sequence", "predicted", "probability"]
    for row in table.itertuples():
        guess, patient = answer[row.patient, row.sequence, row.slice]
        assert row.predicted == guess
        expected = functional.softmax(torch.tensor([1.0 + patient, 0, 0]), dim=0)[0]
        assert row.probability == pytest.approx(float(expected), rel=1e-5)
    wrong = table[table["sequence"] != table["predicted"]]
    assert set(zip(wrong["patient"], wrong["slice"], strict=True)) == {("p1", 1)}
