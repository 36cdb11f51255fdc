"""From tissue to stored intensities: signal equations, protocols, scanners, coils, slices and noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from zetadp.base.randomness import Purpose, stream
from zetadp.phantom import physics
from zetadp.phantom.anatomy import Tissue, VoxelGrid
from zetadp.phantom.physics import (
    DENSITY,
    STAR_RATIO,
    T1,
    T2,
    UPTAKE,
    GradientEcho,
    PreparedFlair,
    Protocol,
    Tissues,
)
from zetadp.phantom.procedural import covered, inside
from zetadp.phantom.scanners import CHANNELS, Scanner, acquire, draw_scanner, draw_vendor_scanner


def published(field_strength: float) -> Tissues:
    return Tissues(DENSITY, T1[field_strength], T2[field_strength], UPTAKE, relaxivity=4.0)


TISSUES = published(3.0)


def test_inversion_recovery_against_a_hand_computed_value():
    # T1 = 1000 ms, TR = 3000 ms, TI = 500 ms: 1 - 2 e^-0.5 + e^-3 = 1 - 1.2130613 + 0.0497871; TE = T2 / 2.
    signal = physics.inversion_recovery(np.array([1.0]), np.array([1000.0]), np.array([100.0]), 3000.0, 50.0, 500.0)
    assert signal == pytest.approx(-0.1632742 * 0.60653066, rel=1e-6)


@pytest.mark.parametrize("tr", [2000.0, 9000.0, 1e6])
def test_nulling_time_nulls(tr):
    ti = physics.nulling_time(4300.0, tr)
    signal = physics.inversion_recovery(np.ones(1), np.array([4300.0]), np.array([2000.0]), tr, 100.0, ti)
    assert signal == pytest.approx(0, abs=1e-12)


def test_gadolinium_shortens_relaxation_by_the_relaxivity_formula():
    # R1 = 1/s before; 0.25 mmol/l at 4 l/(mmol s) adds 1/s, so T1 falls from 1000 ms to 500 ms.
    assert physics.shortened(np.array([1000.0]), 4.0, np.array([0.25])) == pytest.approx(500.0)
    before = published(3.0)
    after = before.after_contrast()
    assert 1000 / after.t1 - 1000 / before.t1 == pytest.approx(4.0 * UPTAKE)
    assert (after.t2 < before.t2).all()
    assert after.density is before.density


def test_contrast_uptake_agrees_with_relaxometry_of_patients():
    """R1 of white matter gains 0.03 / s (Blystad 2020); T1 of enhancing tumour falls by 0.84 s (Noeth 2020)."""
    before = published(3.0)
    after = before.after_contrast()
    assert 1000 / after.t1[Tissue.WHITE] - 1000 / before.t1[Tissue.WHITE] == pytest.approx(0.032, abs=0.01)
    assert before.t1[Tissue.RIM] - after.t1[Tissue.RIM] == pytest.approx(840, abs=210)


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


PROTOCOLS = [
    Protocol(9000.0, 100.0, 2500.0),
    GradientEcho(8.0, 3.0, 20.0),
    PreparedFlair(5000.0, 120.0, 1700.0, 120.0),
]


@pytest.mark.parametrize("nominal", PROTOCOLS)
def test_jitter_stays_within_its_spread(nominal):
    rng = np.random.default_rng(0)
    values = np.array(list(vars(nominal).values()))
    ratios = np.array([list(vars(nominal.jittered(rng, 0.05)).values()) for _ in range(200)]) / values
    assert ((ratios >= 0.95) & (ratios <= 1.05)).all()
    np.testing.assert_allclose(ratios.min(axis=0), 0.95, atol=0.005)
    np.testing.assert_allclose(ratios.max(axis=0), 1.05, atol=0.005)
    assert Protocol(500, 10).jittered(rng, 0.05).ti is None


def test_spoiled_gradient_echo_is_the_steady_state_of_its_pulses():
    """Magnetisation that is tipped and recovers again and again settles at the formula."""
    t1, tr, flip, along = 900.0, 12.0, np.deg2rad(20), 1.0
    for _ in range(2000):
        across = along * np.sin(flip)
        along = 1 + (along * np.cos(flip) - 1) * np.exp(-tr / t1)
    signal = physics.spoiled_gradient_echo(np.ones(1), np.array([t1]), np.array([50.0]), tr, 0.0, flip)
    assert signal == pytest.approx(across, rel=1e-9)


def test_preparation_of_no_length_is_plain_inversion_recovery():
    arguments = (TISSUES.density, TISSUES.t1, TISSUES.t2, 5000.0, 120.0, 1700.0)
    np.testing.assert_allclose(
        physics.prepared_inversion_recovery(*arguments, preparation=0.0), physics.inversion_recovery(*arguments)
    )


@pytest.mark.parametrize("tr", [3000.0, 5000.0, 1e6])
def test_prepared_nulling_time_nulls(tr):
    ti = physics.prepared_nulling_time(4300.0, 2000.0, tr, 120.0)
    fluid = np.ones(1), np.array([4300.0]), np.array([2000.0])
    assert physics.prepared_inversion_recovery(*fluid, tr, 80.0, ti, 120.0) == pytest.approx(0, abs=1e-12)


def test_preparation_spares_tissue_and_inverts_fluid():
    """T2 preparation gives tissue more signal at the same inversion time, which is what it is for."""
    plain = PreparedFlair(tr=5000, te=100, ti=1700, preparation=0).signal(TISSUES)
    prepared = PreparedFlair(tr=5000, te=100, ti=1700, preparation=125).signal(TISSUES)
    assert prepared[Tissue.GREY] > 1.2 * plain[Tissue.GREY]
    assert abs(prepared[Tissue.CSF] - plain[Tissue.CSF]) < 0.1


def test_gradient_echo_takes_degrees_and_shortened_t2():
    expected = physics.spoiled_gradient_echo(TISSUES.density, TISSUES.t1, STAR_RATIO * TISSUES.t2, 8.0, 3.0, np.pi / 9)
    np.testing.assert_allclose(GradientEcho(tr=8.0, te=3.0, flip=20.0).signal(TISSUES), expected)


GRID = VoxelGrid((64, 64, 12))
INSIDE = np.zeros(GRID.shape, dtype=bool)
INSIDE[16:48, 16:48] = True
SIMPLE = Scanner(1.5, (Protocol(500, 10),) * 4, bias=0.0, noise=0.0)


def image(scanner, volume, channel=0, noise=0.05):
    """Return the volume as a scanner shows it, with a mean of one."""
    shown = np.zeros(GRID.shape)
    values = acquire(volume[INSIDE], INSIDE, GRID, scanner, channel, noise, np.random.default_rng(0))
    shown[INSIDE] = values / values.mean()
    return shown


def test_thick_slices_are_averages():
    volume = np.ones(GRID.shape, dtype=np.float32)
    volume[:, :, 6] = 4
    thick = replace(SIMPLE, thickness=(1.0, 3.0, 1.0, 1.0))
    profile = image(thick, volume, channel=1)[30, 30]
    np.testing.assert_allclose(profile[5:8] / profile[0], 2, rtol=0.01)
    np.testing.assert_allclose(profile[[0, 4, 8, 11]] / profile[0], 1, rtol=0.01)
    sharp = image(thick, volume, channel=0)[30, 30]
    np.testing.assert_allclose(sharp[5:8] / sharp[0], [1, 4, 1], rtol=0.01)


def test_signs_cancel_in_thick_slices_before_the_magnitude_is_taken():
    volume = np.where(np.arange(12) % 2, -1, 1).astype(np.float32) * np.ones(GRID.shape, dtype=np.float32)
    volume[16:20] = 5
    shown = image(replace(SIMPLE, thickness=(2.0,) * 4), volume)
    assert shown[30, 30, 2:10].max() < 0.01 * shown[17, 30, 5]


def test_coil_array_brightens_the_surface_by_its_strength():
    flat = np.ones(GRID.shape, dtype=np.float32)
    shown = image(replace(SIMPLE, array=0.8), flat)
    x, y, _ = GRID.axes()
    squared = np.square(x[16] - x.mean()) + np.square(y[31] - y.mean())
    middle = np.square(x[31] - x.mean()) + np.square(y[31] - y.mean())
    expected = np.exp(0.8 * (squared - middle) / 80**2)
    assert shown[16, 31, 5] / shown[31, 31, 5] == pytest.approx(expected, rel=0.01)
    assert expected > 1.3


def test_parallel_imaging_makes_the_middle_noisy_and_leaves_the_signal():
    flat = np.ones(GRID.shape, dtype=np.float32)
    noisy = replace(SIMPLE, noise=1.0)
    even, uneven = image(noisy, flat), image(replace(noisy, acceleration=1.0), flat)
    middle, rim = np.s_[28:36, 28:36], np.s_[16:19, 16:48]
    assert uneven[middle].std() == pytest.approx(2 * even[middle].std(), rel=0.12)
    # At 56 mm from the middle and farther: one plus a half or less.
    assert 1.0 < uneven[rim].std() / even[rim].std() < 1.5
    assert uneven[middle].mean() == pytest.approx(even[middle].mean(), rel=0.02)


def test_shares_of_a_voxel_are_averages_over_it():
    fine = np.linspace(-2, 2, 4001)
    for depth in (-3.0, -1.3, 0.0, 0.4, 5.0):
        assert inside(np.array(depth), 4.0) == pytest.approx((fine + depth > 0).mean(), abs=1e-3)
        for half in (0.3, 1.5, 4.0):
            share = covered(np.array(depth), half, 4.0)
            assert share == pytest.approx((np.abs(fine + depth) < half).mean(), abs=1e-3)
