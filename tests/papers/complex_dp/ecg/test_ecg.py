"""Simulated patients, the inputs that are made of recordings, and the area under the ROC curve over patients."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from papers.complex_dp.ecg.recordings import LEADS, Recording, beginning, spectrum, usual_beat
from papers.complex_dp.ecg.simulated import POPULATIONS, draw_patient, simulated_recordings
from papers.complex_dp.ecg.task import Ecg
from papers.complex_dp.roc import area
from zetadp.base.randomness import Purpose, stream
from zetadp.base.validation import UserError
from zetadp.training.evaluation import watched
from zetadp.training.records import LabelledItems

RANDOM = np.random.default_rng(0)
LABELS = RANDOM.random(80) < 0.3
SCORES = np.round(RANDOM.normal(LABELS * 1.2), 1)  # with ties


@pytest.mark.parametrize("population", POPULATIONS)
def test_the_length_of_the_qrs_complex_tells_the_labels_apart(population):
    random = stream(0, Purpose.COHORT)
    normal, blocked = ([draw_patient(label, population, random).qrs_seconds for _ in range(300)] for label in (0, 1))
    assert max(normal) < 0.120 <= min(blocked)  # the criterion of Surawicz et al.
    assert min(normal) > 0.06
    assert max(blocked) < 0.2
    assert min(np.std(normal), np.std(blocked)) > 0.005


def test_patients_have_one_label_one_or_two_recordings_and_the_declared_share():
    made = [r for r, _ in simulated_recordings(400, seed=0, share=0.184, several=0.1, rate=100)]
    by_patient = pd.DataFrame({"patient": [r.patient for r in made], "label": [r.label for r in made]})
    counts = by_patient.groupby("patient")["label"].agg(["size", "nunique", "first"])
    assert len(counts) == 400
    assert (counts["nunique"] == 1).all()
    assert set(counts["size"]) == {1, 2}
    assert counts["first"].sum() == round(0.184 * 400)
    assert len({each.name for each in made}) == len(made)


def recording(signal: np.ndarray, rate: float = 500) -> Recording:
    return Recording("one", "somebody", signal.astype(np.float32), rate, 0)


def test_the_spectrum_is_the_fourier_sum_of_the_first_samples_of_one_lead():
    signal = np.random.default_rng(0).normal(size=(12, 900))
    found = spectrum(beginning(recording(signal)))
    n = np.arange(512)
    lead = signal[LEADS.index("aVR"), :512]
    expected = [(lead * np.exp(-2j * np.pi * k * n / 512)).sum() / 512**0.5 for k in range(512)]
    assert found.dtype == np.complex64
    np.testing.assert_allclose(found, expected, atol=1e-3)
    short = beginning(recording(np.ones((12, 300))))
    np.testing.assert_array_equal(short, n < 300)  # filled with zeros
    # Another rate is resampled to the same time.
    tone = np.tile(np.sin(2 * np.pi * 5 * np.arange(1000) / 100), (12, 1))
    np.testing.assert_allclose(beginning(recording(tone, rate=100))[50:], np.sin(np.pi * n[50:] / 50), atol=0.01)


@pytest.mark.parametrize("signal", [np.ones((12, 120)), np.full((12, 1000), np.nan)])
def test_what_has_no_usual_beat_is_refused_by_name(signal):
    with pytest.raises(UserError, match="recording one"):
        usual_beat(recording(signal, 100))


def predictions(scores: np.ndarray, labels: np.ndarray, patients: list[str]) -> pd.DataFrame:
    named = np.where(labels, "LBBB", "normal")
    return pd.DataFrame({"patient": patients, "score": scores, "diagnosis": named})


def test_a_patients_score_is_the_mean_over_recordings():
    found = Ecg().summarise(predictions(np.array([2.0, -4.0, 0.5, 0.0]), np.array([1, 1, 1, 0]), ["a", "a", "b", "c"]))
    assert (found["metric"], found["ROC-AUC"]) == ("ROC-AUC", 0.5)  # a has -1, b 0.5, c 0
    assert found["per_patient"] == {"a": 0.0, "b": 1.0, "c": 0.5}
    assert found["per_patient_images"] == {"a": 2, "b": 1, "c": 1}
    assert found["confusion"] == [[1, 0], [1, 1]]
    assert found["accuracy"] == pytest.approx(2 / 3)
    with pytest.raises(UserError, match="finite"):
        Ecg().summarise(predictions(np.array([np.nan, 0.0]), np.array([1, 0]), ["a", "b"]))


def test_runs_on_the_same_patients_share_resamples():
    names = [f"p{n:02d}" for n in range(80)]
    one, other = (Ecg().summarise(predictions(scores, LABELS, names)) for scores in (SCORES, SCORES + 0.0))
    assert one["replicates"] == other["replicates"]
    assert one["ROC-AUC_interval"]["low"] == pytest.approx(np.quantile(one["replicates"], 0.025), abs=1e-5)


def test_losses_are_binary_cross_entropies_and_what_is_watched_is_the_area():
    outputs, targets = torch.from_numpy(SCORES[:, None]).float(), torch.from_numpy(LABELS).float()
    p = torch.sigmoid(outputs[:, 0].double())
    expected = -(targets * p.log() + (1 - targets) * (1 - p).log())
    torch.testing.assert_close(Ecg().losses(outputs, targets).double(), expected, atol=1e-5, rtol=1e-5)
    metric, loss = watched(Ecg(), torch.nn.Identity(), LabelledItems(outputs, targets))
    assert metric == pytest.approx(area(SCORES, LABELS), abs=1e-6)
    assert loss == pytest.approx(expected.mean().item(), abs=1e-5)
