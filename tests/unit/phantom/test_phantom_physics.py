from __future__ import annotations

import numpy as np
import pytest

from zetadp.base.randomness import Purpose, stream
from zetadp.phantom import physics
from zetadp.phantom.anatomy import Tissue
from zetadp.phantom.protocols import Protocol
from zetadp.phantom.scanners import CHANNELS, draw_scanner
from zetadp.phantom.tissues import DENSITY, T1, T2, UPTAKE, Tissues, draw_tissues


def published(field_strength: float) -> Tissues:
    return Tissues(DENSITY, T1[field_strength], T2[field_strength], UPTAKE, relaxivity=4.0)


def test_spin_echo_at_one_time_constant() -> None:
    # TR = T1 leaves 1 - 1/e of the longitudinal part, TE = T2 leaves 1/e of the transverse part.
    signal = physics.spin_echo(np.array([2.0]), np.array([900.0]), np.array([80.0]), tr=900.0, te=80.0)
    assert signal == pytest.approx(2 * (1 - 0.36787944) * 0.36787944)


def test_inversion_recovery_against_a_hand_computed_value() -> None:
    # T1 = 1000 ms, TR = 3000 ms, TI = 500 ms: 1 - 2 e^-0.5 + e^-3 = 1 - 1.2130613 + 0.0497871; TE = T2 / 2.
    signal = physics.inversion_recovery(np.array([1.0]), np.array([1000.0]), np.array([100.0]), 3000.0, 50.0, 500.0)
    assert signal == pytest.approx(-0.1632742 * 0.60653066, rel=1e-6)


def test_flair_nulls_the_tissue_whose_t1_is_ti_over_ln2() -> None:
    ti = 2500.0
    t1 = np.array([ti / np.log(2), 1000.0])
    signal = physics.inversion_recovery(np.ones(2), t1, np.full(2, 100.0), tr=1e6, te=0.0, ti=ti)
    assert signal[0] == pytest.approx(0, abs=1e-12)
    assert signal[1] > 0.8


@pytest.mark.parametrize("tr", [2000.0, 9000.0, 1e6])
def test_nulling_time_nulls(tr: float) -> None:
    ti = physics.nulling_time(4300.0, tr)
    signal = physics.inversion_recovery(np.ones(1), np.array([4300.0]), np.array([2000.0]), tr, 100.0, ti)
    assert signal == pytest.approx(0, abs=1e-12)


def test_gadolinium_shortens_relaxation_by_the_relaxivity_formula() -> None:
    # R1 = 1/s before; 0.25 mmol/l at 4 l/(mmol s) adds 1/s, so T1 falls from 1000 ms to 500 ms.
    assert physics.shortened(np.array([1000.0]), 4.0, np.array([0.25])) == pytest.approx(500.0)
    before = published(3.0)
    after = before.after_contrast()
    assert 1000 / after.t1 - 1000 / before.t1 == pytest.approx(4.0 * UPTAKE)
    assert (after.t2 < before.t2).all()
    assert after.density is before.density


def test_contrast_uptake_agrees_with_relaxometry_of_patients() -> None:
    """R1 of white matter gains 0.03 / s (Blystad 2020); T1 of enhancing tumour falls by 0.84 s (Noeth 2020)."""
    before = published(3.0)
    after = before.after_contrast()
    assert 1000 / after.t1[Tissue.WHITE] - 1000 / before.t1[Tissue.WHITE] == pytest.approx(0.032, abs=0.01)
    assert before.t1[Tissue.RIM] - after.t1[Tissue.RIM] == pytest.approx(840, abs=210)


@pytest.mark.parametrize("field_strength", [1.5, 3.0])
def test_usual_protocols_give_the_contrasts_that_radiologists_know(field_strength: float) -> None:
    tissues = published(field_strength)
    t1 = Protocol(500, 10).signal(tissues)
    assert t1[Tissue.CSF] < t1[Tissue.GREY] < t1[Tissue.WHITE]
    t2 = Protocol(4500, 100).signal(tissues)
    assert t2[Tissue.WHITE] < t2[Tissue.GREY] < t2[Tissue.OEDEMA] < t2[Tissue.CSF]
    flair = Protocol(9000, 120, physics.nulling_time(tissues.t1[Tissue.CSF], 9000)).signal(tissues)
    assert flair[Tissue.CSF] < flair[Tissue.WHITE] < flair[Tissue.GREY] < flair[Tissue.OEDEMA]
    enhanced = Protocol(500, 10).signal(tissues.after_contrast())
    assert t1[Tissue.RIM] < t1[Tissue.WHITE]
    assert enhanced[Tissue.RIM] > 1.2 * enhanced[Tissue.WHITE]
    assert enhanced[Tissue.GREY] / t1[Tissue.GREY] > enhanced[Tissue.WHITE] / t1[Tissue.WHITE] > 1


def test_rician_noise_in_air_is_rayleigh() -> None:
    values = physics.rician(np.zeros(200_000, dtype=np.float32), 3.0, np.random.default_rng(1))
    assert values.mean() == pytest.approx(3 * np.sqrt(np.pi / 2), rel=0.01)
    assert values.std() == pytest.approx(3 * np.sqrt(2 - np.pi / 2), rel=0.01)


def test_rician_noise_in_strong_signal_is_gaussian_and_keeps_no_sign() -> None:
    signal = np.full(200_000, -100.0, dtype=np.float32)
    values = physics.rician(signal, 2.0, np.random.default_rng(2))
    assert values.mean() == pytest.approx(np.sqrt(100**2 + 2**2), rel=1e-3)
    assert values.std() == pytest.approx(2, rel=0.02)


def test_tissues_scatter_around_the_published_means() -> None:
    draws = np.array([draw_tissues(stream(0, Purpose.COHORT, 9, i), 1.5).t1 for i in range(400)])
    np.testing.assert_allclose(np.exp(np.log(draws).mean(axis=0)), T1[1.5], rtol=0.04)
    assert 0.04 < np.log(draws[:, Tissue.GREY]).std() < 0.06
    assert 0.12 < np.log(draws[:, Tissue.RIM]).std() < 0.18


def test_scanners_null_fluid_nearly_and_match_both_t1_scans() -> None:
    for index in range(40):
        scanner = draw_scanner(stream(3, Purpose.COHORT, 0, index))
        protocols = dict(zip(CHANNELS, scanner.protocols, strict=True))
        assert protocols["T1w"] == protocols["t1gd"]
        tissues = published(scanner.field_strength)
        flair, t1 = np.abs(protocols["FLAIR"].signal(tissues)), np.abs(protocols["T1w"].signal(tissues))
        assert flair[Tissue.CSF] < flair[Tissue.WHITE] < flair[Tissue.GREY]
        assert t1[Tissue.CSF] < t1[Tissue.GREY] < t1[Tissue.WHITE]


def test_jitter_stays_within_its_spread() -> None:
    nominal, rng = Protocol(9000, 100, 2500), np.random.default_rng(0)
    drawn = [nominal.jittered(rng, 0.05) for _ in range(200)]
    ratios = np.array([[p.tr / 9000, p.te / 100, (p.ti or 0) / 2500] for p in drawn])
    assert ((ratios >= 0.95) & (ratios <= 1.05)).all()
    np.testing.assert_allclose(ratios.min(axis=0), 0.95, atol=0.005)
    np.testing.assert_allclose(ratios.max(axis=0), 1.05, atol=0.005)
    assert Protocol(500, 10).jittered(rng, 0.05).ti is None
