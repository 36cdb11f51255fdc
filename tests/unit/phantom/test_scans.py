"""From tissue to stored intensities: signal equations, protocols, scanners, coils, slices and noise."""

from __future__ import annotations

import numpy as np
import pytest

from zetadp.base.randomness import Purpose, stream
from zetadp.phantom import physics
from zetadp.phantom.anatomy import Tissue
from zetadp.phantom.physics import (
    DENSITY,
    T1,
    T2,
    UPTAKE,
    GradientEcho,
    PreparedFlair,
    Protocol,
    Tissues,
    nulling_time,
)
from zetadp.phantom.scanners import CHANNELS, draw_scanner, draw_vendor_scanner


def published(field_strength: float) -> Tissues:
    return Tissues(DENSITY, T1[field_strength], T2[field_strength], UPTAKE, relaxivity=4.0)


def of_tissue(t1: float, t2: float) -> Tissues:
    """Return a tissue of density one."""
    return Tissues(np.ones(1), np.array([t1]), np.array([t2]), np.zeros(1), relaxivity=4.0)


def test_inversion_recovery_against_a_hand_computed_value():
    # T1 = 1000 ms, TR = 3000 ms, TI = 500 ms: 1 - 2 e^-0.5 + e^-3 = 1 - 1.2130613 + 0.0497871; TE = T2 / 2.
    signal = Protocol(tr=3000.0, te=50.0, ti=500.0).signal(of_tissue(1000.0, 100.0))
    assert signal == pytest.approx(-0.1632742 * 0.60653066, rel=1e-6)


@pytest.mark.parametrize("tr", [3000.0, 9000.0, 1e6])
def test_nulling_time_nulls_with_and_without_preparation(tr):
    plain = Protocol(tr, 100.0, nulling_time(4300.0, tr))
    prepared = PreparedFlair(tr, 80.0, nulling_time(4300.0, tr, np.exp(-120.0 / 2000.0)), preparation=120.0)
    for protocol in (plain, prepared):
        assert protocol.signal(of_tissue(4300.0, 2000.0)) == pytest.approx(0, abs=1e-12)


def test_gadolinium_shortens_relaxation_by_the_relaxivity_formula():
    # R1 = 1/s before; 0.25 mmol/l at 4 l/(mmol s) adds 1/s, so T1 falls from 1000 ms to 500 ms.
    assert physics.shortened(np.array([1000.0]), 4.0, np.array([0.25])) == pytest.approx(500.0)
    before = published(3.0)
    after = before.after_contrast()
    assert 1000 / after.t1 - 1000 / before.t1 == pytest.approx(4.0 * UPTAKE)
    assert (after.t2 < before.t2).all()
    assert after.density is before.density


def test_rician_noise_in_air_is_rayleigh():
    values = physics.rician(np.zeros(200_000, dtype=np.float32), 3.0, np.random.default_rng(1))
    assert values.mean() == pytest.approx(3 * np.sqrt(np.pi / 2), rel=0.01)
    assert values.std() == pytest.approx(3 * np.sqrt(2 - np.pi / 2), rel=0.01)


@pytest.mark.parametrize("draw", [draw_scanner, draw_vendor_scanner])
def test_scanners_give_the_contrasts_that_radiologists_know_and_match_both_t1_scans(draw):
    for index in range(40):
        scanner = draw(stream(3, Purpose.COHORT, 0, index))
        protocols = dict(zip(CHANNELS, scanner.protocols, strict=True))
        assert protocols["T1w"] == protocols["t1gd"]
        tissues = published(scanner.field_strength)
        flair, t1, t2 = (np.abs(protocols[name].signal(tissues)) for name in ("FLAIR", "T1w", "T2w"))
        assert flair[Tissue.CSF] < flair[Tissue.WHITE] < flair[Tissue.GREY] < flair[Tissue.OEDEMA]
        assert t1[Tissue.CSF] < t1[Tissue.GREY] < t1[Tissue.WHITE]
        assert t2[Tissue.WHITE] < t2[Tissue.GREY] < t2[Tissue.OEDEMA] < t2[Tissue.CSF]
        enhanced = np.abs(protocols["t1gd"].signal(tissues.after_contrast()))
        assert enhanced[Tissue.RIM] / enhanced[Tissue.WHITE] > t1[Tissue.RIM] / t1[Tissue.WHITE]


def test_spoiled_gradient_echo_is_the_steady_state_of_its_pulses():
    """Magnetisation that is tipped and recovers again and again settles at the formula."""
    t1, tr, flip, along = 900.0, 12.0, np.deg2rad(20), 1.0
    for _ in range(2000):
        across = along * np.sin(flip)
        along = 1 + (along * np.cos(flip) - 1) * np.exp(-tr / t1)
    signal = GradientEcho(tr, te=0.0, flip=20.0).signal(of_tissue(t1, 50.0))
    assert signal == pytest.approx(across, rel=1e-9)
