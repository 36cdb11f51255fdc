from __future__ import annotations

import pytest

from zetadp.base.logs import is_milestone


@pytest.mark.parametrize("total", [1, 5, 19, 20, 21, 39, 917])
def test_milestones_are_few_evenly_spread_and_end_with_the_last_step(total):
    milestones = [done for done in range(1, total + 1) if is_milestone(done, total)]
    assert milestones[-1] == total
    assert len(milestones) == min(total, 20)
    gaps = [later - earlier for earlier, later in zip([0, *milestones], milestones, strict=False)]
    assert max(gaps) - min(gaps) <= 1
