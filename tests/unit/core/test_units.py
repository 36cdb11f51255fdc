"""Units of the library: whole numbers, in range, nobody's items twice, nobody without items."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zetadp.base.validation import UserError
from zetadp.core.records import checked_units

ITEMS = 12
MASK = np.arange(ITEMS) < 4

REFUSED = {
    "in two patients": ([[range(4), range(3, 8)]], "item 3"),
    "twice in a patient": ([[[0, 0, 1], [2]]], "item 0"),
    "a patient twice": ([[range(4), range(4)]], "item 0"),
    "at two nodes": ([[range(4)], [range(4, 6), [0]]], "item 0"),
    "a mask": ([[MASK, ~MASK]], "unit 0.*flatnonzero"),
    "a mask as a list": ([[MASK.tolist(), (~MASK).tolist()]], "flatnonzero"),
    "a mask as a tensor": ([[torch.from_numpy(MASK)]], "flatnonzero"),
    "negative": ([[range(-4, 0)]], "-4"),
    "beyond the end": ([[range(8, 13)]], "12"),
    "fractions": ([[[0.5, 1.5]]], "whole number"),
    "numbers with a point": ([[np.arange(4.0)]], "whole number"),
    "texts": ([[["a", "b"]]], "whole number"),
    "two axes": ([[np.arange(4).reshape(2, 2)]], "unit 0"),
    "nobody's": ([[range(4), []]], "unit 1"),
    "nobody's, as an array": ([[np.zeros(0, dtype=int)]], "unit 0"),
    "one flat list": ([[0, 1, 2]], "positions"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_units_that_are_no_units_are_refused(name):
    units, words = REFUSED[name]
    with pytest.raises(UserError, match=words):
        checked_units(units, ITEMS)


@pytest.mark.parametrize(
    "units",
    [
        [range(4), range(4, 8)],
        [np.arange(4), np.arange(4, 12, dtype=np.uint8)],
        [torch.arange(4), torch.tensor([7])],
        [(0, 5), [np.int64(3)]],
        np.arange(12).reshape(4, 3),
    ],
)
def test_positions_of_any_whole_kind_are_taken(units):
    (held,) = checked_units([units], ITEMS)
    assert [list(map(int, own)) for own in held] == [list(map(int, own)) for own in units]


def test_items_of_nobody_are_left_out():
    assert len(checked_units([[[0, 1, 2, 3]]], ITEMS)) == 1
