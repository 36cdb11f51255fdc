"""``zetadp budget``: the total epsilon of a cohort's patients, now and after a further plan, compared with a cap."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from zetadp.base.epsilon import rounded_up
from zetadp.base.validation import UserError
from zetadp.cli.helping import explain
from zetadp.cli.numbers import delta, positive_number
from zetadp.cli.places import account_of


def add_commands(commands: Any) -> None:  # noqa: ANN401  (argparse does not name the type)
    """Add the command to a parser's sub-commands."""
    budget = commands.add_parser(
        "budget", help="print the total epsilon of all runs on a cohort, and the total after a plan"
    )
    explain(
        budget,
        "Add up all ledgers in a folder: ledgers/NAME of the pipeline, ledgers next to the runs of the library, or "
        "state/ledgers of a hospital. The folder of a run stands for that of its ledgers. Cohorts that share its "
        "patients count too. Whatever the folder's register names must be there. With "
        "--plan (plan.json), also print the total after its training. With --cap, end with exit code 1 if the total is "
        "above the cap. Runs without noise make the total infinite.",
        "Training itself refuses to exceed a cap that is set in privacy.cap of the configuration, or in cap of a "
        "hospital's settings.",
        examples=(
            "budget ledgers/phantom-no-atlas",
            "budget runs/mine",
            "budget state/ledgers --plan plan.json --node node-02 --cap 10",
        ),
    )
    budget.add_argument("folder", type=Path, metavar="COHORT", help="folder of the cohort's ledgers, or of a run")
    budget.add_argument("--plan", type=Path, help="plan of a further run (.json)")
    budget.add_argument(
        "--node", help="node of the plan that holds these patients (default: the one with the highest cost)"
    )
    budget.add_argument("--cap", type=positive_number, help="epsilon that the total must not exceed")
    budget.add_argument("--delta", type=delta, help="delta of the totals (default: the least that was declared)")
    budget.set_defaults(run=_budget)


def _budget(given: argparse.Namespace) -> None:
    from zetadp.core.plan import Plan
    from zetadp.privacy.book import Book
    from zetadp.privacy.exposure import declared_run, total

    if not given.folder.is_dir():
        raise UserError(
            f"Expected a folder of ledgers, found no folder {given.folder}. A hospital has none before its first run."
        )
    is_run = (given.folder / "plan.json").is_file()
    folder = account_of(given.folder) if is_run else given.folder
    if folder is None:
        raise UserError(f"Expected the ledgers of the run {given.folder}, found none. Name their folder.")
    runs, wanted = Book.read(folder).runs(), None
    if given.plan is not None:
        plan = Plan.read(given.plan)
        header = plan.header()
        if given.node is not None:
            plan.place(given.node)
            header["node"] = given.node
        wanted = declared_run(plan.label, header)
    counted = runs if wanted is None else [*runs, wanted]
    least = given.delta or min((run.delta for run in counted), default=1e-3)
    found = total(runs, least)
    at = f"at delta {least:g}"
    print(f"spent so far: epsilon {rounded_up(found)} {at}, in {len(runs)} run(s), each counted to its declared end")
    if wanted is not None:
        found = total(counted, least)
        print(f"with the plan {wanted.name}: epsilon {rounded_up(found)} {at}")
    if given.cap is None:
        return
    if found > given.cap:
        raise UserError(f"The total, epsilon {rounded_up(found)} {at}, is above the cap of {given.cap:g}.")
    print(f"The cap of {given.cap:g} is not exceeded.")
