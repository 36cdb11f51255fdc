"""Sources of random bytes: the operating system's generator, or in tests any function of the same form.

There is no seed. The output of the operating system's generator can neither be predicted from earlier output nor
repeated. This keeps noise and draws secret. `zetadp.base.randomness` has the seeded streams of simulations.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np


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
        If it returns fewer or more bytes. Missing bytes must never be taken for zeros.
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
