"""The privacy statement of a finished run, from its ledger and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zetadp.epsilon import epsilon_value
from zetadp.privacy.exposure import run_of
from zetadp.privacy.ledger import read_ledger
from zetadp.privacy.statement import Terms, run_statement
from zetadp.tensors import load_tensors
from zetadp.validation import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from zetadp.privacy.statement import Unit


def account_run(ledger: Path, model: Path, *, name: str, epsilon: str, delta: float, unit: Unit) -> dict[str, Any]:
    """Return the statement of the training that made a model; the last attempt in the ledger is the one.

    Parameters
    ----------
    ledger, model
        The run's sealed ledger and its model, which holds the head of that ledger.
    name
        How the statement names the run.
    epsilon
        The run's target.
    delta, unit
        What the statement is for.

    Raises
    ------
    UserError
        If the ledger is not that of the model's training, or not all of it.
    """
    attempts = read_ledger(ledger)
    if not attempts or load_tensors(model)[1].get("ledger_head") not in attempts[-1].heads:
        msg = (
            f"Expected {ledger} to record the training that made {model}, found another or none, or lines are missing "
            "at its end. Train the model again."
        )
        raise UserError(msg)
    happened = run_of(name, attempts[-1])
    earlier = [run_of(f"attempt {number}", attempt) for number, attempt in enumerate(attempts[:-1]) if attempt.events]
    return run_statement(
        happened,
        Terms(delta, unit, attempts[-1].header["noise"]),
        weights=dict.fromkeys(happened.nodes, 1.0),
        target_epsilon=epsilon_value(epsilon),
        earlier=earlier,
        backbone=attempts[-1].header.get("backbone"),
    )
