from __future__ import annotations

import pytest
import torch
from contributing import clipped_sums
from training_builder import NETWORKS, TINY, network, patients

from zetadp.base.tensors import Layout
from zetadp.privacy.grid import Grid


@pytest.mark.parametrize("bound", [1e-3, 1.0, 0.37, 1e3])
def test_integer_sums_are_the_clipped_sums_and_never_longer_than_the_bound(bound):
    model = network(TINY)
    layout = Layout.of(model)
    images, labels = patients(5, 4, domain=TINY.domain)
    images[2] = float("nan")
    groups = torch.arange(5)
    grid = Grid.choose(bound, noise_multiplier=1.0, population=5, dimension=layout.dimension)

    def sums(**more):
        return clipped_sums(model, layout, images, labels, groups, count=5, bound=bound, **more)

    plain, exact = sums(chunk=8), sums(chunk=8, grid=grid)
    assert exact.sums.dtype == torch.int64
    assert exact.not_finite == plain.not_finite == 1
    for row, expected in zip(exact.sums, plain.sums.double(), strict=True):
        assert sum(int(value) ** 2 for value in row) <= 4**grid.bits
        torch.testing.assert_close(row.double() * grid.step, expected, rtol=1e-4, atol=grid.step)
    assert (exact.sums[2] == 0).all()


@pytest.mark.parametrize("family", NETWORKS)
@pytest.mark.parametrize("other", [0.0, 1e-30, 3.0, 1e25, float("nan")])
def test_no_bit_of_a_contribution_depends_on_who_shares_its_pass(family, other):
    settings = NETWORKS[family]
    model = network(settings)
    images, labels = patients(5, 4, domain=settings.domain)
    changed = images.clone()
    changed[1] *= other
    grid = Grid.choose(0.5, noise_multiplier=1.0, population=5, dimension=Layout.of(model).dimension)

    def each(images):
        how = {"count": 5, "bound": 0.5, "chunk": 20, "grid": grid}
        return clipped_sums(model, Layout.of(model), images, labels, torch.arange(5), **how).sums

    others = [0, 2, 3, 4]
    assert torch.equal(each(images)[others], each(changed)[others])
