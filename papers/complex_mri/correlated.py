r"""Privacy of complex Gaussian noise whose parts are correlated: Theorem 1 of Riess et al., and a tighter bound.

The noise of each coordinate has variance :math:`\sigma^2` in its real and in its imaginary part, and correlation
:math:`\rho` between them. The paper says that no tighter bound than its own exists without assumptions on the query.
One does: :math:`\sigma^2 (1 - |\rho|)` is the least eigenvalue of the parts' covariance. Correlation costs privacy and
gains no accuracy, because the squared error :math:`2 \sigma^2` does not depend on it. So the library has none.

    python -m papers.complex_mri.correlated

prints the table of readings.md as Markdown.
"""

from __future__ import annotations

import math
import sys

import numpy as np

from zetadp.base.validation import positive

CORRELATIONS = (0, 0.3, 0.6, 0.9)


def theorem_1(noise: float, correlation: float, whole: float, real: float, imaginary: float) -> float:
    r"""Return mu as the paper's equation 3 bounds it.

    Parameters
    ----------
    noise
        Standard deviation of each part.
    correlation
        Correlation of the parts, between -1 and 1. The paper excludes 1 only.
    whole, real, imaginary
        Sensitivities of the query, of its real and of its imaginary part.

    Examples
    --------
    >>> round(theorem_1(1, 0.5, 1, 1, 1), 6)
    1.632993
    """
    _check(noise, correlation)
    return math.sqrt((whole**2 + 2 * abs(correlation) * real * imaginary) / (1 - correlation**2)) / noise


def eigenvalue_bound(noise: float, correlation: float, whole: float) -> float:
    """Return a bound on mu that needs the sensitivity of the whole query alone.

    A difference whose parts are equal, up to the sign, reaches it.

    Examples
    --------
    >>> round(eigenvalue_bound(1, 0.5, 1), 6)
    1.414214
    """
    _check(noise, correlation)
    return whole / (noise * math.sqrt(1 - abs(correlation)))


def exact(noise: float, correlation: float, difference: np.ndarray) -> float:
    """Return mu of the test between two outputs that differ by a complex vector."""
    _check(noise, correlation)
    parts = float(difference.real @ difference.imag)
    squared = (float(np.vdot(difference, difference).real) - 2 * correlation * parts) / (1 - correlation**2)
    return math.sqrt(squared) / noise


def largest(noise: float, correlation: float) -> float:
    """Return the largest exact mu of all differences of norm one, found by turning one complex number."""
    return max(exact(noise, correlation, np.exp([1j * angle])) for angle in np.linspace(0, 2 * math.pi, 721))


def markdown() -> str:
    """Return both bounds and the largest mu for some correlations as Markdown."""
    lines = [
        "| ρ, all sensitivities 1, σ = 1 | Theorem 1 | eigenvalue | largest over all differences |",
        "|:--|--:|--:|--:|",
    ]
    for correlation in CORRELATIONS:
        bounds = theorem_1(1, correlation, 1, 1, 1), eigenvalue_bound(1, correlation, 1), largest(1, correlation)
        lines.append(f"| {correlation:g} | {' | '.join(f'{mu:.3f}' for mu in bounds)} |")
    return "\n".join(lines) + "\n"


def _check(noise: float, correlation: float) -> None:
    positive(noise=noise)
    if not abs(correlation) < 1:
        raise ValueError(f"Expected a correlation between -1 and 1, found {correlation}.")


if __name__ == "__main__":
    sys.stdout.write(markdown())
