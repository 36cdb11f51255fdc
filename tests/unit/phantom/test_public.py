from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import zetadp.phantom.public
from zetadp.base.randomness import Purpose, stream
from zetadp.mri.slicing import centre_slices, resize_area
from zetadp.phantom.anatomy import Tissue, VoxelGrid
from zetadp.phantom.cohort import CohortStream, PhantomSettings, simulate_patient
from zetadp.phantom.public import (
    PublicSettings,
    draw_anatomy,
    draw_public_tissues,
    draw_signals,
    public_stream,
    simulate_public_patient,
)
from zetadp.phantom.scanners import CHANNELS
from zetadp.phantom.shapes import draw_shapes

SETTINGS = PublicSettings(seed=3, patients=16)
GRID = VoxelGrid(SETTINGS.grid)
FLAIR, T1W, T1GD, T2W = range(len(CHANNELS))


@pytest.fixture(scope="module")
def images():
    return np.stack([simulate_public_patient(SETTINGS, number) for number in range(SETTINGS.patients)])


def as_images(inside, values):
    """Return voxels of the brain as images in the orientation of `simulate_public_patient`."""
    volume = np.zeros(inside.shape, dtype=np.float32)
    volume[inside] = values
    return resize_area(np.transpose(volume[::-1, :, centre_slices(24, 20)], (2, 1, 0)), 32)


def test_brains_of_another_kind_are_shown_where_they_lie():
    def ball(rng, grid):
        x, y, z = np.meshgrid(*grid.axes(), indexing="ij")
        inside = np.square(x - 30) + np.square(y) + 0 * z < 20**2
        fractions = np.zeros((len(Tissue), inside.sum()), dtype=np.float32)
        fractions[Tissue.WHITE] = 1
        return inside, fractions

    inside, fractions = ball(None, GRID)
    lit = as_images(inside, fractions[Tissue.WHITE]) > 0
    images = [simulate_public_patient(SETTINGS, number, anatomy=ball) for number in range(4)]
    # One image in ten keeps noise around the brain, and some keep remnants of the skull; most of them neither.
    alone = [np.array_equal(image > 1e-3, lit) for patient in images for image in patient]
    assert sum(alone) >= len(alone) / 4
    assert all((image[lit] > 0).all() for patient in images for image in patient)


FROZEN = {
    draw_anatomy: {0: (24.13, 31.84, 73.71, -19.53), 5: (25.18, 57.56, 18.74, -13.01)},
    draw_shapes: {0: (32.95, -29.1, 58.19, -27.06), 11: (-18.35, 5.42, 84.47, -76.67)},
}
"""Of patients of each anatomy: projections of the sequences on fixed noise."""


@pytest.mark.parametrize("anatomy", FROZEN)
def test_public_patients_are_frozen(anatomy):
    """The shipped networks learnt from them, and their distributions were fixed before any cohort.

    Last bits depend on the processor, and move a projection by far less than a changed draw does.
    """
    for number, projections in FROZEN[anatomy].items():
        # Whichever other patients there are.
        shown = simulate_public_patient(replace(SETTINGS, patients=number + 1), number, 8, 32, anatomy)
        noise = np.random.default_rng(0).standard_normal(shown.shape)
        np.testing.assert_allclose((shown * noise).sum(axis=(1, 2, 3)), projections, rtol=0, atol=1)


def test_images_are_magnitudes_of_a_brain_in_the_middle(images):
    assert images.shape == (16, 4, 20, 32, 32)
    assert images.dtype == np.float32
    assert np.isfinite(images).all()
    assert (images >= 0).all()
    assert (images.max(axis=(3, 4)) > images.min(axis=(3, 4))).all()
    middle, corner = images[..., 8:24, 8:24].mean(axis=(2, 3, 4)), images[..., :4, :4].mean(axis=(2, 3, 4))
    assert (corner < 0.3 * middle).all()
    # One image in ten keeps the noise around the brain; in the others nothing is there.
    assert 0.01 < (corner > 0).mean() < 0.4


def test_images_lie_as_those_of_the_cohort_do(images):
    for number in range(4):
        inside, fractions = draw_anatomy(public_stream(SETTINGS, number), GRID)
        brain = as_images(inside, fractions.sum(axis=0))
        seen = images[number, T2W] > 0.3
        assert np.mean((brain > 0.5) == seen) > 0.9
        assert np.mean((brain[:, ::-1] > 0.5) == seen) < np.mean((brain > 0.5) == seen)


def test_sequences_show_the_contrasts_that_name_them(images):
    """On average over patients: fluid is bright in T2w and dark in FLAIR and T1w; white matter is bright in T1w."""
    ratios = []
    for number in range(SETTINGS.patients):
        inside, fractions = draw_anatomy(public_stream(SETTINGS, number), GRID)
        fluid, grey, white = (as_images(inside, fractions[tissue]) for tissue in Tissue if tissue < Tissue.BLOOD)
        if (fluid > 0.7).sum() > 20:
            level = [images[number][:, share > 0.7].mean(axis=1) for share in (fluid, grey, white)]
            ratios.append([level[0] / level[2], level[1] / level[2]])
    fluid, grey = np.median(ratios, axis=0)
    assert len(ratios) > 8
    assert fluid[T2W] > 1.5
    assert max(fluid[FLAIR], fluid[T1W], fluid[T1GD]) < 0.8
    assert grey[T1W] < 0.95
    assert min(grey[FLAIR], grey[T2W]) > 1.0


def test_contrast_agent_brightens_the_rim_of_tumours():
    gains = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        tissues = draw_public_tissues(rng, 1.5)
        signals = np.abs(draw_signals(rng, tissues))
        gains.append(signals[T1GD, Tissue.RIM] / signals[T1GD, Tissue.WHITE])
        gains[-1] /= signals[T1W, Tissue.RIM] / signals[T1W, Tissue.WHITE]
    assert np.median(gains) > 1.3


def test_streams_are_not_those_of_the_private_cohort():
    settings = PublicSettings(seed=5, patients=10)
    public = public_stream(settings, 4).random(8)
    for purpose in CohortStream:
        for place in ((4,), (4, 0), (4, 1), (4, 2), (4, 3)):
            assert not np.isin(public, stream(5, Purpose.COHORT, purpose, *place).random(200)).any()
    private = simulate_patient(PhantomSettings(train_patients=9, test_patients=1, seed=5, tumour_probability=0), 4)
    mask = (private > 0).all(axis=-1)
    inside, _ = draw_anatomy(public_stream(settings, 4), GRID)
    other, _ = draw_anatomy(public_stream(settings, 5), GRID)
    # As unlike each other as two public patients are, give or take.
    assert np.mean(mask != inside) > 0.3 * np.mean(other != inside) > 0


def test_patients_of_one_hospital_share_its_scanner_and_no_anatomy(monkeypatch):
    """The protocol decides the signals of the tissues; it is drawn once a hospital."""
    seen = []
    drawn = zetadp.phantom.public.draw_signals

    def noted(rng, tissues):
        seen.append(np.concatenate(drawn(rng, tissues)))
        return [*np.split(seen[-1], 4)]

    monkeypatch.setattr(zetadp.phantom.public, "draw_signals", noted)
    shared = PublicSettings(seed=3, patients=6, grid=(16, 16, 4), hospitals=2)
    images = [simulate_public_patient(shared, number, 4, 16) for number in (0, 1, 2)]
    assert np.array_equal(seen[0], seen[2])
    assert not np.array_equal(seen[0], seen[1])
    assert not np.allclose(images[0], images[2])
    for number in (0, 2):
        simulate_public_patient(PublicSettings(seed=3, patients=6, grid=(16, 16, 4)), number, 4, 16)
    assert not np.array_equal(seen[3], seen[4])
