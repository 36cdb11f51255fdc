"""Figures of guarantees as text: never below the figure itself, and never much above it."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zetadp.base.epsilon import rounded_up

DIGITS = st.integers(1, 6)


@given(st.floats(1e-9, 1e9), DIGITS)
@example(7.9801, 4)
@example(math.nextafter(1.0, 2.0), 4)
@example(9.9991, 4)
@example(0.29, 2)
@example(12345.6, 4)
def test_what_is_printed_is_not_below_the_figure_and_within_one_last_digit_above(value, digits):
    printed, true = Decimal(rounded_up(value, digits)), Decimal(repr(value))
    assert float(printed) >= value
    assert len(printed.normalize().as_tuple().digits) <= digits
    assert printed - true < Decimal(10) ** (true.adjusted() - digits + 1)


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "1"), (8, "8"), (0.0, "0"), (math.inf, "inf"), ("inf", "inf"), (1.10001, "1.101")]
)
def test_round_figures_and_infinity_are_printed_plainly(value, text):
    assert rounded_up(value) == text
