"""Turn what the ledger of a run says happened into its privacy statement."""

from pathlib import Path
from typing import TYPE_CHECKING

from zetadp.checkpoint import load_tensors
from zetadp.epsilon import epsilon_value
from zetadp.privacy.exposure import run_of
from zetadp.privacy.ledger import read_ledger
from zetadp.privacy.statement import plain_text, run_statement
from zetadp.storage import write_json, write_text
from zetadp.validation import UserError
from zetadp.workflow import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(
    *,
    ledger: Path,
    model: Path,
    privacy: Path,
    text: Path,
    network: str,
    arm: str,
    epsilon: str,
    seed: str,
    delta: float,
    unit: str,
) -> None:
    """Write the statement as JSON and as text; the last attempt in the ledger is the one that made the model."""
    attempts = read_ledger(ledger)
    if not attempts or load_tensors(model)[1].get("ledger_head") not in attempts[-1].heads:
        msg = (
            f"Expected {ledger} to record the training that made {model}, found another or none, or lines are missing "
            "at its end. Train the model again."
        )
        raise UserError(msg)
    happened = run_of(f"{network} {arm} eps-{epsilon} seed-{seed}", attempts[-1])
    earlier = [run_of(f"attempt {number}", attempt) for number, attempt in enumerate(attempts[:-1]) if attempt.events]
    statement = run_statement(
        happened,
        delta=delta,
        unit=unit,
        noise_source=attempts[-1].header["noise"],
        weights=dict.fromkeys(happened.nodes, 1.0),
        target_epsilon=epsilon_value(epsilon),
        earlier=earlier,
        backbone=attempts[-1].header.get("backbone"),
    )
    write_json(privacy, statement)
    write_text(text, plain_text(statement))


if __name__ == "__main__":
    run(main, snakemake)
