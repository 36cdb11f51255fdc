from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from zetadp.mechanism import grid as grids
from zetadp.mechanism.grid import MOST_BITS, Grid, from_grid, norms_within, whole_steps

BOUNDS = st.sampled_from([1.0, 2.0, 0.5, 0.37, 1e-3, 3.0, 1e30, 2.0**-100]) | st.floats(1e-6, 1e6)


def on_grid(rows: torch.Tensor, grid: Grid) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows in whole steps of the grid, int64, and whether each is within the bound."""
    values, within = whole_steps(rows.clone(), grid)
    return values.long(), torch.ones(len(rows), dtype=torch.bool) if within is None else within


def truncated(number: float, grid: Grid) -> int:
    """The number in whole steps toward zero, by rational arithmetic."""
    return math.trunc(Fraction(number) * 2**grid.bits / Fraction(grid.bound))


@given(
    bound=BOUNDS,
    bits=st.integers(1, MOST_BITS),
    relative=st.lists(st.floats(-1.2, 1.2) | st.floats(-1e-9, 1e-9), min_size=1, max_size=6),
    width=st.sampled_from([torch.float32, torch.float64]),
)
@example(bound=1.0, bits=31, relative=[1.0], width=torch.float32)
@example(bound=1.0, bits=1, relative=[0.0, -0.0, 5e-324], width=torch.float64)
@example(bound=2.0**-100, bits=31, relative=[1e-9, -1e-14, 0.4], width=torch.float32)  # subnormal in float32
@example(bound=2.0**-100, bits=31, relative=[1e-220, 5e-324], width=torch.float64)
@example(bound=1e30, bits=31, relative=[1e278, 0.5], width=torch.float64)  # overflows when scaled
def test_truncation_is_exact_and_longer_rows_give_nothing(bound, bits, relative, width):
    grid = Grid(bound, bits)
    rows = torch.tensor([relative], dtype=torch.float64).mul(bound).to(width)
    values, within = on_grid(rows, grid)
    if not rows.isfinite().all():
        assert not within[0]
        assert not values.any()
        return
    wanted = [truncated(number, grid) for number in rows[0].tolist()]
    short = sum(each**2 for each in wanted) <= 4**bits
    # A number just above the bound may be left out though its truncation is not.
    assert bool(within[0]) == short or (short and rows.abs().max() > bound)
    assert values.tolist() == [wanted if within[0] else [0] * len(wanted)]
    assert sum(value**2 for value in values[0].tolist()) <= 4**bits
    for value, number in zip(values[0].tolist(), rows[0].tolist(), strict=True):
        assert abs(value) * Fraction(bound) <= abs(Fraction(number)) * 2**bits
        assert value * number >= 0


@pytest.mark.parametrize("bound", [0.37, 1.1, 0.7, 0.1, 1e-3])
def test_quotients_that_a_division_rounds_to_an_integer_are_truncated(bound):
    grid = Grid(bound, 26)
    whole = np.random.default_rng(1).integers(1, 2**16, size=4000)
    # Half of the numbers lie right below an integer of the grid, half right above.
    beside = np.nextafter(whole * grid.step, np.where(np.arange(whole.size) % 2, 0.0, np.inf))
    rows = torch.from_numpy(beside * np.where(whole % 2, 1, -1)).reshape(2, -1)
    plain = (rows * 2.0**grid.bits / bound).long()
    values, within = on_grid(rows, grid)
    wanted = torch.tensor([[truncated(number, grid) for number in row] for row in rows.tolist()])
    assert within.all()
    assert torch.equal(values, wanted)
    assert (plain.abs() > wanted.abs()).sum() > 20, "the case is not met"


@pytest.mark.parametrize("bound", [0.37, 1e-3, 7.3])
def test_what_a_gpu_takes_back_where_a_quotient_was_rounded_up_is_what_a_cpu_does(bound):
    grid = Grid(bound, 20)
    whole = np.arange(1, 5002, dtype=np.float64)
    beside = np.nextafter(whole * grid.step, np.where(np.arange(whole.size) % 2, 0.0, np.inf))
    rows = torch.from_numpy(beside * np.where(whole % 2, 1, -1)).reshape(-1, 3)
    rows = torch.cat([rows, torch.tensor([[math.nan, math.inf, 0.0]])])
    scaled = rows * 2.0**grid.bits
    steps = scaled / bound
    reached = (steps.trunc() == steps) & (steps.abs() < 2**grid.bits)
    there = grids._rounded_up_there(scaled, reached, grid)
    expected = torch.zeros(rows.shape, dtype=torch.float64)
    expected[reached] = torch.from_numpy(grids._rounded_up(steps[reached].numpy(), scaled[reached].numpy(), grid))
    assert expected.abs().sum() > 20, "the case is not met"
    assert torch.equal(there, expected)


@pytest.mark.parametrize("bits", [1, 7, 15, 16, 17, 30, 31])
def test_norm_check_is_exact_at_the_bound(bits):
    grid, most = Grid(1.0, bits), 2**bits
    # (4 a)**2 = (2 a)**2 * 4, and 3-4-5 scaled would not fit: sums of four squares hit the bound exactly.
    half = most // 2
    rows = [[most, 0, 0, 0], [half] * 4, [-half, half, -half, half], [most, 1, 0, 0], [half, half, half, half + 1]]
    rows += [[most - 1, 1, 0, 0], [0, 0, 0, -most], [0, 0, 0, -most - 1], [0, 0, 0, 0]]
    wanted = [sum(value**2 for value in row) <= 4**bits for row in rows]
    assert True in wanted[1:]
    assert False in wanted
    assert norms_within(torch.tensor(rows), grid).tolist() == wanted


@pytest.mark.parametrize("bound", [1.0, 0.37])
@pytest.mark.parametrize("bits", [1, 16, 31])
def test_rows_at_the_bound_are_within_and_rows_beyond_are_not(bits, bound):
    """Also among rows that are far within, for which no integers are added."""
    grid = Grid(bound, bits)
    far = [grid.step, 0.0]
    rows = [[bound, 0.0], [bound, grid.step], [bound, math.nan], far, [1e30, 0.0]]
    values, within = on_grid(torch.tensor(rows, dtype=torch.float64), grid)
    assert within.tolist() == [True, False, False, True, False]
    assert values.tolist() == [[2**bits, 0], [0, 0], [0, 0], [1, 0], [0, 0]]
    single, alone = on_grid(torch.tensor([far], dtype=torch.float64), grid)
    assert (single.tolist(), alone.tolist()) == ([[1, 0]], [True])


def test_complex_rows_are_refused_because_truncation_would_drop_their_imaginary_parts():
    with pytest.raises(ValueError, match="pairs of real ones"):
        whole_steps(torch.zeros(1, 2, dtype=torch.complex64), Grid(1.0, 8))


@given(sigma=st.floats(0.01, 1e4), population=st.integers(1, 10**5), dimension=st.integers(1, 10**8), bound=BOUNDS)
def test_grid_is_the_coarsest_that_is_fine_enough_and_sums_fit(sigma, population, dimension, bound):
    grid = Grid.choose(bound, noise_multiplier=sigma, population=population, dimension=dimension)

    def fine(bits: int) -> bool:
        return population * 2**20 <= sigma * 2**bits * (1 + 1e-12) and dimension * 4**20 <= 4**bits * (1 + 1e-12)

    assert fine(grid.bits) or grid.bits == MOST_BITS
    assert grid.bits == 1 or not fine(grid.bits - 1)
    assert (population + 64 * sigma) * 2**grid.bits < 2**62


def test_back_from_the_grid_divides_once_by_the_expected_number():
    grid = Grid(0.37, 26)
    total = torch.tensor([2**26, -3 * 2**25, 0, 2**60])
    wanted = np.array([1, -1.5, 0, 2.0**34]) * 0.37 / 24
    found = from_grid(total, grid, 24)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), wanted, rtol=2**-23)


def test_the_grid_of_unequal_noise_is_fine_enough_for_the_least_and_has_room_for_the_most():
    given = {"noise_multiplier": 0.01, "population": 44, "dimension": 100}
    assert Grid.choose(1.0, **given, most_noise=5.0) == Grid.choose(1.0, **given)
    assert Grid.choose(1.0, **given).bits > Grid.choose(1.0, **{**given, "noise_multiplier": 5.0}).bits
    with pytest.raises(ValueError, match="fit in"):
        Grid.choose(1.0, **given, most_noise=2.0**30)
