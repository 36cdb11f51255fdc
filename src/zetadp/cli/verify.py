"""``zetadp verify``: check a finished run without the code that trained it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zetadp.base.validation import UserError
from zetadp.cli.helping import explain, with_federation
from zetadp.cli.places import account_of

if TYPE_CHECKING:
    from zetadp.privacy.verification import Check


def add_commands(commands: Any) -> None:  # noqa: ANN401  (argparse does not name the type)
    """Add the command to a parser's sub-commands."""
    verify = commands.add_parser("verify", help="check that a finished run is unchanged and its epsilon correct")
    explain(
        verify,
        "Check the folder of a finished run. Its files must be unchanged since they were sealed (seal.json). Its "
        "ledger (ledger.jsonl) must be an unbroken chain. Its plan (plan.json) and its statement (privacy.json) must "
        "agree with the ledger. Its epsilon must not be below one that other code computes. No data are needed. "
        "The exit code is 1 if anything is wrong.",
        "A chain can be made anew, so something outside the folder must vouch for the ledger: the register of the "
        "cohort's ledgers (--ledgers; without it, the account that a run of the library names, or ledgers/COHORT above "
        "the folder of a run of the pipeline), or a head of the ledger that you noted earlier (--head).",
        "A hospital of a federation has no such folder. With --receipt (.json, from the coordinator), --authority "
        "(.pem) and --server, check instead that its ledgers record all that the server has received. An older copy "
        "of a ledger does not.",
        "A hospital's node signs its ledger with its own key, and the server's copy carries the signatures. With --key "
        "(.pub.pem, from the hospital), check that the node signed a ledger up to its last line.",
        examples=(
            "verify results/default/runs/study_steep/federated/eps-1/seed-0 --ledgers ledgers/phantom-no-atlas",
            "verify runs/mine",
            "verify --receipt node-02.json --authority authority.pem --server server.example --ledgers state/ledgers",
            "verify state/ledgers/study_gentle-federated-eps-8-seed-0.jsonl --key node-02.pub.pem",
        ),
    )
    help_ = "folder of a finished run; with --key, a ledger"
    verify.add_argument("place", type=Path, metavar="RUN", nargs="?", help=help_)
    verify.add_argument(
        "--ledgers",
        type=Path,
        help="folder of the cohort's ledgers; also check that none of them is missing or cut off",
    )
    verify.add_argument("--head", help="head of the ledger's chain that was noted elsewhere, instead of --ledgers")
    verify.add_argument("--receipt", type=Path, help="receipt of a federation's server (.json), instead of RUN")
    verify.add_argument(
        "--authority",
        type=Path,
        help="certificate of the authority (authority.pem) that signed the server's certificate",
    )
    verify.add_argument("--server", metavar="HOST", help="name or address by which nodes reach the server")
    verify.add_argument("--key", type=Path, help="public key (.pub.pem) of a hospital's node, or a certificate of it")
    verify.set_defaults(run=with_federation(_verify))


def _verify(given: argparse.Namespace) -> None:
    place = given.place or given.receipt
    if (given.place is None) == (given.receipt is None) or None not in (given.receipt, given.key):
        raise UserError(
            "Expected the folder of a finished run, or --receipt with --authority, --server and --ledgers, or a "
            "hospital's ledger with --key."
        )
    for check in (checks := _checks(given)):
        print(f"wrong: {check.what}: {check.fault}" if check.fault else f"ok: {check.what}")
    wrong = sum(bool(check.fault) for check in checks)
    if wrong:
        raise UserError(f"{wrong} of {len(checks)} checks of {place} failed. Do not rely on it.")


def _checks(given: argparse.Namespace) -> list[Check]:
    from zetadp.privacy.verification import verify_run

    if given.key is not None:
        from zetadp.federation.flower.receipts import check_ledger

        return check_ledger(given.place, given.key)
    if given.receipt is None:
        ledgers = given.ledgers or (None if given.head else account_of(given.place))
        return verify_run(given.place, ledgers, given.head)
    from zetadp.federation.flower.receipts import check_receipt

    if None in (given.authority, given.server, given.ledgers):
        raise UserError("Expected --authority, --server and --ledgers with --receipt.")
    return check_receipt(given.receipt, given.authority, given.ledgers, given.server)
