"""Figures of accounting without a training, and what may be said of a ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any

from zetadp.base.validation import UserError
from zetadp.privacy import accounting, calibration
from zetadp.privacy.book import read_ledgers
from zetadp.privacy.exposure import Run, runs_of
from zetadp.privacy.kinds import NoisySum
from zetadp.privacy.statement import total_statement
from zetadp.privacy.verification import live_ledger
from zetadp.privacy.wording import plain_text


@dataclass(frozen=True)
class Statement:
    """What may be said of a run, as text and as the JSON object that it is made from."""

    content: Mapping[str, Any]

    @property
    def guarantee(self) -> str:
        """``holds``, ``simulated`` or ``none``."""
        return str(self.content["guarantee"])

    @property
    def text(self) -> str:
        """The whole statement."""
        return plain_text(self.content)

    def __str__(self) -> str:
        return str(self.content["statement"])

    __repr__ = __str__


@dataclass(frozen=True)
class Recorded:
    """What a ledger records. Unit and source of the noise are its own.

    Attributes
    ----------
    runs
        Every attempt, each to its declared end.
    """

    runs: tuple[Run, ...]

    def statement(self, delta: float | None = None) -> Statement:
        """Return what may be said of all attempts together.

        Parameters
        ----------
        delta
            At most the delta that the ledger declares, which is the default.

        Raises
        ------
        UserError
            If delta is larger, or if the ledger records nothing.
        """
        declared = min((run.delta for run in self.runs), default=1.0)
        if delta is not None and not (isinstance(delta, Real) and 0 < delta <= declared):
            raise UserError(f"delta: Expected at most {declared:g}, which the ledger declares, found {delta!r}.")
        return Statement(total_statement([replace(run, delta=delta or declared) for run in self.runs]))


def ledger(path: Path | str) -> Recorded:
    """Read a ledger, or that of a run's folder: of a run here, of the pipeline, of a hospital or of a release.

    Raises
    ------
    UserError
        If the ledger cannot be read or was edited, lacks what it must declare, or if something that the register beside
        it names is missing.
    """
    file = live_ledger(Path(path)) or Path(path)
    return Recorded(tuple(runs_of(file, read_ledgers([file])[file])))


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
    _check_numbers(noise_multiplier=noise_multiplier, sampling_probability=sampling_probability, delta=delta)
    try:
        return accounting.epsilon({NoisySum(sampling_probability, noise_multiplier): rounds}, delta)
    except (TypeError, ValueError) as error:
        raise UserError(str(error)) from error


def noise(*, epsilon: float, delta: float, sampling_probability: float, rounds: int) -> float:
    """Return the smallest noise multiplier at which a training costs at most ``epsilon``.

    Parameters and errors are those of `epsilon`.

    Examples
    --------
    >>> noise(epsilon=1, sampling_probability=24 / 44, rounds=917, delta=1e-3)
    42.551
    """
    _check_numbers(epsilon=epsilon, sampling_probability=sampling_probability, delta=delta)
    try:
        return calibration.noise_for_epsilon(epsilon, delta, sampling_probability, rounds)
    except (TypeError, ValueError) as error:
        raise UserError(str(error)) from error


def _check_numbers(**given: object) -> None:
    """Refuse arguments that are no numbers."""
    for name, value in given.items():
        if not isinstance(value, Real):
            raise UserError(f"{name}: Expected a number, found {value!r:.60}.")
