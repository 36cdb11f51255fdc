r"""Gradients as integers on a grid. Their sums are exact in any order.

The step of the grid is :math:`\gamma = B / 2^k`, where B is the clipping norm. A patient's clipped gradient is
truncated toward zero to the grid, so no coordinate and no norm grows. An integer check then ensures that the norm is at
most B: the sum of squares must be at most :math:`4^k`. Where a norm in float64 is below B by more than its proven
error, that check would pass, and is left out. The guarantee depends on this check alone. Earlier floating-point
arithmetic can only cost precision. Sums over patients are exact: they are added up as int64, or as whole numbers in
float64 where no sum can exceed :math:`2^{53}`. Noise with a standard deviation of :math:`\sigma 2^k` steps is added to
them (`zetadp.mechanism.exact`). The conversion to float comes last and is post-processing.

The proof of the Gaussian mechanism holds for real numbers. Mironov 2012 (doi:10.1145/2382196.2382264) shows how
floating-point numbers reveal data. Integer sums and noise follow Kairouz, Liu and Steinke 2021 (arXiv:2102.06387).
Their rounding is random, which makes norms longer. Truncation keeps the sensitivity at B.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from zetadp.accounting.threat import FARTHEST
from zetadp.base.validation import in_range, positive

MOST_BITS = 31
"""Largest k. Squares of grid values up to 2**31 fit in int64."""
SMALLEST_BOUND = 2.0**-100
"""Smallest clipping norm. The largest is its inverse. Between the two, all scaling is exact."""
PRECISION_BITS = 20
"""Truncation should lose less than 2**-20 of the noise and of the clipping norm."""
PART_BITS = 22
"""Bits of a part of the bound. Its products with whole numbers of up to `MOST_BITS` bits are exact in float64."""
HALF = 32
EXACT_SUM = 1 << 53
"""Whole numbers up to this one are exact in float64, and so are their sums up to it, in any order."""
BLOCK, BLOCK_ELSEWHERE = 1 << 17, 1 << 24
"""Approximate number of coordinates in one pass, on a CPU and on a GPU. A pass contains at least one patient."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A grid with step ``bound / 2**bits``; both are public constants of a run.

    Attributes
    ----------
    bound
        The clipping norm B.
    bits
        k; the bound is ``2**k`` steps.
    """

    bound: float
    bits: int

    def __post_init__(self) -> None:
        """Refuse a grid whose squares would not fit in int64, or whose step might not be a normal float."""
        in_range(SMALLEST_BOUND, 1 / SMALLEST_BOUND, bound=self.bound)
        if not 1 <= self.bits <= MOST_BITS:
            raise ValueError(f"Expected 1 <= bits <= {MOST_BITS}, found {self.bits}.")

    @classmethod
    def choose(
        cls, bound: float, *, noise_multiplier: float, population: int, dimension: int, most_noise: float | None = None
    ) -> Grid:
        r"""Return the coarsest grid on which truncation does not matter.

        This is the smallest k, up to 31, that satisfies two conditions:

        - :math:`N / 2^k \le 2^{-20} \sigma`: in every coordinate, all N patients together lose less than a millionth of
          the standard deviation of the noise.
        - :math:`\sqrt d / 2^k \le 2^{-20}`: one patient's gradient of dimension d loses less than a millionth of B in
          norm.

        With more than four million dimensions, or with very little noise, k = 31 does not satisfy them. More than a
        millionth is then lost, but the guarantee is the same.

        Parameters
        ----------
        bound
            The clipping norm B.
        noise_multiplier
            sigma, the standard deviation of the noise in each real component, divided by B. It is the smallest among
            the run's nodes.
        population
            Number N of patients at the node.
        dimension
            Number d of real components of the gradient.
        most_noise
            The largest sigma among the run's nodes, for which sums must have room. None if all nodes have the same.

        Raises
        ------
        ValueError
            If sums of all patients with the noise might not fit in int64, for N + 64 sigma about 2**31.
        """
        positive(noise_multiplier=noise_multiplier, population=population, dimension=dimension)
        steps = 2**PRECISION_BITS * max(population / noise_multiplier, math.sqrt(dimension))
        grid = cls(bound, min(MOST_BITS, math.ceil(math.log2(steps))))
        noise_multiplier = max(noise_multiplier, most_noise or 0.0)
        if (population + FARTHEST * Fraction(noise_multiplier)) * 2**grid.bits >= 2**62:
            raise ValueError(
                f"Expected population + {FARTHEST} noise_multiplier < {2 ** (62 - grid.bits)}, so that sums fit in "
                f"int64, found {population=}, {noise_multiplier=}."
            )
        return grid

    @property
    def step(self) -> float:
        """The step gamma."""
        return math.ldexp(self.bound, -self.bits)

    def noise_scale(self, noise_multiplier: float) -> Fraction:
        """Return the standard deviation of the noise in steps, exactly: ``noise_multiplier * 2**bits``."""
        return Fraction(noise_multiplier) * (1 << self.bits)


def whole_steps(rows: Tensor, grid: Grid) -> tuple[Tensor, Tensor | None]:
    """Truncate each patient's clipped gradient onto the grid. Gradients longer than the bound become zero.

    Parameters
    ----------
    rows
        Real floating-point tensor of shape (patient, dimension), of norm at most ``grid.bound`` by the clipping. It may
        be overwritten.
    grid
        The grid.

    Returns
    -------
    values, within
        Whole numbers of shape (patient, dimension) with ``abs(values) * step <= abs(rows)``, the largest such ones, in
        float64, in which their sums up to `EXACT_SUM` are exact; and, of shape (patient,), whether the integer norm is
        within the bound, or None if all surely are. A row that is not, or is not finite, has all values zero. How many
        there are is a function of private data and stays at the node.
    """
    if not rows.dtype.is_floating_point:
        raise ValueError(
            f"Expected real floating-point rows, found {rows.dtype}. Give complex numbers as pairs of real ones."
        )
    is_power, on_cpu = _is_power(grid.bound), rows.device.type == "cpu"
    scale = 2.0**grid.bits / grid.bound if is_power else 2.0**grid.bits
    precise = rows.dtype in (torch.float32, torch.float64)
    if is_power and on_cpu and precise and scale <= torch.finfo(rows.dtype).max:
        # Both operations are exact in the rows' own type, except that numbers far below a step may be rounded.
        numbers = rows.mul_(scale).numpy()
        steps = scaled = torch.from_numpy(np.trunc(numbers, out=numbers)).double()
        if _surely_within(steps, grid):
            return steps, None
    else:
        steps = scaled = rows.double().mul_(scale)
    if not is_power:
        # A tensor on the rows' device: GPUs multiply by the reciprocal of a plain number, which rounds differently.
        steps = scaled / torch.full((), grid.bound, dtype=torch.float64, device=rows.device)
        if on_cpu and _surely_within(steps, grid):
            return _truncated(steps, scaled, grid), None
    # Neither NaN nor a number beyond int64 can be converted, so both are replaced first.
    beyond = _beyond(grid)
    steps = steps.nan_to_num(nan=beyond).clamp_(-beyond, beyond)
    whole = _truncated(steps, scaled, grid)
    within = norms_within(whole.long(), grid)
    return whole.mul_(within[:, None]), within


def _is_power(bound: float) -> bool:
    """Return whether a bound is a power of two, so that scaling by it is exact."""
    return math.frexp(bound)[0] == 0.5


def _beyond(grid: Grid) -> float:
    """Return the number of steps in place of larger numbers and of NaN."""
    return float(2**grid.bits + 1)


def _surely_within(steps: Tensor, grid: Grid) -> bool:
    """Return whether the norms of all rows are below the bound by more than float64 can be wrong, as they mostly are.

    Truncation makes no coordinate longer, so the integer norms are within the bound then, and `norms_within` would say
    so. With u = 2**-53 and d columns, a sum of squares in float64 has in any order a relative error of at most
    (d + 1) u, and its root less. With fewer than 2**26 columns that is below 2**-26, and the margin is 2**-24. A norm
    that is not finite is not below the bound.
    """
    if steps.shape[1] >= 1 << 26:
        return False
    norms = torch.linalg.vector_norm(steps, dim=1)
    return bool((norms <= 2.0**grid.bits * (1 - 2.0**-24)).all())


def _truncated(steps: Tensor, scaled: Tensor, grid: Grid) -> Tensor:
    """Truncate coordinates in steps, none of them beyond `_beyond`, to whole steps; ``steps`` may be overwritten.

    ``scaled`` are the coordinates times ``2**bits``, not yet divided by a bound that is not a power of two.
    """
    is_power = _is_power(grid.bound)
    if steps.device.type != "cpu":
        there = steps.trunc()
        if is_power:
            return there
        reached = (there == steps).logical_and_(steps.abs() < _beyond(grid))
        return there.sub_(_rounded_up_there(scaled, reached, grid))
    # NumPy truncates eight times as fast as PyTorch, and compares three times as fast.
    numbers = steps.numpy()
    whole = np.trunc(numbers, out=numbers if is_power else None)
    if is_power:
        return torch.from_numpy(whole)
    indices = np.flatnonzero((whole == numbers) & (whole != 0))  # few; quotients of zero steps are never rounded up
    indices = indices[np.abs(whole.flat[indices]) < _beyond(grid)]
    whole.flat[indices] -= _rounded_up(whole.flat[indices], scaled.numpy().flat[indices], grid)
    return torch.from_numpy(whole)


def _rounded_up(whole: np.ndarray, scaled: np.ndarray, grid: Grid) -> np.ndarray:
    """Return the sign of those integer quotients that were rounded away from zero, and zero for the rest.

    Rounding to nearest can reach an integer but not pass it, so only integer quotients need a check: whether quotient
    times bound exceeds the dividend. The bound has three parts of 22 bits, whose products with quotients of up to 31
    bits are exact. The dividend is subtracted first. As long as further parts follow, the two numbers of a sum are
    within a factor of two of each other, so the sum is exact (Sterbenz); the last sum has the right sign.
    """
    rest, excess = grid.bound, -np.abs(scaled)
    while rest:
        mantissa, exponent = math.frexp(rest)
        part = math.ldexp(math.floor(math.ldexp(mantissa, PART_BITS)), exponent - PART_BITS)
        excess += np.abs(whole) * part
        rest -= part
    short: np.ndarray = np.where(excess > 0, np.sign(whole), 0.0)
    return short


def _rounded_up_there(scaled: Tensor, reached: Tensor, grid: Grid) -> Tensor:
    """Return `_rounded_up` where ``reached`` is true, and zero elsewhere, without leaving the device.

    Selecting these few numbers would make a GPU wait. If the true quotient is just below an integer, the remainder is
    nearly the bound. By its documentation, CUDA's ``fmod`` is exact. If it were not, truncation could be wrong by a
    step, but the norm is checked in integers afterwards.
    """
    short = torch.fmod(scaled, grid.bound).abs() > grid.bound / 2
    return torch.where(reached & short, scaled.sign(), 0.0)


def norms_within(values: Tensor, grid: Grid) -> Tensor:
    """Return for each row whether its sum of squares is at most ``4**bits``, computed in integers.

    A square has up to 62 bits, so a sum of many would overflow. The upper and the lower 32 bits are summed separately,
    which is exact for fewer than 2**31 columns.

    Parameters
    ----------
    values
        int64 tensor of shape (patient, dimension), of magnitudes up to ``2**bits + 1``.
    grid
        The grid.
    """
    squares = values * values
    high = (squares >> HALF).sum(dim=1)
    low = (squares & (2**HALF - 1)).sum(dim=1)
    high += low >> HALF
    low &= 2**HALF - 1
    limit_high, limit_low = divmod(4**grid.bits, 2**HALF)
    within: Tensor = (high < limit_high) | ((high == limit_high) & (low <= limit_low))
    return within


def from_grid(total: Tensor, grid: Grid, divisor: float) -> Tensor:
    """Return ``total * step / divisor`` as float32, to be called on the noisy sum only.

    Parameters
    ----------
    total
        int64 tensor: the sum of contributions **with** its noise. Without, nothing is private.
    grid
        The grid.
    divisor
        The expected number of patients R.
    """
    return (total.double() * (grid.step / divisor)).float()
