from __future__ import annotations

import inspect
import math
import os
from fractions import Fraction

import numpy as np
import pytest

from zetadp.privacy.mechanism import bernoulli_mask

SHARE = Fraction(24, 44)


def given(*values: int):
    """A source that gives these bytes, one after the other."""
    content = bytes(values)
    position = 0

    def source(count: int) -> bytes:
        nonlocal position
        position += count
        assert position <= len(content), "more bits were drawn than were needed"
        return content[position - count : position]

    return source


@pytest.mark.parametrize("probability", [SHARE, Fraction(1, 3), Fraction(2**64 - 1, 2**64 + 1), Fraction(1, 10**40)])
def test_decision_is_exact_at_every_byte_of_the_probability(probability):
    """A number agrees with the binary digits of p for some bytes, and is then below or above them by one."""
    digits, rest = [], probability
    for _ in range(32):
        whole, rest = divmod(rest * 256, 1)
        digits.append(whole)
    for agreed, digit in enumerate(digits):
        if digit:
            assert bernoulli_mask(probability, 1, source=given(*digits[:agreed], digit - 1)).tolist() == [True]
        if digit < 255:
            assert bernoulli_mask(probability, 1, source=given(*digits[:agreed], digit + 1)).tolist() == [False]


def test_only_the_undecided_draw_is_continued():
    digit, rest = divmod(SHARE * 256, 1)
    further = math.floor(rest * 256)
    source = given(0, digit, 255, digit, further - 1, further + 1)
    assert bernoulli_mask(SHARE, 4, source=source).tolist() == [True, True, False, False]


@pytest.mark.parametrize("probability", [24 / 44, Fraction(45, 44), -1])
def test_what_is_no_exact_probability_is_refused(probability):
    with pytest.raises(ValueError, match="Fraction from 0 to 1"):
        bernoulli_mask(probability, 3)


def test_operating_system_is_the_source_and_a_seed_is_refused():
    assert inspect.signature(bernoulli_mask).parameters["source"].default is os.urandom
    assert not np.array_equal(bernoulli_mask(SHARE, 200), bernoulli_mask(SHARE, 200))
    with pytest.raises(TypeError, match="takes no seed"):
        bernoulli_mask(SHARE, 3, source=0)
