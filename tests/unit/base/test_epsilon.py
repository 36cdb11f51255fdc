"""Figures of guarantees as text, never below the figure itself, and targets, whose names are never above them."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zetadp.base.epsilon import Target, rounded_up
from zetadp.base.validation import UserError

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


@given(st.floats(1e-3, 1e7))
@example(1.2345678)
@example(1e6)
def test_the_name_of_a_target_promises_no_more_than_it_and_is_read_as_it_was_written(epsilon):
    target = Target(epsilon)
    assert epsilon * (1 - 2e-5) < target.epsilon <= epsilon
    assert float(str(target)) == target.epsilon
    assert Target.named(str(target)) == target


@pytest.mark.parametrize(
    ("label", "private", "clipped"), [("8", True, True), ("inf", False, True), ("unclipped", False, False)]
)
def test_the_three_kinds_of_targets_are_values(label, private, clipped):
    target = Target.named(label)
    assert (target.private, target.clipped, str(target)) == (private, clipped, label)


@pytest.mark.parametrize("value", [True, "1e400", " +1e400", 10**400, "1e-400", None, "eight"])
def test_what_is_no_epsilon_is_not_taken_for_one(value):
    with pytest.raises(UserError, match="Expected epsilon above zero, inf or unclipped, found "):
        Target.read(value)


@pytest.mark.parametrize("given", [(0.0,), (math.nan,), (8.0, False)])
def test_a_target_that_means_nothing_cannot_exist(given):
    with pytest.raises(ValueError, match="Expected"):
        Target(*given)
