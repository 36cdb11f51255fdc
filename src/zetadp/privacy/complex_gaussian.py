r"""The complex Gaussian mechanism: sampling, the test that tells two cohorts apart, and what it costs.

The noise of a coordinate is :math:`\sigma (a + i (\rho a + \sqrt{1 - \rho^2}\, b))` with a, b independent standard
normal: variance :math:`\sigma^2` in the real **and** in the imaginary part, covariance
:math:`\Gamma = 2 \sigma^2 I`, relation :math:`C = 2 i \rho \sigma^2 I` (Riess et al., "Complex-valued Federated
Learning with Differential Privacy and MRI Applications", eq. 2). The squared error is :math:`2 \sigma^2` a coordinate
whatever :math:`\rho` is, and mu grows with :math:`|\rho|`: correlation costs privacy and buys nothing, so training adds
circular noise (:math:`\rho = 0`).

Draws are floating-point numbers from a generator that can be repeated: for analysis and simulation. What real patients
contribute to is released by `zetadp.privacy.exact_mechanism`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from zetadp.privacy import gaussian
from zetadp.validation import positive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, DTypeLike, NDArray

_PARTS: dict[np.dtype[Any], type[np.float32 | np.float64]] = {
    np.dtype(np.complex64): np.float32,
    np.dtype(np.complex128): np.float64,
}


@dataclass(frozen=True)
class ComplexGaussian:
    """Complex Gaussian noise on a query whose largest change by one patient is known.

    Attributes
    ----------
    sigma
        Standard deviation of the noise in the real part, and the same in the imaginary part.
    rho
        Correlation of the two parts, ``-1 < rho < 1``; zero is circular noise.
    sensitivity
        Largest change of the query in the Euclidean norm of complex vectors.
    sensitivity_real, sensitivity_imaginary
        Largest change of its real and of its imaginary part; `sensitivity` where only the complex norm is bounded, as
        it is by clipping.
    """

    sigma: float
    rho: float = 0.0
    sensitivity: float = 1.0
    sensitivity_real: float | None = None
    sensitivity_imaginary: float | None = None

    def __post_init__(self) -> None:
        """Refuse noise that hides nothing, and parts that change by more than the whole."""
        gaussian.check_noise(self.sigma, self.rho)
        positive(sensitivity=self.sensitivity)
        for name, part in (("real", self.sensitivity_real), ("imaginary", self.sensitivity_imaginary)):
            if part is not None and not 0 <= part <= self.sensitivity:
                msg = f"Expected 0 <= sensitivity_{name} <= sensitivity = {self.sensitivity}, found {part}."
                raise ValueError(msg)

    def noise(
        self, shape: int | tuple[int, ...], generator: np.random.Generator, dtype: DTypeLike = np.complex128
    ) -> NDArray[np.complexfloating]:
        """Draw noise of a shape, as ``complex64`` or ``complex128``.

        Two real arrays are drawn: a complex normal draw of a library has half the variance in each part.
        """
        part = _PARTS.get(np.dtype(dtype))
        if part is None:
            msg = f"Expected complex64 or complex128, found {np.dtype(dtype)}: real noise would leave one part bare."
            raise ValueError(msg)
        places = (shape,) if isinstance(shape, int) else shape
        first, second = generator.standard_normal((2, *places), dtype=part)
        noise = np.empty(places, dtype=dtype)
        noise.real = self.sigma * first
        noise.imag = self.sigma * (self.rho * first + (1 - self.rho**2) ** 0.5 * second)
        return noise

    def release(self, result: NDArray[np.complexfloating], generator: np.random.Generator) -> NDArray[Any]:
        """Return an exact result with noise, in the result's own precision."""
        released: NDArray[Any] = result + self.noise(result.shape, generator, result.dtype)
        return released

    def log_likelihood_ratio(self, outputs: ArrayLike, first: ArrayLike, second: ArrayLike) -> NDArray[np.float64]:
        r"""Return the log of how much likelier each output is if the exact result was `second` than if it was `first`.

        .. math:: \Lambda = \frac{\sum \mathrm{Re}(\bar{d}\, r) - \rho\, \mathrm{Im}(d\, r)}{\sigma^2 (1 - \rho^2)},
            \quad d = \text{second} - \text{first}, \quad r = \text{output} - (\text{first} + \text{second}) / 2

        It is the most powerful test statistic. With :math:`\mu` from `difference_mu`, it is
        :math:`N(-\mu^2 / 2, \mu^2)` for outputs of `first` and :math:`N(\mu^2 / 2, \mu^2)` for outputs of `second`
        (Riess et al., eq. 9 to 11, with the sign of the cross term kept).

        Parameters
        ----------
        outputs
            Outputs of the mechanism, shape (..., *query).
        first, second
            Exact results of two cohorts, shape (*query).

        Returns
        -------
        Array of shape (...), one number for each output.
        """
        before, after = np.asarray(first, dtype=np.complex128), np.asarray(second, dtype=np.complex128)
        released = np.asarray(outputs, dtype=np.complex128)
        query = before.shape
        if after.shape != query or released.shape[released.ndim - len(query) :] != query:
            msg = f"Expected results of one shape and outputs that end in it, found {query}, {after.shape} and "
            raise ValueError(msg + f"{released.shape}.")
        difference = (after - before).ravel()
        rest = (released - (before + after) / 2).reshape(-1, difference.size)
        ratio = (rest @ difference.conj()).real - self.rho * (rest @ difference).imag
        ratio /= self.sigma**2 * (1 - self.rho**2)
        return np.asarray(ratio.reshape(released.shape[: released.ndim - len(query)]))

    def difference_mu(self, first: ArrayLike, second: ArrayLike) -> float:
        """Return mu for telling apart two cohorts with these exact results; exact, not a bound."""
        return gaussian.difference_mu(np.asarray(second) - np.asarray(first), self.sigma, self.rho)

    @property
    def mu_by_theorem(self) -> float:
        """Mu by Theorem 1 of Riess et al."""
        return gaussian.theorem_mu(self.sigma, self.rho, *self._sensitivities)

    @property
    def mu_by_eigenvalue(self) -> float:
        """Mu by the least eigenvalue of the noise covariance; attained where only the complex norm is bounded."""
        return gaussian.eigenvalue_mu(self.sigma, self.rho, self.sensitivity)

    @property
    def mu(self) -> float:
        """The smaller of both bounds on mu: the mechanism is mu-GDP. Without correlation it is sensitivity / sigma."""
        return gaussian.correlated_mu(self.sigma, self.rho, *self._sensitivities)

    def trade_off(self, alphas: Sequence[float]) -> list[float]:
        """Return for each false-alarm rate the least rate of misses of any test for one patient."""
        return [gaussian.beta(alpha, self.mu) for alpha in alphas]

    def delta(self, epsilon: float) -> float:
        """Return the smallest delta that goes with `epsilon`."""
        return gaussian.delta(epsilon, self.mu)

    def epsilon(self, delta: float) -> float:
        """Return the smallest epsilon >= 0 that goes with `delta`."""
        return gaussian.epsilon(delta, self.mu)

    def renyi(self, order: float) -> float:
        """Return the bound on the Renyi divergence of an order above one; ``order * mu**2 / 2``."""
        return gaussian.renyi(order, self.mu)

    @property
    def mean_squared_error(self) -> float:
        """Expected squared error of one complex coordinate: both variances, whatever the correlation."""
        return 2 * self.sigma**2

    @property
    def _sensitivities(self) -> tuple[float, float, float]:
        real, imaginary = (
            self.sensitivity if part is None else part for part in (self.sensitivity_real, self.sensitivity_imaginary)
        )
        return self.sensitivity, real, imaginary
