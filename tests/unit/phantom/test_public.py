from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import zetadp.phantom.public
from zetadp.base.randomness import Purpose, stream
from zetadp.phantom.anatomy import VoxelGrid
from zetadp.phantom.cohort import CohortStream, PhantomSettings, simulate_patient
from zetadp.phantom.public import (
    PublicSettings,
    draw_anatomy,
    public_stream,
    simulate_public_patient,
)
from zetadp.phantom.shapes import draw_shapes

SETTINGS = PublicSettings(seed=3, patients=16)
GRID = VoxelGrid(SETTINGS.grid)


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


def test_streams_are_not_those_of_the_private_cohort():
    settings = PublicSettings(seed=5, patients=10)
    public = public_stream(settings, 4).random(8)
    for purpose in CohortStream:
        for place in ((4,), (4, 0), (4, 1), (4, 2), (4, 3)):
            assert not np.isin(public, stream(5, Purpose.COHORT, purpose, *place).random(200)).any()
    private = simulate_patient(PhantomSettings(train_patients=9, test_patients=1, seed=5), 4)
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
