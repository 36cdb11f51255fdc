"""The commands on runs and releases: ``zetadp budget``, ``risk``, ``verify``, ``release`` and ``statement``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from zetadp.base.epsilon import rounded_up
from zetadp.base.storage import read_json
from zetadp.base.validation import UserError
from zetadp.cli.helping import command, count, delta, option, positive_number, probability

if TYPE_CHECKING:
    from zetadp.privacy.verification import Check


@command(
    "release",
    examples=(
        "release features.npz rows.h5 --people 60000 --classes 10 --epsilon 1 --delta 1e-5",
        "release features.npz rows.h5 --people 500 --classes 2 --epsilon 8 --delta 1e-4 --rows 200 --active 0.5",
        "release features.npz rows.h5 --people 500 --classes 2 --epsilon 2 --delta 1e-4 --cap 8",
    ),
    options=[
        option(
            "features",
            type=Path,
            help="NumPy file (.npz) with features (person, component) and labels (person,) from 0",
        ),
        option("file", type=Path, help="HDF5 file to write (.h5)"),
        option("--people", type=count, required=True, help="declared number of people"),
        option("--classes", type=count, required=True, help="number of classes"),
        option("--epsilon", type=positive_number, required=True, help="epsilon for each person, such as 1 or 8"),
        option(
            "--delta",
            type=delta,
            required=True,
            help="probability for which epsilon allows an exception, such as 1e-5; less than 1 / number of people",
        ),
        option("--rows", type=count, help="number of rows (default: about the number of people)"),
        option("--degree", type=positive_number, help="expected number of people in a row (default: the best one)"),
        option(
            "--active",
            type=probability,
            default=1.0,
            help="share of the rows that are open to each class; below 1, the file says which rows "
            "(default: %(default)s)",
        ),
        option(
            "--norm", type=positive_number, default=1.0, help="norm that features are clipped to (default: %(default)s)"
        ),
        option("--ledger", type=Path, help="ledger of the people (default: ledgers/NAME.jsonl next to the features)"),
        option(
            "--cap",
            type=positive_number,
            help="epsilon that the total of all ledgers in the folder of --ledger must not exceed, at this delta",
        ),
    ],
)
def release(given: argparse.Namespace) -> None:
    """Release features of people as noisy mixed rows that anybody may train on.

    Mix the features of people into rows, add exact noise from the operating system, and write the rows with their
    guarantee to a file. The release is first recorded in the ledger of these people, which lies next to their features,
    and can be made only once, whatever the output is called. To release the same people again, permit it (zetadp
    permit). With --cap, nothing is released if the total epsilon of all runs and releases of these people would exceed
    the cap: keep their ledgers in one folder.

    The features of a person must be computed from this person's data alone, by a model that was trained on none of
    these people.
    """
    import zlib
    from zipfile import BadZipFile

    import numpy as np

    from zetadp.privacy.statement import plain_text
    from zetadp.rows.release import ReleaseSettings, release_features

    try:
        with given.features.open("rb") as file, np.load(file) as content:
            features, labels = content["features"], content["labels"]
    except (OSError, EOFError, BadZipFile, zlib.error, KeyError, ValueError, TypeError) as error:
        raise UserError(
            f"Expected {given.features} to be a NumPy file (.npz) with features and labels: {error}."
        ) from error
    settings = ReleaseSettings(
        given.epsilon,
        given.delta,
        people=given.people,
        classes=given.classes,
        rows=given.rows,
        degree=given.degree,
        active=given.active,
        norm=given.norm,
        cohort=given.features.stem,
        cap=given.cap,
    )
    ledger = given.ledger or given.features.parent / "ledgers" / f"{given.features.stem}.jsonl"
    print(plain_text(release_features(features, labels, settings, ledger=ledger, file=given.file)), end="")


@command(
    "statement",
    examples=("statement rows.h5", "statement results/release/runs/rows/federated/eps-8/seed-0/release.h5"),
    options=[
        option("file", type=Path, help="HDF5 file of released rows (.h5)"),
    ],
)
def statement(given: argparse.Namespace) -> None:
    """Print the privacy statement in a file of released rows.

    Print the privacy statement that a file of released rows (.h5) contains.
    """
    from zetadp.privacy.statement import plain_text
    from zetadp.rows.file import read_statement

    print(plain_text(read_statement(given.file)), end="")


OF_AN_EXPERIMENT = 5
"""Number of folders from that of an experiment down to that of a run: runs/NETWORK/ARM/EPSILON/SEED."""

LEDGER = "ledger.jsonl"
"""Sealed copy of the ledger, in the folder of a finished run."""


@command(
    "risk",
    examples=(
        "risk results/default/runs/head/federated/eps-8/seed-0",
        "risk runs/mine",
        "risk rows.jsonl --output report",
    ),
    options=[
        option("place", type=Path, metavar="RUN", help="folder of a run, or a ledger (.jsonl)"),
        option("--output", type=Path, help="folder for the page (default: that of the run or ledger)"),
        option("--audit", type=Path, help="folder of the audit (default: that of the run's experiment)"),
    ],
)
def risk(given: argparse.Namespace) -> None:
    """Write one page on what a training run may reveal about a person.

    Write risk.html, risk.md and risk.svg from the ledger of a run or of a release. They say what the best attack can
    learn about one person at most, what attacks on the code have shown, and what is not covered. The page needs no
    network and can be printed.
    """
    from zetadp.privacy.risk import Risk
    from zetadp.report.riskpage import Evidence, headline, write_risk

    place: Path = given.place
    ledger = ledger_of(place)
    statement = ledger.with_name("privacy.json")
    known = read_json(statement) if place.is_dir() and statement.is_file() else {}
    parents = place.resolve().parents
    audit = given.audit or (parents[OF_AN_EXPERIMENT - 1] / "audit" if len(parents) >= OF_AN_EXPERIMENT else place)
    network = parents[OF_AN_EXPERIMENT - 3].name if len(parents) >= OF_AN_EXPERIMENT else None
    output = given.output or (place if place.is_dir() else ledger.parent)
    found = Risk.of(ledger, name=known.get("name"))
    write_risk(found, found.unit, found.delta, output, str(ledger), Evidence.of(audit.glob("*"), network))
    print(headline(found, found.unit, found.delta))
    print(f"written to {output / 'risk.html'}")


@command(
    "verify",
    examples=(
        "verify results/default/runs/head/federated/eps-1/seed-0 --ledgers ledgers/phantom-no-atlas",
        "verify runs/mine",
        "verify --receipt node-02.json --authority authority.pem --server server.example --ledgers state/ledgers",
        "verify state/ledgers/head-federated-eps-8-seed-0.jsonl --key node-02.pub.pem",
    ),
    options=[
        option("place", type=Path, metavar="RUN", nargs="?", help="folder of a finished run; with --key, a ledger"),
        option(
            "--ledgers",
            type=Path,
            help="folder of the cohort's ledgers; also check that none of them is missing or cut off",
        ),
        option("--head", help="head of the ledger's chain that was noted elsewhere, instead of --ledgers"),
        option("--receipt", type=Path, help="receipt of a federation's server (.json), instead of RUN"),
        option(
            "--authority",
            type=Path,
            help="certificate of the authority (authority.pem) that signed the server's certificate",
        ),
        option("--server", metavar="HOST", help="name or address by which nodes reach the server"),
        option("--key", type=Path, help="public key (.pub.pem) of a hospital's node, or a certificate of it"),
    ],
)
def verify(given: argparse.Namespace) -> None:
    """Check that a finished run is unchanged and its epsilon correct.

    Check the folder of a finished run. Its files must be unchanged since they were sealed (seal.json). Its ledger
    (ledger.jsonl) must be an unbroken chain. Its plan (plan.json) and its statement (privacy.json) must agree with the
    ledger. Its epsilon must not be below one that other code computes. No data are needed. The exit code is 1 if
    anything is wrong.

    A chain can be made anew, so something outside the folder must vouch for the ledger: the register of the cohort's
    ledgers (--ledgers; without it, the account that a run of the library names, or ledgers/COHORT above the folder of a
    run of the pipeline), or a head of the ledger that you noted earlier (--head).

    A hospital of a federation has no such folder. With --receipt (.json, from the coordinator), --authority (.pem) and
    --server, check instead that its ledgers record all that the server has received. An older copy of a ledger does
    not.

    A hospital's node signs its ledger with its own key, and the server's copy carries the signatures. With --key
    (.pub.pem, from the hospital), check that the node signed a ledger up to its last line.
    """
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


@command(
    "budget",
    examples=(
        "budget ledgers/phantom-no-atlas",
        "budget runs/mine",
        "budget state/ledgers --plan plan.json --node node-02 --cap 10",
    ),
    options=[
        option("folder", type=Path, metavar="COHORT", help="folder of the cohort's ledgers, or of a run"),
        option("--plan", type=Path, help="plan of a further run (.json)"),
        option("--node", help="node of the plan that holds these patients (default: the one with the highest cost)"),
        option("--cap", type=positive_number, help="epsilon that the total must not exceed"),
        option("--delta", type=delta, help="delta of the totals (default: the least that was declared)"),
    ],
)
def budget(given: argparse.Namespace) -> None:
    """Print the total epsilon of all runs on a cohort, and the total after a plan.

    Add up all ledgers in a folder: ledgers/NAME of the pipeline, ledgers next to the runs of the library, or
    state/ledgers of a hospital. The folder of a run stands for that of its ledgers. Cohorts that share its patients
    count too. Whatever the folder's register names must be there. With --plan (plan.json), also print the total after
    its training. With --cap, end with exit code 1 if the total is above the cap. Runs without noise make the total
    infinite.

    Training itself refuses to exceed a cap that is set in privacy.cap of the configuration, or in cap of a hospital's
    settings.
    """
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


def ledger_of(place: Path) -> Path:
    """Return a ledger that was named, or the ledger of a run whose folder was named.

    Raises
    ------
    UserError
        If there is none.
    """
    from zetadp.privacy.verification import live_ledger

    sealed = place / LEDGER if place.is_dir() else place
    live = live_ledger(place) if place.is_dir() else None
    found = live if live is not None and not sealed.is_file() else sealed
    if not found.is_file():
        raise UserError(f"Expected a finished run or a ledger, found no {found}.")
    return found


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
