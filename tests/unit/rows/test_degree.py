from __future__ import annotations

import math

import pytest

from zetadp.base.validation import UserError
from zetadp.rows.degree import BEST_RATIO, best_degree


@pytest.mark.parametrize(("epsilon", "fifty", "sixty"), [(0.1, 3.7, 4.0), (1, 30.3, 33.2), (8, 188.1, 206.1)])
def test_degrees_of_the_paper_s_sizes(epsilon, fifty, sixty):
    for size, degree in ((50_000, fifty), (60_000, sixty)):
        assert best_degree(epsilon, 1e-5, population=size, rows=size) == pytest.approx(degree, abs=0.05)


def test_the_constant_is_where_the_theorem_has_its_maximum():
    def gain(nu: float) -> float:
        return nu * math.log1p(1 / nu**2)

    assert gain(BEST_RATIO) > max(gain(BEST_RATIO * 0.999), gain(BEST_RATIO * 1.001))


def test_rows_that_are_open_to_some_classes_mix_fewer():
    whole = best_degree(1, 1e-5, population=50_000, rows=50_000)
    assert best_degree(1, 1e-5, population=50_000, rows=50_000, share=0.03) == pytest.approx(whole * 0.03**0.5)


def test_a_degree_below_one_is_refused_and_fewer_rows_proposed():
    with pytest.raises(UserError, match=r"50000 rows of 484 patients.*for example 484"):
        best_degree(1, 1e-5, population=484, rows=50_000)
    assert best_degree(1, 1e-5, population=484, rows=484) > 1
