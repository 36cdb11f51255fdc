"""Signal equations of tissue."""

from __future__ import annotations

import numpy as np
import pytest

from zetadp.phantom.scanners import GradientEcho, PreparedFlair, Protocol, Tissues, nulling_time, rician


def of_tissue(t1: float, t2: float, uptake: float = 0.0) -> Tissues:
    """Return a tissue of density one."""
    return Tissues(np.ones(1), np.array([t1]), np.array([t2]), np.array([uptake]), relaxivity=4.0)


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
    after = of_tissue(1000.0, 100.0, uptake=0.25).after_contrast()
    assert after.t1 == pytest.approx(500.0)
    assert after.t2 < 100.0


def test_rician_noise_in_air_is_rayleigh():
    values = rician(np.zeros(200_000, dtype=np.float32), 3.0, np.random.default_rng(1))
    assert values.mean() == pytest.approx(3 * np.sqrt(np.pi / 2), rel=0.01)
    assert values.std() == pytest.approx(3 * np.sqrt(2 - np.pi / 2), rel=0.01)


def test_spoiled_gradient_echo_is_the_steady_state_of_its_pulses():
    """Magnetisation that is tipped and recovers again and again settles at the formula."""
    t1, tr, flip, along = 900.0, 12.0, np.deg2rad(20), 1.0
    for _ in range(2000):
        across = along * np.sin(flip)
        along = 1 + (along * np.cos(flip) - 1) * np.exp(-tr / t1)
    signal = GradientEcho(tr, te=0.0, flip=20.0).signal(of_tissue(t1, 50.0))
    assert signal == pytest.approx(across, rel=1e-9)
