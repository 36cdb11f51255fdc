"""Figures of accounting without a training."""

from __future__ import annotations

from zetadp.base.validation import UserError
from zetadp.privacy import accounting, calibration
from zetadp.privacy.kinds import NoisySum


def epsilon(*, noise_multiplier: float, sampling_probability: float, rounds: int, delta: float) -> float:
    """Return the epsilon of a training that draws each patient independently and adds noise to the clipped sum.

    Parameters
    ----------
    noise_multiplier
        Standard deviation of the noise in each real and each imaginary part, divided by the clipping norm.
    sampling_probability
        Probability that a patient is drawn in a round.
    rounds
        Number of rounds, one release each.
    delta
        Between 0 and 1, less than 1 / number of patients.

    Raises
    ------
    UserError
        If an argument is out of range.

    Examples
    --------
    >>> round(epsilon(noise_multiplier=42.57, sampling_probability=24 / 44, rounds=917, delta=1e-3), 4)
    0.9995
    """
    try:
        return accounting.epsilon({NoisySum(sampling_probability, noise_multiplier): rounds}, delta)
    except ValueError as error:
        raise UserError(str(error)) from error


def noise(*, epsilon: float, delta: float, sampling_probability: float, rounds: int) -> float:
    """Return the smallest noise multiplier at which a training costs at most ``epsilon``.

    Parameters and errors are those of `epsilon`.

    Examples
    --------
    >>> noise(epsilon=1, sampling_probability=24 / 44, rounds=917, delta=1e-3)
    42.551
    """
    try:
        return calibration.noise_for_epsilon(epsilon, delta, sampling_probability, rounds)
    except ValueError as error:
        raise UserError(str(error)) from error
