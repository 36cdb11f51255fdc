"""Spoken commands as a task: whose clips a network is given, and what its predictions are worth."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from zetadp.core.evaluation import predict
from zetadp.core.records import Records
from zetadp.tasks.roc import macro_area
from zetadp.tasks.speech_commands import SpeechCommands
from zetadp.tasks.speech_commands.clips import WORDS

CPU = torch.device("cpu")
COUNT = 24


def predictions(unit: str, speakers: int = 12, each: int = 10) -> tuple[pd.DataFrame, torch.Tensor, torch.Tensor]:
    count = speakers * each
    random = torch.Generator().manual_seed(0)
    targets = torch.arange(count) % 8
    outputs = torch.randn(count, 8, generator=random) + 1.5 * torch.nn.functional.one_hot(targets)
    clips = [f"c{n:03d}" for n in range(count)]
    owners = [f"s{n // each:02d}" for n in range(count)]
    items = pd.DataFrame({"clip": clips, "speaker": owners, "patient": clips if unit == "clip" else owners})
    task = SpeechCommands(unit=unit)
    return predict(task, torch.nn.Identity(), Records(outputs, targets), items), outputs, targets


def test_metrics_are_of_speakers_whatever_the_unit_of_training():
    task = SpeechCommands()
    found, outputs, targets = predictions("clip")
    metrics = task.summarise(found)
    expected = float(macro_area(targets.numpy(), outputs.double().softmax(dim=1).numpy())[0])
    assert metrics["metric"] == "auc"
    assert metrics["auc"] == pytest.approx(expected, abs=1e-6)
    # What is watched is a mean over clips, and the same.
    assert float(task.scores(outputs, targets).mean()) == pytest.approx(expected, abs=1e-6)
    assert metrics["auc_interval"]["low"] < expected < metrics["auc_interval"]["high"]
    assert metrics["accuracy"] == pytest.approx(float((outputs.argmax(dim=1) == targets).float().mean()))
    assert set(metrics["per_patient"]) == {f"s{n:02d}" for n in range(12)}
    assert set(metrics["per_patient_images"].values()) == {10}
    assert np.mean(list(metrics["per_patient"].values())) == pytest.approx(expected, abs=1e-6)
    assert metrics["classes"] == list(WORDS)
    other = SpeechCommands(unit="speaker").summarise(predictions("speaker")[0])
    assert other == metrics
