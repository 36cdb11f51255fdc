"""The commands on runs: ``zetadp budget``, ``risk`` and ``verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from zetadp.base.epsilon import rounded_up
from zetadp.base.storage import read_json
from zetadp.base.validation import Positive, UserError

OF_AN_EXPERIMENT = 5
"""Number of folders from that of an experiment down to that of a run: runs/NETWORK/ARM/EPSILON/SEED."""


def risk(
    place: Annotated[Path, "folder of a run, or a ledger (.jsonl)", "RUN"],
    *,
    output: Annotated[Path | None, "folder for the page (default: that of the run or ledger)"] = None,
) -> None:
    """Write one page on what a training run may reveal about a person.

    The page (risk.html, with its picture risk.svg) says what the best attack can learn about one person at most, what
    attacks on the code have shown, and what is not covered. It needs no network and can be printed.

    Examples
    --------
    zetadp risk results/default/runs/head/federated/eps-8/seed-0
    zetadp risk runs/mine
    zetadp risk rows.jsonl --output report
    """
    from zetadp.privacy.risk import Risk
    from zetadp.privacy.verification import recorded_in
    from zetadp.report.riskpage import Evidence, headline, write_risk

    ledger = recorded_in(place)
    statement = place / "privacy.json"
    known = read_json(statement) if statement.is_file() else {}
    evidence, parents = Evidence(), place.resolve().parents
    if len(parents) >= OF_AN_EXPERIMENT:
        audit = parents[OF_AN_EXPERIMENT - 1] / "audit"
        evidence = Evidence.of(audit.glob("*"), parents[OF_AN_EXPERIMENT - 3].name)
    folder = output or (place if place.is_dir() else ledger.parent)
    found = Risk.of(ledger, name=known.get("name"))
    write_risk(found, folder, str(ledger), evidence)
    print(headline(found))
    print(f"written to {folder / 'risk.html'}")


def verify(
    place: Annotated[Path, "folder of a finished run; with --key, a ledger", "RUN"],
    *,
    ledgers: Annotated[
        Path | None, "folder of the cohort's ledgers; also check that none of them is missing or cut off"
    ] = None,
    head: Annotated[str | None, "head of the ledger's chain that was noted elsewhere, instead of --ledgers"] = None,
    key: Annotated[Path | None, "public key (.pub.pem) of a hospital's node"] = None,
) -> None:
    """Check that a finished run is unchanged and its epsilon correct.

    The files in its folder must be unchanged since they were sealed (seal.json). Its ledger (ledger.jsonl) must be an
    unbroken chain. Its plan (plan.json) and its statement (privacy.json) must agree with the ledger. Its epsilon must
    not be below one that other code computes. No data are needed. The exit code is 1 if anything is wrong.

    A chain can be made anew, so something outside the folder must vouch for the ledger: the register of the cohort's
    ledgers (--ledgers; without it, the account that a run of the library names, or ledgers/COHORT above the folder of a
    run of the pipeline), or a head of the ledger that you noted earlier (--head).

    A hospital of a federation has no such folder. Its node signs its ledger with its own key, and the server's copy
    carries the signatures. With --key (.pub.pem, from the hospital), check that the node signed a ledger up to its last
    line. With --head too, check that the ledger still has the line that the server printed. An older copy does not.

    Examples
    --------
    zetadp verify results/default/runs/head/federated/eps-1/seed-0 --ledgers ledgers/phantom-no-atlas
    zetadp verify runs/mine
    zetadp verify state/ledgers/head-federated-eps-8-seed-0.jsonl --key node-02.pub.pem
    """
    if key is None:
        from zetadp.privacy.verification import verify_run

        checks = verify_run(place, ledgers or (None if head else account_of(place)), head)
    else:
        from zetadp.federation.ledgers import check_ledger

        checks = check_ledger(place, key, head)
    for check in checks:
        print(f"wrong: {check.what}: {check.fault}" if check.fault else f"ok: {check.what}")
    wrong = sum(bool(check.fault) for check in checks)
    if wrong:
        raise UserError(f"{wrong} of {len(checks)} checks of {place} failed. Do not rely on it.")


def budget(
    folder: Annotated[Path, "folder of the cohort's ledgers, or of a run", "COHORT"],
    *,
    plan: Annotated[Path | None, "plan of a further run (.json)"] = None,
    node: Annotated[
        str | None, "node of the plan that holds these patients (default: the one with the highest cost)"
    ] = None,
    cap: Annotated[Positive | None, "epsilon that the total must not exceed"] = None,
) -> None:
    """Print the total epsilon of all runs on a cohort, and the total after a plan.

    Add up all ledgers in a folder: ledgers/NAME of the pipeline, ledgers next to the runs of the library, or
    state/ledgers of a hospital. The folder of a run stands for that of its ledgers. Cohorts that share its patients
    count too. Whatever the folder's register names must be there. With --plan (plan.json), also print the total after
    its training. With --cap, end with exit code 1 if the total is above the cap. Runs without noise make the total
    infinite.

    Training itself refuses to exceed a cap that is set in privacy.cap of the configuration, or in cap of a hospital's
    settings.

    Examples
    --------
    zetadp budget ledgers/phantom-no-atlas
    zetadp budget runs/mine
    zetadp budget state/ledgers --plan plan.json --node node-02 --cap 10
    """
    from zetadp.core.plan import Plan
    from zetadp.privacy.book import Book
    from zetadp.privacy.exposure import declared_run, total
    from zetadp.privacy.verification import recorded_in

    account = account_of(folder) if (folder / "plan.json").is_file() else folder
    if account is None:
        raise UserError(f"Expected the ledgers of the run {folder}, found none. Name their folder.")
    made, wanted = Book.of(recorded_in(account)).runs(), []
    if plan is not None:
        planned = Plan.read(plan)
        header = planned.header()
        if node is not None:
            planned.place(node)
            header["node"] = node
        wanted = [declared_run(planned.label, header)]
    least = min((run.delta for run in [*made, *wanted]), default=1e-3)
    at, spent = f"at delta {least:g}", total(made, least)
    print(f"spent so far: epsilon {rounded_up(spent)} {at}, in {len(made)} run(s), each counted to its declared end")
    for run in wanted:
        spent = total([*made, run], least)
        print(f"with the plan {run.name}: epsilon {rounded_up(spent)} {at}")
    if cap is None:
        return
    if spent > cap:
        raise UserError(f"The total, epsilon {rounded_up(spent)} {at}, is above the cap of {cap:g}.")
    print(f"The cap of {cap:g} is not exceeded.")


def account_of(run: Path) -> Path | None:
    """Return the folder of the live ledgers of a run's patients; None if it is not where it was.

    A run of the library stores the way to its ledger. The pipeline has ``ledgers/COHORT`` in a folder above the run.
    """
    from zetadp.privacy.verification import live_ledger

    live = live_ledger(run)
    if live is not None:
        return live.parent if live.parent.is_dir() else None
    try:
        cohort = read_json(run / "plan.json")["cohort"]
    except (UserError, OSError, ValueError, KeyError, TypeError):
        return None
    found = (parent / "ledgers" / str(cohort) for parent in run.resolve().parents)
    return next((folder for folder in found if cohort and folder.is_dir()), None)
