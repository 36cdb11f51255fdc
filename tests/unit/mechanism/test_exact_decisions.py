from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from zetadp.mechanism.exact_decisions import (
    STRIPS,
    Prefix,
    candidate,
    drop,
    exp_bounds,
    is_accepted,
    rounded,
    strip_of,
    strip_sums,
)

LONG = 64


def exp(exponent: Fraction) -> Fraction:
    """``exp(-exponent)`` to 120 digits, from the decimal module's correctly rounded exponential."""
    with localcontext() as context:
        context.prec = 120
        return Fraction((-(Decimal(exponent.numerator) / Decimal(exponent.denominator))).exp())


def no_bytes(count: int) -> bytes:
    raise AssertionError("no further bits were needed")


@given(
    exponent=st.fractions(0, 3000, max_denominator=10**30) | st.fractions(0, 1), bits=st.sampled_from([1, 8, 64, 200])
)
@example(exponent=Fraction(0), bits=40)
def test_exponential_lies_between_its_bounds_which_are_close(exponent, bits):
    low, high = exp_bounds(exponent, bits)
    assert Fraction(low, 2**bits) <= exp(exponent) * (1 + Fraction(1, 10**110))
    assert Fraction(high, 2**bits) >= exp(exponent) * (1 - Fraction(1, 10**110))
    assert 0 <= low <= high <= low + 2


def test_strips_have_probabilities_proportional_to_the_density_at_their_left_edge():
    weights = [exp(Fraction(strip**2, 2 * STRIPS**2)) for strip in range(30 * STRIPS)]
    total, reached = sum(weights), Fraction(0)
    for strip, weight in enumerate(weights[: 8 * STRIPS]):
        reached += weight
        boundary = math.floor(reached / total * 2**LONG)
        # The cell that holds the boundary is open, those beside it are not.
        assert strip_of(Prefix(boundary - 1, LONG)) == strip
        assert strip_of(Prefix(boundary, LONG)) is None
        assert strip_of(Prefix(boundary + 1, LONG)) == strip + 1
    assert strip_of(Prefix(0, LONG)) == 0
    assert strip_of(Prefix(0, 1)) is None
    # One cell at the end holds the whole tail, however fine.
    for bits in (8, 64, 128, 192):
        assert strip_of(Prefix(2**bits - 1, bits)) is None


@given(strip=st.integers(0, 110), x=st.integers(2**190, 2**200 - 1))
def test_acceptance_is_the_exponential_of_the_drop(strip, x):
    place = Prefix(x, 200)
    boundary = math.floor(exp(drop(strip, place.low)) * 2**LONG)
    assert is_accepted(strip, place, Prefix(boundary - 1, LONG)) is True
    assert is_accepted(strip, place, Prefix(boundary, LONG)) is None
    if boundary < 2**LONG - 1:
        assert is_accepted(strip, place, Prefix(boundary + 1, LONG)) is False


@given(
    strip=st.integers(0, 200),
    value=st.integers(0, 2**12 - 1),
    scale=st.fractions(Fraction(1, 100), 10**6),
    rest=st.fractions(0, 1),
)
@example(strip=STRIPS // 2, value=0, scale=Fraction(1), rest=Fraction(0))  # exactly one half
@example(strip=STRIPS // 2, value=0, scale=Fraction(1, 2), rest=Fraction(0))
def test_rounding_is_that_of_every_number_with_the_prefix_or_open(strip, value, scale, rest):
    x = Prefix(value, 12)
    inside = x.low + (x.high - x.low) * rest * Fraction(2**40 - 1, 2**40)
    of_edge, of_inside = (math.floor(scale * (strip + each) / STRIPS + Fraction(1, 2)) for each in (x.low, inside))
    found = rounded(strip, x, scale)
    if found is None:
        just_below_the_end = math.ceil(scale * (strip + x.high) / STRIPS + Fraction(1, 2)) - 1
        assert just_below_the_end > of_edge
    else:
        assert found == of_edge == of_inside


def test_all_outcomes_of_short_prefixes_together_enclose_the_exact_probabilities():
    """Walk the whole decision tree with 12 bits for the strip, 4 for the place and 6 for the acceptance, s = 7/10."""
    scale, choice_bits, place_bits, keep_bits = Fraction(7, 10), 12, 4, 6
    strips = [strip_of(Prefix(value, choice_bits)) for value in range(2**choice_bits)]
    decided: dict[int, Fraction] = {}
    refused, open_mass = Fraction(0), Fraction(strips.count(None), 2**choice_bits)
    for strip in set(strips) - {None}:
        mass = Fraction(strips.count(strip), 2 ** (choice_bits + place_bits + keep_bits))
        for x in (Prefix(value, place_bits) for value in range(2**place_bits)):
            magnitude = rounded(strip, x, scale)
            for value in range(2**keep_bits):
                keep = is_accepted(strip, x, Prefix(value, keep_bits))
                if keep is False:
                    refused += mass
                elif keep is None or magnitude is None:
                    open_mass += mass
                else:
                    decided[magnitude] = decided.get(magnitude, Fraction(0)) + mass
    assert sum(decided.values()) + refused + open_mass == 1
    assert open_mass < Fraction(9, 100)
    # Of all candidates, the share sqrt(pi/2) / (h * sum of weights) is kept.
    share = math.sqrt(math.pi / 2) * STRIPS / sum(math.exp(-(i**2) / (2 * STRIPS**2)) for i in range(200))
    edges = [0, *(stats.halfnorm(scale=float(scale)).cdf(np.arange(5) + 0.5))]
    for magnitude, probability in enumerate(np.diff(edges) * share):
        found = float(decided.get(magnitude, 0))
        assert found <= probability <= found + float(open_mass)
    assert float(refused) <= 1 - share <= float(refused + open_mass)


def test_prefix_without_bits_is_extended_until_all_is_decided():
    random = np.random.default_rng(3)
    found = [candidate(Prefix(0, 0), Prefix(0, 0), Prefix(0, 0), Fraction(3), random.bytes) for _ in range(8000)]
    values = np.array([each for each in found if each is not None])
    share = math.sqrt(math.pi / 2) * STRIPS / sum(math.exp(-(i**2) / (2 * STRIPS**2)) for i in range(200))
    assert abs(len(values) - 8000 * share) < 5 * math.sqrt(8000 * share * (1 - share))
    edges = stats.halfnorm(scale=3).cdf(np.r_[-0.5, np.arange(8) + 0.5, np.inf])
    observed = np.bincount(np.minimum(values, 8), minlength=9)
    assert stats.chisquare(observed, np.diff(edges) * len(values)).pvalue > 1e-6


def test_further_bits_follow_those_that_are_known_and_only_where_needed():
    uniform = Prefix(0b101, 3)
    uniform.extend(lambda count: bytes(range(1, count + 1)))
    assert (uniform.value, uniform.bits) == (0b101 << 64 | 0x0807060504030201, 67)
    assert Fraction(5, 8) < uniform.low < uniform.high < Fraction(6, 8)
    clear = (Prefix(0, 32), Prefix(2**51, 52), Prefix(0, 32))
    assert candidate(*clear, Fraction(5), no_bytes) == 0
    assert candidate(Prefix(0, 32), Prefix(2**52 - 1, 52), Prefix(2**32 - 1, 32), Fraction(5), no_bytes) is None


@pytest.mark.parametrize("bits", [4, 20, 64, 150])
def test_sums_of_weights_lie_between_their_bounds(bits):
    weights = [exp(Fraction(strip**2, 2 * STRIPS**2)) for strip in range(40 * STRIPS)]
    lows, highs, total_low, total_high = strip_sums(bits)
    reached = Fraction(0)
    for low, high, weight in zip(lows, highs, weights, strict=False):
        reached += weight
        assert low <= reached * 2**bits <= high
    assert total_low <= sum(weights) * 2**bits <= total_high
    assert total_high - total_low <= 3 * len(lows)
