"""How many are mixed into a row, and when that is refused."""

from __future__ import annotations

import pytest

from zetadp.base.validation import UserError
from zetadp.rows.degree import best_degree


def test_rows_that_are_open_to_some_classes_mix_fewer():
    whole = best_degree(1, 1e-5, population=50_000, rows=50_000)
    assert best_degree(1, 1e-5, population=50_000, rows=50_000, share=0.03) == pytest.approx(whole * 0.03**0.5)


def test_a_degree_below_one_is_refused_and_fewer_rows_proposed():
    with pytest.raises(UserError, match=r"50000 rows of 484 patients.*for example 484"):
        best_degree(1, 1e-5, population=484, rows=50_000)
    assert best_degree(1, 1e-5, population=484, rows=484) > 1
