r"""The decisions of the exact normal sampler, made in integers. Of each uniform number, only some bits are known.

The magnitude of a standard normal is :math:`(i + x)\,h` with strip width h = 1/16. Strip i is drawn with probability
proportional to :math:`w_i = e^{-(ih)^2/2}`, the height of the density at the strip's left edge. The offset x in the
strip is uniform in [0, 1). The candidate is accepted with probability :math:`e^{-((i+x)^2 - i^2) h^2/2}`. The product
of the three is proportional to :math:`e^{-((i+x)h)^2/2}`, so the accepted candidates have exactly the half-normal
distribution.

Each decision compares the known prefix of a uniform number with a number that is enclosed between two integers. It
returns ``None`` if the prefix is too short to decide. The caller then draws more bits. No floating-point number is
used.

The idea to extend uniform numbers when needed is from von Neumann (1951) and Karney (Sampling exactly from the normal
distribution, ACM TOMS 42, 2016, doi:10.1145/2710016). Strips replace Karney's unit intervals, so that fewer candidates
are rejected.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from zetadp.base.randomness import ByteSource, random_bytes

STRIPS = 16
"""Number of strips in one standard deviation. With 16 strips, 2.4 % of the candidates are rejected. More strips would
reject fewer candidates but need larger tables."""
GUARD = 32
"""Number of bits by which enclosures are finer than the prefix in a comparison."""
FURTHER = 64
"""Number of bits that are drawn at a time if a prefix is too short."""


@dataclass(slots=True)
class Prefix:
    """A uniform number U in [0, 1) of which the first bits are known: ``value <= 2**bits * U < value + 1``."""

    value: int
    bits: int

    def extend(self, source: ByteSource) -> None:
        """Draw further bits of the same number."""
        self.value = self.value << FURTHER | int.from_bytes(random_bytes(source, FURTHER // 8), "little")
        self.bits += FURTHER

    @property
    def low(self) -> Fraction:
        """The smallest number with this prefix."""
        return Fraction(self.value, 1 << self.bits)

    @property
    def high(self) -> Fraction:
        """The smallest number that is larger than all numbers with this prefix."""
        return Fraction(self.value + 1, 1 << self.bits)


def exp_bounds(exponent: Fraction, bits: int) -> tuple[int, int]:
    """Enclose ``exp(-exponent)`` between two integers over ``2**bits``.

    Parameters
    ----------
    exponent
        Zero or positive.
    bits
        Fixed-point precision; the two bounds differ by a few units at most.

    Returns
    -------
    low, high
        Integers with ``low <= 2**bits * exp(-exponent) <= high``.
    """
    if exponent < 0:
        raise ValueError(f"Expected an exponent >= 0, found {exponent}.")
    halvings = (exponent.numerator // exponent.denominator + 1).bit_length()  # the reduced exponent is below one
    work = bits + halvings + 8
    one = 1 << work
    numerator, denominator = exponent.numerator << work, exponent.denominator << halvings
    small, large = numerator // denominator, _ceil_div(numerator, denominator)
    # The series of exp(-r), 0 <= r < 1: its terms are enclosed one by one, the rest by the first term left out.
    low = high = term_low = term_high = one
    count = 0
    while term_high > 1:
        count += 1
        term_low = term_low * small // (one * count)
        term_high = _ceil_div(term_high * large, one * count)
        low, high = (low - term_high, high - term_low) if count % 2 else (low + term_low, high + term_high)
    low, high = max(0, low - term_high), min(one, high + term_high)
    for _ in range(halvings):
        low, high = low * low // one, _ceil_div(high * high, one)
    unit = 1 << (work - bits)
    return low // unit, _ceil_div(high, unit)


def _ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


@lru_cache(maxsize=8)
def strip_sums(bits: int) -> tuple[list[int], list[int], int, int]:
    """Enclose the sums ``w_0 + ... + w_i`` and the sum of all weights, over ``2**bits``.

    Returns
    -------
    lows, highs
        Bounds of the partial sums, for i = 0, 1, ... as far as the weights matter.
    total_low, total_high
        Bounds of the infinite sum.
    """
    lows: list[int] = []
    highs: list[int] = []
    low = high = strip = 0
    weight_high = 1 << bits
    # From strip STRIPS**2 on, each weight is below 1/e of the one before, so the rest is below the last weight.
    while weight_high > 1 or strip <= STRIPS**2:
        weight_low, weight_high = exp_bounds(Fraction(strip**2, 2 * STRIPS**2), bits)
        low, high, strip = low + weight_low, high + weight_high, strip + 1
        lows.append(low)
        highs.append(high)
    return lows, highs, low, high + weight_high


def strip_of(uniform: Prefix) -> int | None:
    """Return the strip i with ``w_0 + ... + w_{i-1} <= U (w_0 + w_1 + ...) < w_0 + ... + w_i``."""
    lows, highs, total_low, total_high = strip_sums(uniform.bits + GUARD)
    # Strips surely below: highs[j] <= low end of U times the smallest total. Integers round down.
    strip = bisect_right(highs, uniform.value * total_low >> uniform.bits)
    surely_below_next = strip < len(lows) and (uniform.value + 1) * total_high <= lows[strip] << uniform.bits
    return strip if surely_below_next else None


def drop(strip: int, x: Fraction) -> Fraction:
    """Return ``((i + x)**2 - i**2) h**2 / 2``, the logarithm by which the density falls within a strip."""
    return x * (2 * strip + x) / (2 * STRIPS**2)


def is_accepted(strip: int, x: Prefix, uniform: Prefix) -> bool | None:
    """Return whether the candidate ``i + x`` is accepted: whether ``U < exp(-drop(i, x))``."""
    bits = uniform.bits + GUARD
    if uniform.value + 1 << GUARD <= exp_bounds(drop(strip, x.high), bits)[0]:
        return True
    if uniform.value << GUARD >= exp_bounds(drop(strip, x.low), bits)[1]:
        return False
    return None


def rounded(strip: int, x: Prefix, scale: Fraction) -> int | None:
    """Return ``floor(scale * h * (i + x) + 1/2)``, the magnitude of the rounded normal."""
    low = (strip + x.low) * scale / STRIPS + Fraction(1, 2)
    high = (strip + x.high) * scale / STRIPS + Fraction(1, 2)
    lowest, highest = low.__floor__(), high.__ceil__() - 1  # `high` itself is not reached
    return lowest if lowest == highest else None


def candidate(choice: Prefix, x: Prefix, uniform: Prefix, scale: Fraction, source: ByteSource) -> int | None:
    """Return the magnitude of one candidate, or ``None`` if it is rejected; draw further bits until all is decided.

    Parameters
    ----------
    choice, x, uniform
        Prefixes of three independent uniform numbers: for the strip, the offset within it, and the acceptance.
    scale
        Standard deviation of the normal before rounding.
    source
        Where further bits come from.
    """
    while (strip := strip_of(choice)) is None:
        choice.extend(source)
    while (keep := is_accepted(strip, x, uniform)) is None:
        x.extend(source)
        uniform.extend(source)
    if not keep:
        return None
    while (magnitude := rounded(strip, x, scale)) is None:
        x.extend(source)
    return magnitude
