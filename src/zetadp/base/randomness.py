"""Independent random streams, each named by what it is for.

A stream is a function of the seed, its purpose and the place where it is used (node, round, patient), never of what
was drawn before. Resuming a run therefore needs no generator state, and no two uses can share numbers by accident.
NumPy's seed sequence uses all bits of a seed. PyTorch's CPU generator uses only 32: of the 100 000 streams of a grid
as large as the paper's, two would probably be equal.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What a stream is for; streams of different purpose are independent."""

    SAMPLING = 1
    NOISE = 2
    WEIGHTS = 3
    IMAGES = 4
    PARTITION = 5
    COHORT = 6
    BOOTSTRAP = 7
    PRETRAINING = 8
    PAIRING = 9
    SCHEDULE = 10


def stream(seed: int, purpose: Purpose, *place: int) -> np.random.Generator:
    """Return the generator for one purpose at one place.

    Parameters
    ----------
    seed
        The seed of the run or of the cohort, zero or positive.
    purpose
        What the numbers are for.
    *place
        Non-negative integers that tell apart the uses of one purpose, for instance node and round.

    Examples
    --------
    >>> a = stream(7, Purpose.NOISE, 0, 3).standard_normal()
    >>> a == stream(7, Purpose.NOISE, 0, 3).standard_normal()
    True
    >>> a == stream(7, Purpose.SAMPLING, 0, 3).standard_normal()
    False
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(int(purpose), *place))
    return np.random.Generator(np.random.Philox(sequence))
