from __future__ import annotations

import argparse

import pytest

from zetadp.cli import numbers


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (numbers.share, "-0.1"),
        (numbers.share, "1.01"),
        (numbers.share, "nan"),
        (numbers.positive_number, "0"),
        (numbers.positive_number, "1e400"),
        (numbers.positive_number, "inf"),
        (numbers.probability, "0"),
        (numbers.delta, "1"),
        (numbers.count, "2.5"),
    ],
)
def test_a_number_out_of_range_is_refused_and_named(read, text):
    with pytest.raises(argparse.ArgumentTypeError, match=f"found '{text}'"):
        read(text)


def test_the_ends_of_a_range_and_fractions_are_read():
    assert [numbers.share("0"), numbers.share("1"), numbers.probability("1")] == [0, 1, 1]
    assert numbers.probability("24 / 44") == 24 / 44
    assert numbers.count("60000") == 60000
