from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from zetadp.base.validation import UserError
from zetadp.core.evaluation import watched
from zetadp.core.records import LabelledItems
from zetadp.tasks.ecg.task import Ecg
from zetadp.tasks.roc import area

RANDOM = np.random.default_rng(0)
LABELS = RANDOM.random(80) < 0.3
SCORES = np.round(RANDOM.normal(LABELS * 1.2), 1)  # with ties


def predictions(scores: np.ndarray, labels: np.ndarray, patients: list[str]) -> pd.DataFrame:
    named = np.where(labels, "LBBB", "normal")
    return pd.DataFrame({"patient": patients, "score": scores, "diagnosis": named})


def test_a_patients_score_is_the_mean_over_recordings():
    task = Ecg()
    found = task.summarise(predictions(np.array([2.0, -4.0, 0.5, 0.0]), np.array([1, 1, 1, 0]), ["a", "a", "b", "c"]))
    assert found["metric"] == "ROC-AUC"
    assert found["ROC-AUC"] == 0.5  # a has -1, b 0.5, c 0
    assert found["per_patient"] == {"a": 0.0, "b": 1.0, "c": 0.5}
    assert found["per_patient_images"] == {"a": 2, "b": 1, "c": 1}
    assert found["confusion"] == [[1, 0], [1, 1]]
    assert found["accuracy"] == pytest.approx(2 / 3)


def test_runs_on_the_same_patients_share_resamples():
    names = [f"p{n:02d}" for n in range(80)]
    one, other = (Ecg().summarise(predictions(scores, LABELS, names)) for scores in (SCORES, SCORES + 0.0))
    assert one["replicates"] == other["replicates"]
    assert len(one["replicates"]) == 2000
    low = one["ROC-AUC_interval"]["low"]
    assert low == pytest.approx(np.quantile(one["replicates"], 0.025), abs=1e-5)


def test_scores_that_are_not_finite_are_refused():
    with pytest.raises(UserError, match="finite"):
        Ecg().summarise(predictions(np.array([np.nan, 0.0]), np.array([1, 0]), ["a", "b"]))


def test_losses_are_binary_cross_entropies_and_what_is_watched_is_the_area():
    outputs, targets = torch.from_numpy(SCORES[:, None]).float(), torch.from_numpy(LABELS).float()
    p = torch.sigmoid(outputs[:, 0].double())
    expected = -(targets * p.log() + (1 - targets) * (1 - p).log())
    torch.testing.assert_close(Ecg().losses(outputs, targets).double(), expected, atol=1e-5, rtol=1e-5)
    metric, loss = watched(Ecg(), torch.nn.Identity(), LabelledItems(outputs, targets))
    assert metric == pytest.approx(area(SCORES, LABELS), abs=1e-6)
    assert loss == pytest.approx(expected.mean().item(), abs=1e-5)
