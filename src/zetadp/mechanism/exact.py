r"""Exact normal noise, rounded to integers, from the operating system's generator.

Floating-point noise has gaps in its low-order bits, and these gaps can reveal the sum (Mironov, On significance of the
least significant bits for differential privacy, 2012, doi:10.1145/2382196.2382264). Here the noise is
:math:`\lfloor sZ + 1/2 \rfloor` with Z standard normal, drawn with exactly its probabilities. For an integer S,
:math:`S + \lfloor sZ + 1/2 \rfloor = \lfloor S + sZ + 1/2 \rfloor`. The release is therefore post-processing of the
continuous Gaussian mechanism, and every accountant's bound for this mechanism holds.

Floating-point arithmetic makes a decision only if a proven error bound leaves no doubt. It uses only operations that
IEEE 754 rounds correctly, and no library's exponential or logarithm. All other decisions, for a few candidates in a
million, are made in integers, with as many further random bits as necessary (`zetadp.mechanism.exact_decisions`).
"""

from __future__ import annotations

import os
from fractions import Fraction
from functools import lru_cache

import numpy as np

from zetadp.base.randomness import ByteSource, random_words
from zetadp.mechanism.exact_decisions import STRIPS, Prefix, candidate, exp_bounds, strip_of, strip_sums

BLOCK = 1 << 15
"""Number of candidates in one pass. All intermediate arrays then stay in cache."""
OFFSET_BITS, CHOICE_BITS, KEEP_BITS = 52, 32, 32
"""Bits of the uniform numbers in the first pass: for the offset in the strip, the strip, and the acceptance."""
INDEX_BITS = 16
"""Leading bits of the strip's uniform number that index a table. In most cases they determine the strip."""
UNDECIDED_INDEX = 255
"""Entry of this table if the leading bits do not determine the strip."""
LARGEST_SCALE = 1 << 48
"""Largest standard deviation. Up to this value, the error bound of `_Scaled` holds in float64."""
LIMIT = 1 << 62
"""Bound on the noise, so that it can be added to sums below this bound in int64."""
DEGREE = 14
"""Degree of the polynomial for the exponential."""


def rounded_normal(size: int, scale: Fraction | int, *, source: ByteSource = os.urandom) -> np.ndarray:
    """Draw independent integers ``floor(scale * Z + 1/2)`` with exact probabilities, where Z is standard normal.

    Calls share no state, so several processes can each draw a part.

    Parameters
    ----------
    size
        Number of integers.
    scale
        Standard deviation before rounding, a positive rational number up to 2**48. The variance of the integers is
        larger by 1/12, up to terms of the order ``exp(-2 (pi scale)**2)``.
    source
        Source of random bytes. Only tests replace the operating system's generator. There is no seed.

    Returns
    -------
    int64 array of shape (size,).

    Raises
    ------
    OverflowError
        If a draw is 2**62 or more. At the largest scale that has probability ``exp(-2**27)``. It depends on nothing
        but the noise, and nothing is released.

    Examples
    --------
    >>> noise = rounded_normal(1000, Fraction(7, 2))
    >>> noise.dtype, noise.shape
    (dtype('int64'), (1000,))
    """
    scale = Fraction(scale)
    if not 0 < scale <= LARGEST_SCALE:
        raise ValueError(f"Expected 0 < scale <= 2**48, found {float(scale):g}.")
    result = np.empty(size, dtype=np.int64)
    filled = 0
    while filled < size:
        # All but 2.4 % of the candidates are kept; asking for a few more saves a further pass.
        missing = size - filled
        count = min(BLOCK, missing + missing // 32 + 8)
        words = random_words(source, 2 * count)
        values = _candidates(words[:count], words[count:], scale, source)[:missing]
        result[filled : filled + len(values)] = values
        filled += len(values)
    return result


def _candidates(first: np.ndarray, second: np.ndarray, scale: Fraction, source: ByteSource) -> np.ndarray:
    """Return the accepted candidates, in order. Two random words describe each candidate.

    First word: 52 bits of the offset x in the strip; the lowest bit is the sign. Second word: 32 bits that choose the
    strip, 32 bits that accept.
    """
    offset = first >> np.uint64(64 - OFFSET_BITS)
    negative = (first & np.uint64(1)).astype(bool)
    choice = second >> np.uint64(KEEP_BITS)
    uniform = second & np.uint64((1 << KEEP_BITS) - 1)
    x = offset.astype(np.float64) * 2.0**-OFFSET_BITS

    strip, doubtful = _strips(choice)
    keep = uniform < _acceptance_thresholds()[strip]
    unclear = np.flatnonzero(~keep)
    accepted, doubtful_keep = _accept(strip[unclear], x[unclear], uniform[unclear])
    keep[unclear] = accepted
    magnitude, doubtful_round = _scaled(scale).rounded(strip, x)
    doubtful |= doubtful_round & keep
    doubtful[unclear] |= doubtful_keep

    values: np.ndarray = np.where(negative, -magnitude, magnitude)
    for position in np.flatnonzero(doubtful):
        exact = candidate(
            Prefix(int(choice[position]), CHOICE_BITS),
            Prefix(int(offset[position]), OFFSET_BITS),
            Prefix(int(uniform[position]), KEEP_BITS),
            scale,
            source,
        )
        keep[position] = exact is not None
        if exact is not None:
            if exact >= LIMIT:
                raise OverflowError(
                    "A draw of the noise left the range of int64; nothing was released. Run the round again."
                )
            values[position] = -exact if negative[position] else exact
    accepted_values: np.ndarray = values[keep]
    return accepted_values


def _strips(choice: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the strip that each 32-bit prefix chooses, and whether the prefix is too short to decide."""
    boundaries, index = _strip_tables()
    strip = index[choice >> np.uint64(CHOICE_BITS - INDEX_BITS)].astype(np.intp)
    doubtful = np.zeros(len(choice), dtype=bool)
    coarse = np.flatnonzero(strip == UNDECIDED_INDEX)
    chosen = np.searchsorted(boundaries, choice[coarse])
    # A prefix equal to a boundary contains it. The last boundary contains the whole tail.
    doubtful[coarse] = boundaries[chosen] == choice[coarse]
    strip[coarse] = chosen
    return strip, doubtful


@lru_cache(maxsize=1)
def _strip_tables() -> tuple[np.ndarray, np.ndarray]:
    """Return the 32-bit prefixes that contain a boundary between strips, and the strip of each 16-bit prefix.

    A prefix above boundary i - 1 and below boundary i has strip i. A 16-bit prefix that contains a boundary has
    `UNDECIDED_INDEX`.
    """
    bits = CHOICE_BITS + 64
    lows, highs, total_low, total_high = strip_sums(bits)
    boundaries: list[int] = []
    for low, high in zip(lows, highs, strict=True):
        below, above = (low << CHOICE_BITS) // total_high, (high << CHOICE_BITS) // total_low
        last = above >= (1 << CHOICE_BITS) - 1
        assert last or below == above, "the enclosure of a boundary is too wide"
        boundaries.append((1 << CHOICE_BITS) - 1 if last else below)
        if last:
            break
    assert len(boundaries) < UNDECIDED_INDEX
    index = np.full(1 << INDEX_BITS, UNDECIDED_INDEX, dtype=np.uint8)
    for prefix in range(1 << INDEX_BITS):
        strip = strip_of(Prefix(prefix, INDEX_BITS))
        if strip is not None:
            index[prefix] = strip
    return np.array(boundaries, dtype=np.uint64), index


@lru_cache(maxsize=1)
def _acceptance_thresholds() -> np.ndarray:
    """Return for each strip the 32-bit prefix below which a candidate is accepted at every offset in the strip."""
    drops = [Fraction(2 * strip + 1, 2 * STRIPS**2) for strip in range(len(_strip_tables()[0]))]
    return np.array([exp_bounds(drop, KEEP_BITS)[0] for drop in drops], dtype=np.uint64)


def _accept(strip: np.ndarray, x: np.ndarray, uniform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compare the acceptance's 32-bit prefix with ``exp(-t)``, ``t = x (2 i + x) / 512``; return accepted, doubtful.

    Error of the polynomial for ``exp(-t)``, with u = 2**-53 and t < 1/2 as strips stay below 7 * 16:

    - t: truncating x loses less than 2 u, which changes t by less than ``(2 i + 2) 2 u / 512 < u``; three roundings
      with relative error u each change it by less than 3 u / 2;
    - terms of the series after degree 14: less than ``0.5**15 / 15! < u``;
    - Horner's rule with 28 operations: less than ``29 u exp(1/2) < 48 u``; rounding of its coefficients: 2 u.

    The sum is below ``2**6 u = 2**-47``. The margin is ``2**-44``, or ``2**-12`` in units of the prefix.
    """
    t = x * (2.0 * strip + x) * (0.5 / STRIPS**2)
    value = np.full_like(t, _COEFFICIENTS[-1])
    for coefficient in _COEFFICIENTS[-2::-1]:
        value *= t
        value += coefficient
    value *= 2.0**KEEP_BITS
    margin = 2.0 ** (KEEP_BITS - 44)
    accepted = uniform + 1.0 <= value - margin
    refused = uniform >= value + margin
    return accepted, ~(accepted | refused)


def _taylor() -> list[float]:
    """Return the coefficients of ``exp(-t)``, each the float64 nearest to the fraction."""
    coefficients = [Fraction(1)]
    for power in range(1, DEGREE + 1):
        coefficients.append(-coefficients[-1] / power)
    return [float(fraction) for fraction in coefficients]


_COEFFICIENTS = _taylor()


class _Scaled:
    """Rounding of ``scale * h * (i + x)`` for one scale.

    ``scale * h * i + 1/2`` is split exactly into an integer and a fraction, strip by strip; only ``width * x``, with
    ``width = scale * h``, and the fraction are floats.
    """

    def __init__(self, scale: Fraction) -> None:
        width = scale / STRIPS
        starts = [divmod(width * strip + Fraction(1, 2), 1) for strip in range(len(_strip_tables()[0]))]
        self.whole = np.array([whole for whole, _ in starts], dtype=np.int64)
        self.fraction = np.array([float(fraction) for _, fraction in starts])
        self.width = float(width)
        # With u = 2**-53, truncating x and rounding width, product, sum and fraction give an error of less than
        # 5 u width + 2 u. The bound used is 8 u (width + 1).
        self.error = (self.width + 1) * 2.0**-50

    def rounded(self, strip: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ``floor(scale * h * (i + x) + 1/2)``, and where the error bound is too wide to decide."""
        value = self.width * x
        value += self.fraction[strip]
        low = np.floor(value - self.error)
        doubtful = low != np.floor(value + self.error)
        return self.whole[strip] + low.astype(np.int64), doubtful


@lru_cache(maxsize=8)
def _scaled(scale: Fraction) -> _Scaled:
    return _Scaled(scale)
