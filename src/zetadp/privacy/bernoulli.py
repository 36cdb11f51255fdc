"""Poisson sampling from the operating system's generator: who takes part in a round, with exactly the stated odds."""

from __future__ import annotations

import os
from fractions import Fraction

import numpy as np

from zetadp.privacy.byte_source import ByteSource, random_words


def bernoulli_mask(probability: Fraction | int, size: int, *, source: ByteSource = os.urandom) -> np.ndarray:
    """Draw independent booleans that are true with exactly the given probability.

    Parameters
    ----------
    probability
        A rational number in [0, 1], for instance ``Fraction(expected) / population``. A float is refused: 24 / 44 is
        not the float nearest to it.
    size
        How many.
    source
        Where random bytes come from; the operating system unless a test says otherwise.

    Returns
    -------
    Boolean array of shape (size,).

    Examples
    --------
    >>> bernoulli_mask(Fraction(24, 44), 44).shape
    (44,)
    """
    if not isinstance(probability, Fraction | int) or not 0 <= probability <= 1:
        msg = f"Expected a Fraction from 0 to 1 as probability, found {probability!r}."
        raise ValueError(msg)
    if probability in (0, 1):
        return np.full(size, probability == 1)
    first = random_words(source, size)
    whole, rest = divmod(probability * 2**64, 1)
    result: np.ndarray = first < np.uint64(whole)
    # U and the probability agree in 64 bits. What follows them decides: it is uniform again, and must be below `rest`.
    for position in np.flatnonzero(first == np.uint64(whole)):
        result[position] = bernoulli_mask(rest, 1, source=source)[0]
    return result
