"""Seeded random streams, each named by its purpose, and random bytes of the operating system.

A stream is a function of the seed, its purpose and the position of its use (node, round, patient), never of earlier
draws. Resuming a run therefore needs no generator state, and no two uses can share numbers by accident.
NumPy's seed sequence uses all bits of a seed. PyTorch's CPU generator uses only 32: of the 100 000 streams of a grid
as large as the paper's, two would probably be equal.

Random bytes come from the operating system's generator, or in tests from any function of the same form. There is no
seed. Its output can neither be predicted from earlier output nor repeated, which keeps noise and draws secret.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

import numpy as np


class Purpose(IntEnum):
    """Purpose of a stream; streams of different purposes are independent."""

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
    DROPOUT = 11


def stream(seed: int, purpose: Purpose, *position: int) -> np.random.Generator:
    """Return the generator for one purpose at one position.

    Parameters
    ----------
    seed
        The seed of the run or of the cohort, zero or positive.
    purpose
        Purpose of the numbers.
    *position
        Non-negative integers that distinguish the uses of one purpose, for instance node and round.

    Examples
    --------
    >>> a = stream(7, Purpose.NOISE, 0, 3).standard_normal()
    >>> a == stream(7, Purpose.NOISE, 0, 3).standard_normal()
    True
    >>> a == stream(7, Purpose.SAMPLING, 0, 3).standard_normal()
    False
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(int(purpose), *position))
    return np.random.Generator(np.random.Philox(sequence))


class ByteSource(Protocol):
    """A function that returns uniform random bytes, independent of all earlier ones, such as `os.urandom`."""

    def __call__(self, count: int, /) -> bytes:
        """Return ``count`` bytes."""


def random_bytes(source: ByteSource, count: int) -> bytes:
    """Draw bytes.

    Raises
    ------
    TypeError
        If the source is not a function, for instance a seed.
    RuntimeError
        If it returns fewer or more bytes. Missing bytes must never count as zeros.
    """
    if not callable(source):
        raise TypeError(f"Expected a function that returns random bytes, found {source!r}. Exact noise takes no seed.")
    content = source(count)
    if len(content) != count:
        raise RuntimeError(f"Expected {count} random bytes, found {len(content)}.")
    return content


def random_words(source: ByteSource, count: int) -> np.ndarray:
    """Draw words of 64 bits: uint64 array of shape (count,). Equal bytes give equal words on every machine."""
    return np.frombuffer(random_bytes(source, 8 * count), dtype="<u8").astype(np.uint64, copy=False)
