"""What an attacker can show: a patient made to be seen, and the errors of guessing whether it took part.

Trials are as many as refute the claim, with the stated false alarm, with probability 0.99 where the noise falls short
by the factor named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mutants.installing import statistical
from mutants.margins import FALSE_ALARM
from mutants.stub import CLIP
from zetadp.audit.detection import Trials, trials_for_curve
from zetadp.audit.one_round import Audited, audit_one_round, one_round_rates
from zetadp.privacy.kinds import NoisySum

if TYPE_CHECKING:
    from pathlib import Path


def _audited(folder: Path, mu_of_fault: float, **how: Any) -> None:
    claim, faulty = {NoisySum(1.0, 1.0): 1}, one_round_rates(1.0, 1 / mu_of_fault)
    trials = trials_for_curve(claim, faulty, false_alarm=FALSE_ALARM)
    folder.mkdir(parents=True, exist_ok=True)
    result = audit_one_round(folder, Trials(trials, confidence=1 - FALSE_ALARM), Audited(clip=CLIP), **how)
    assert result.claimed == 1.0
    assert result.passed, f"{result.name}: claimed mu {result.claimed:.2f}, shown at least {result.measured:.2f}"


@statistical
def check_audit_of_an_imaginary_canary(folder: Path) -> None:
    """A patient whose gradient is imaginary in all parameters; bare imaginary parts show it without error."""
    _audited(folder, 2**0.5, direction="imaginary")


@statistical
def check_audit_of_nodes(folder: Path) -> None:
    """The difference of two nodes, which cancels what their noises share: mu is 0.71 if they share nothing."""
    _audited(folder, 4.0, view="nodes", nodes=2)


@statistical
def check_audit_of_rounds(folder: Path) -> None:
    """The difference to a round in which the patient's gradient is zero: mu is 0.71 if rounds share no noise."""
    _audited(folder, 4.0, view="rounds")
