from __future__ import annotations

import numpy as np
import pytest

from zetadp.base.randomness import Purpose, stream
from zetadp.tasks.ecg.collection import BEFORE, beats, usual_beat
from zetadp.tasks.ecg.recordings import LEADS
from zetadp.tasks.ecg.simulated import (
    DOWER,
    NORMAL_QRS,
    POPULATIONS,
    SimulatedPatient,
    draw_patient,
    record,
    simulated_recordings,
    twelve,
)

RATE = 500


def quiet(label: int, waves: np.ndarray = NORMAL_QRS, beat: float = 0.8) -> SimulatedPatient:
    """Return a patient without noise, whose heart lies as Dower's."""
    return SimulatedPatient(label, waves, np.zeros((0, 5)), DOWER, beat, False, (0, 0, 0))


@pytest.mark.parametrize("population", POPULATIONS)
def test_the_length_of_the_qrs_complex_tells_the_labels_apart(population):
    random = stream(0, Purpose.COHORT)
    normal, blocked = ([draw_patient(label, population, random).qrs_seconds for _ in range(300)] for label in (0, 1))
    assert max(normal) < 0.120 <= min(blocked)  # the criterion of Surawicz et al.
    assert min(normal) > 0.06
    assert max(blocked) < 0.2
    assert np.std(normal) > 0.005
    assert np.std(blocked) > 0.005


def test_the_length_is_that_of_the_signal():
    signal = record(quiet(0), stream(1, Purpose.COHORT), RATE)[LEADS.index("V5")].astype(float)
    peak = int(signal[1000:3000].argmax()) + 1000
    around = np.abs(signal[peak - 60 : peak + 60])
    seen = (around > 0.01 * around.max()).sum() / RATE
    assert seen == pytest.approx(quiet(0).qrs_seconds, abs=0.02)


def test_lbbb_has_no_q_in_lateral_leads_and_a_t_wave_against_the_qrs():
    """In the mean of patients: single ones may lie so that a lead sees it otherwise."""
    found = {}
    for label in (0, 1):
        made = [r for r, _ in simulated_recordings(60, seed=3, population="standard", share=label, several=0, rate=100)]
        found[label] = np.mean([usual_beat(each) for each in made], axis=0)
    v6, v1 = LEADS.index("V6"), LEADS.index("V1")
    for label, sign in ((0, 1), (1, -1)):
        qrs, t_wave = (
            found[label][v6, BEFORE - 8 : BEFORE + 8].max(),
            found[label][v6, BEFORE + 18 : BEFORE + 38].mean(),
        )
        assert qrs > 1
        assert sign * t_wave > 0.1
    before = slice(BEFORE - 8, BEFORE + 1)
    assert found[0][v6, before].min() < -0.1  # septal q
    assert found[1][v6, before].min() > -0.1
    assert found[1][v1, BEFORE - 8 : BEFORE + 8].min() < -2  # QS or rS


def test_patients_have_one_label_one_or_two_recordings_and_the_declared_share():
    made = [r for r, _ in simulated_recordings(400, seed=0, share=0.184, several=0.1, rate=100)]
    by_patient: dict[str, list[int]] = {}
    for each in made:
        by_patient.setdefault(each.patient, []).append(each.label)
    assert len(by_patient) == 400
    assert all(len(set(labels)) == 1 for labels in by_patient.values())
    assert {len(labels) for labels in by_patient.values()} == {1, 2}
    assert sum(labels[0] for labels in by_patient.values()) == round(0.184 * 400)
    assert len({each.name for each in made}) == len(made)


def test_leads_are_differences_of_electrodes():
    found = dict(zip(LEADS, twelve(np.random.default_rng(0).normal(size=(8, 5))), strict=True))
    np.testing.assert_allclose(found["I"] + found["III"], found["II"])
    np.testing.assert_allclose(found["aVR"] + found["aVL"] + found["aVF"], 0, atol=1e-12)
    np.testing.assert_allclose(found["aVF"], (found["II"] + found["III"]) / 2)


@pytest.mark.parametrize("beat", [0.5, 0.8, 1.2])
def test_the_rate_of_beats_is_the_patients(beat):
    signal = record(quiet(0, beat=beat), stream(2, Purpose.COHORT), 100)
    found = beats(signal / signal.std(axis=1, keepdims=True))
    assert np.diff(found).mean() / 100 == pytest.approx(beat, rel=0.03)
