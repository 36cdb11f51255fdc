r"""Noise that is correlated over rounds, for patients who skip rounds by a public rule.

In round t a node releases :math:`x_t + (C^{-1} z)_t`: the sum of clipped gradients, and noise made of independent
draws :math:`z_s \sim N(0, \sigma^2 B^2)` of this round and of earlier ones. C is lower triangular with ones on its
diagonal and b bands, all of its columns alike (Toeplitz) but cut at the end. Later noise takes part of the earlier
noise back, so that sums over rounds, which are what descent uses, carry less of it.

Releasing :math:`x + C^{-1} z` is as good as releasing :math:`C x + z`: a Gaussian mechanism, also where gradients
depend on earlier releases (Denisov et al. 2022, arXiv:2202.08312). Every patient takes part in the rounds t = j
mod b only, j a public number of the patient's (`taking_part`): rounds of one patient are then at least b apart, the
columns of C that it touches share no row, and its contributions cannot add up in any worse way than

.. math:: \Delta^2 = \max_j \sum_{t = j \bmod b} \|c_t\|^2, \qquad \mu = \Delta / \sigma,

in units of the clipping norm, exactly (Choquette-Choo et al. 2023, arXiv:2306.08153). Noise for sums over rounds:
Kairouz et al. 2021, arXiv:2103.00039. Neighbours: one patient's contribution is replaced by zero.

The training loop does not use it: `benchmarks/noise_over_rounds.py` measures what it would bring.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from scipy.linalg import solve_triangular, toeplitz
from scipy.optimize import minimize

from zetadp.privacy import gaussian
from zetadp.validation import in_range, positive


@dataclass(frozen=True)
class BandedNoise:
    """The correlation of noise over the rounds of a training; public constants.

    Attributes
    ----------
    rounds
        Declared number of rounds, T.
    coefficients
        The first column of C down to its last band: one, and the b - 1 further ones. Just ``(1.0,)`` is independent
        noise in every round, in which everybody takes part.
    """

    rounds: int
    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse what is no such matrix."""
        positive(rounds=self.rounds)
        finite = all(math.isfinite(value) for value in self.coefficients)
        if not (1 <= self.bands <= self.rounds and finite and self.coefficients[0] == 1):
            msg = f"Expected 1 to {self.rounds} finite coefficients, the first of them 1, found {self.coefficients}."
            raise ValueError(msg)

    @property
    def bands(self) -> int:
        """Number of bands b; a patient takes part in every b-th round."""
        return len(self.coefficients)

    @property
    def matrix(self) -> np.ndarray:
        """C, shape (round, round)."""
        column = np.zeros(self.rounds)
        column[: self.bands] = self.coefficients
        return np.tril(toeplitz(column))

    @property
    def sensitivity(self) -> float:
        """Largest change of C x by one patient that takes part as `taking_part` says, in units of the clipping norm."""
        squares = (self.matrix**2).sum(axis=0)
        return math.sqrt(max(squares[start :: self.bands].sum() for start in range(self.bands)))

    def taking_part(self, patient: int, number: int) -> bool:
        """Tell whether a patient takes part in a round; both count from zero.

        A patient's number must be public or a function of the patient's key alone, as the assignment to nodes must.
        """
        return number % self.bands == patient % self.bands

    def mu(self, noise_multiplier: float) -> float:
        """Return mu of the whole training, exactly, where the draws z have this multiple of the clipping norm."""
        positive(noise_multiplier=noise_multiplier)
        return self.sensitivity / noise_multiplier

    def epsilon(self, noise_multiplier: float, delta: float) -> float:
        """Return epsilon of the whole training."""
        return gaussian.epsilon(delta, self.mu(noise_multiplier))

    def noise_for_epsilon(self, target: float, delta: float) -> float:
        """Return the least noise multiplier of the draws z at which the whole training costs at most ``target``."""
        noise = self.sensitivity / gaussian.mu(target, delta)
        while self.epsilon(noise, delta) > target:
            noise = math.nextafter(noise, math.inf)
        return noise

    def error(self, workload: np.ndarray) -> float:
        """Return the standard deviation of the noise in linear functions of the releases, at mu = 1.

        Parameters
        ----------
        workload
            One function a row, shape (function, round): `prefix_sums`, `averaged_iterate`.

        Returns
        -------
        The root of the mean variance over the functions, in units of the clipping norm.
        """
        # The rows of workload @ inverse(C).
        solved = solve_triangular(self.matrix, workload.T, lower=True, trans="T")
        return self.sensitivity * math.sqrt(float((solved**2).sum()) / len(workload))


@dataclass
class CorrelatedDraws:
    """Correlated noise, round by round, out of independent draws.

    Attributes
    ----------
    banded
        The correlation.
    earlier
        The noise of the last b - 1 rounds, the last one first: what a checkpoint would have to keep, and keep secret.
    """

    banded: BandedNoise
    earlier: list[np.ndarray] = field(default_factory=list)

    def following(self, draw: np.ndarray) -> np.ndarray:
        """Return the noise of the next round, given its independent draw z, of any shape, the same in every round."""
        later = self.banded.coefficients[1:]
        noise = np.array(draw, dtype=np.float64)
        for coefficient, before in zip(later, self.earlier, strict=False):
            noise -= coefficient * before
        self.earlier = [noise, *self.earlier][: len(later)]
        return noise


def prefix_sums(rounds: int) -> np.ndarray:
    """Return the sums over the first rounds, one a row: what every iterate of plain descent is made of."""
    return np.tri(rounds)


def averaged_iterate(rounds: int, averaged: float) -> np.ndarray:
    """Return the one function of the releases that the mean of the last iterates of plain descent is.

    Parameters
    ----------
    rounds
        Number of rounds T.
    averaged
        Fraction of the rounds, the last ones, whose iterates are averaged; zero takes the last one alone.

    Returns
    -------
    The share of those iterates that a round's release is part of, shape (1, round).
    """
    in_range(0, 1, averaged=averaged)
    last = max(1, round(averaged * rounds))
    share: np.ndarray = prefix_sums(rounds)[-last:].mean(axis=0, keepdims=True)
    return share


def best_banded(rounds: int, bands: int, workload: np.ndarray) -> BandedNoise:
    """Return the banded correlation with the least `BandedNoise.error` in a workload that a local search finds.

    It begins at independent noise and at the square root of the matrix of prefix sums, whose column has the entries
    ``binomial(2k, k) / 4**k`` (optimal where all bands are there and everybody takes part once), cut to the bands; the
    result is at least as good as both.
    """
    in_range(1, rounds, bands=bands)
    root = np.cumprod([1.0, *((2 * k - 1) / (2 * k) for k in range(1, bands))])

    def made(rest: np.ndarray) -> BandedNoise:
        return BandedNoise(rounds, (1.0, *map(float, rest)))

    candidates = [made(np.zeros(bands - 1)), made(root[1:])]
    if bands > 1:
        for start in (np.zeros(bands - 1), root[1:]):
            found = minimize(lambda rest: math.log(made(rest).error(workload)), start, method="L-BFGS-B")
            candidates.append(made(found.x))
    return min(candidates, key=lambda each: each.error(workload))
