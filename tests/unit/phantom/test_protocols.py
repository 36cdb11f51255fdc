from __future__ import annotations

import numpy as np
import pytest

from zetadp.phantom import physics
from zetadp.phantom.anatomy import Tissue
from zetadp.phantom.protocols import STAR_RATIO, GradientEcho, PreparedFlair
from zetadp.phantom.tissues import DENSITY, T1, T2, UPTAKE, Tissues

TISSUES = Tissues(DENSITY, T1[3.0], T2[3.0], UPTAKE, relaxivity=4.0)


def test_spoiled_gradient_echo_at_right_angle_is_saturation_recovery() -> None:
    # cos 90 = 0: 2 (1 - 1/e) e^(-1/2) for TR = T1 and TE = T2* / 2.
    signal = physics.spoiled_gradient_echo(
        np.array([2.0]), np.array([30.0]), np.array([10.0]), tr=30.0, te=5.0, flip=np.pi / 2
    )
    assert signal == pytest.approx(2 * (1 - 0.36787944) * 0.60653066)


def test_spoiled_gradient_echo_is_the_steady_state_of_its_pulses() -> None:
    """Magnetisation that is tipped and recovers again and again settles at the formula."""
    t1, tr, flip, along = 900.0, 12.0, np.deg2rad(20), 1.0
    for _ in range(2000):
        across = along * np.sin(flip)
        along = 1 + (along * np.cos(flip) - 1) * np.exp(-tr / t1)
    signal = physics.spoiled_gradient_echo(np.ones(1), np.array([t1]), np.array([50.0]), tr, 0.0, flip)
    assert signal == pytest.approx(across, rel=1e-9)


def test_ernst_angle_gives_the_most_signal() -> None:
    tr, t1 = 10.0, np.array([1000.0])
    best = np.arccos(np.exp(-tr / t1[0]))
    at = [physics.spoiled_gradient_echo(np.ones(1), t1, t1, tr, 2.0, best + d)[0] for d in (-0.02, 0.0, 0.02)]
    assert at[1] > max(at[0], at[2])


def test_preparation_of_no_length_is_plain_inversion_recovery() -> None:
    arguments = (TISSUES.density, TISSUES.t1, TISSUES.t2, 5000.0, 120.0, 1700.0)
    np.testing.assert_allclose(
        physics.prepared_inversion_recovery(*arguments, preparation=0.0), physics.inversion_recovery(*arguments)
    )


def test_endless_preparation_leaves_nothing_to_invert() -> None:
    signal = physics.prepared_inversion_recovery(
        np.ones(1), np.array([1000.0]), np.array([80.0]), 5000.0, 0.0, 1000.0, preparation=1e5
    )
    assert signal == pytest.approx(1 - np.exp(-1))


@pytest.mark.parametrize("tr", [3000.0, 5000.0, 1e6])
def test_prepared_nulling_time_nulls(tr: float) -> None:
    ti = physics.prepared_nulling_time(4300.0, 2000.0, tr, 120.0)
    fluid = np.ones(1), np.array([4300.0]), np.array([2000.0])
    assert physics.prepared_inversion_recovery(*fluid, tr, 80.0, ti, 120.0) == pytest.approx(0, abs=1e-12)


def test_preparation_spares_tissue_and_inverts_fluid() -> None:
    """T2 preparation gives tissue more signal at the same inversion time, which is what it is for."""
    plain = PreparedFlair(tr=5000, te=100, ti=1700, preparation=0).signal(TISSUES)
    prepared = PreparedFlair(tr=5000, te=100, ti=1700, preparation=125).signal(TISSUES)
    assert prepared[Tissue.GREY] > 1.2 * plain[Tissue.GREY]
    assert abs(prepared[Tissue.CSF] - plain[Tissue.CSF]) < 0.1


def test_gradient_echo_takes_degrees_and_shortened_t2() -> None:
    expected = physics.spoiled_gradient_echo(TISSUES.density, TISSUES.t1, STAR_RATIO * TISSUES.t2, 8.0, 3.0, np.pi / 9)
    np.testing.assert_allclose(GradientEcho(tr=8.0, te=3.0, flip=20.0).signal(TISSUES), expected)


@pytest.mark.parametrize("nominal", [GradientEcho(8.0, 3.0, 20.0), PreparedFlair(5000.0, 120.0, 1700.0, 120.0)])
def test_jitter_stays_within_its_spread(nominal: GradientEcho | PreparedFlair) -> None:
    rng = np.random.default_rng(0)
    values = np.array(list(vars(nominal).values()))
    ratios = np.array([list(vars(nominal.jittered(rng, 0.05)).values()) for _ in range(200)]) / values
    assert ((ratios >= 0.95) & (ratios <= 1.05)).all()
    np.testing.assert_allclose(ratios.min(axis=0), 0.95, atol=0.005)
    np.testing.assert_allclose(ratios.max(axis=0), 1.05, atol=0.005)
