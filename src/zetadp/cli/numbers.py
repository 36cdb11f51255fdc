"""Numbers on the command line: each function reads one kind of number, for ``type`` of argparse, or refuses it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from fractions import Fraction


def number_that(expected: str, fits: Callable[[float], bool], why: str = "") -> Callable[[str], float]:
    """Return a function that reads a number and refuses one out of range.

    Parameters
    ----------
    expected
        The numbers that are allowed, in words.
    fits
        Whether a number is allowed.
    why
        End of the error message.
    """

    def read(text: str) -> float:
        value = _number(text)
        if not fits(value):
            raise argparse.ArgumentTypeError(f"expected {expected}, found {text!r}{why}")
        return value

    return read


positive_number = number_that("a number above zero", lambda value: value > 0)
probability = number_that("a probability above zero and at most 1", lambda value: 0 < value <= 1)
share = number_that("a share from 0 to 1", lambda value: 0 <= value <= 1)


def delta(text: str) -> float:
    """Read a delta: a positive number below 1, and no smaller than the accountants can state."""
    from zetadp.base.epsilon import SMALLEST_DELTA

    value = positive_number(text)
    if not SMALLEST_DELTA <= value < 1:
        raise argparse.ArgumentTypeError(f"expected a delta of at least {SMALLEST_DELTA:g} and below 1, found {text!r}")
    return value


def count(text: str) -> int:
    """Read a whole number above zero."""
    value = positive_number(text)
    if value != int(value):
        raise argparse.ArgumentTypeError(f"expected a whole number, found {text!r}")
    return int(value)


def _number(text: str) -> float:
    try:
        return float(Fraction(text.replace(" ", "")))
    except (ValueError, ZeroDivisionError, OverflowError):
        raise argparse.ArgumentTypeError(f"expected a number such as 0.5, 1e-3 or 24/44, found {text!r}") from None
