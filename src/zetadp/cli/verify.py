"""``zetadp verify``: check a finished run without the code that trained it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zetadp.cli.helping import explain
from zetadp.validation import UserError


def add_commands(commands: Any) -> None:  # noqa: ANN401  (argparse does not name the type)
    """Add the command to a parser's sub-commands."""
    verify = commands.add_parser("verify", help="check that a finished run is unaltered and its epsilon true")
    explain(
        verify,
        "Check the folder of a finished run. Its files must be as they were sealed (seal.json), its ledger "
        "(ledger.jsonl) an unbroken chain, its plan (plan.json) and its statement (privacy.json) in agreement with "
        "the ledger, and its epsilon no smaller than dp-accounting finds. Needs no patients' data. Ends with exit code "
        "1 if anything is wrong.",
        examples=(
            "verify results/default/runs/head_8/federated/eps-1/seed-0",
            "verify results/default/runs/head_8/federated/eps-1/seed-0 --ledgers ledgers/phantom-no-atlas",
        ),
    )
    verify.add_argument("place", type=Path, metavar="RUN", help="folder of a finished run")
    verify.add_argument(
        "--ledgers",
        type=Path,
        help="folder of the cohort's live ledgers: checks as well that none of them is gone, nor the end of one",
    )
    verify.set_defaults(run=lambda given: _verify(given.place, given.ledgers))


def _verify(run: Path, ledgers: Path | None) -> None:
    from zetadp.privacy.verification import verify_run

    checks = verify_run(run, ledgers)
    for check in checks:
        print(f"wrong: {check.what}: {check.fault}" if check.fault else f"ok: {check.what}")
    wrong = sum(bool(check.fault) for check in checks)
    if wrong:
        raise UserError(f"{wrong} of {len(checks)} checks of {run} failed. Do not rely on it.")
