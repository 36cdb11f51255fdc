from __future__ import annotations

import numpy as np
import pytest

from zetadp.base.randomness import Purpose, stream
from zetadp.phantom.cohort import CohortStream
from zetadp.phantom.public import simulate_public_patient
from zetadp.phantom.public_brains import draw_anatomy, draw_shapes

FROZEN = {
    draw_anatomy: {0: (15.34, 31.79, 16.46, 14.18), 5: (-13.45, 55.53, 3.2, 82.66)},
    draw_shapes: {0: (53.68, 5.28, 34.13, -42.09), 11: (47.61, 67.71, 72.03, -94.78)},
}
"""Of patients of each anatomy: projections of the sequences on fixed noise."""


@pytest.mark.parametrize("anatomy", FROZEN)
def test_public_patients_are_frozen(anatomy):
    """The shipped networks learnt from them, and their distributions were fixed before any cohort.

    Last bits depend on the processor, and move a projection by far less than a changed draw does.
    """
    for number, projections in FROZEN[anatomy].items():
        shown = simulate_public_patient(3, number, 8, 32, anatomy)
        noise = np.random.default_rng(0).standard_normal(shown.shape)
        np.testing.assert_allclose((shown * noise).sum(axis=(1, 2, 3)), projections, rtol=0, atol=1)


def test_streams_are_not_those_of_the_private_cohort():
    drawn = []

    def seen(rng, grid):
        drawn.append(rng.random(8))
        return draw_anatomy(rng, grid)

    simulate_public_patient(5, 4, 1, 8, seen)
    for purpose in CohortStream:
        for place in ((4,), (4, 0), (4, 1), (4, 2), (4, 3)):
            assert not np.isin(drawn, stream(5, Purpose.COHORT, purpose, *place).random(200)).any()
