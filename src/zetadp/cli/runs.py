"""The commands on runs and releases: ``zetadp budget``, ``risk``, ``verify``, ``release`` and ``statement``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from zetadp.base.epsilon import Delta, rounded_up
from zetadp.base.runfolder import RunFolder
from zetadp.base.storage import read_json
from zetadp.base.validation import Count, Positive, UserError, counted
from zetadp.cli.arguments import Probability

if TYPE_CHECKING:
    import numpy as np


def release(
    features: Annotated[Path, "NumPy file (.npz) with features (person, component) and labels (person,) from 0"],
    file: Annotated[Path, "HDF5 file (.h5) to write"],
    *,
    people: Annotated[Count, "declared number of people"],
    classes: Annotated[Count, "number of classes"],
    epsilon: Annotated[Positive, "epsilon for each person, such as 1 or 8"],
    delta: Annotated[
        Delta, "probability with which the bound epsilon may fail, such as 1e-5; less than 1 / number of people"
    ],
    rows: Annotated[Count | None, "number of rows (default: about the number of people)"] = None,
    degree: Annotated[
        Positive | None, "expected number of people in a row (default: the one with the smallest error bound)"
    ] = None,
    active: Annotated[
        Probability,
        "share of the rows that each class may enter; below 1, labels assume classes of equal size or of --shares",
    ] = 1.0,
    shares: Annotated[
        Sequence[float], "declared share of each class, in the order of the labels, which add up to 1 (with --active)"
    ] = (),
    norm: Annotated[Positive, "norm to which features are clipped"] = 1.0,
    ledger: Annotated[Path | None, "ledger of the people (default: ledgers/NAME.jsonl next to the features)"] = None,
    cap: Annotated[
        Positive | None,
        "largest total epsilon, at this delta, of all ledgers in the folder of --ledger",
    ] = None,
) -> None:
    """Release features of people as noisy mixed rows that anybody may train on.

    The rows have exact noise from the operating system. The release is first recorded in the ledger of these people,
    next to their features. It can be made only once, whatever the name of the output (zetadp permit allows another).
    With --cap, nothing is released if the total epsilon of all runs and releases of these people would exceed the cap.

    With --active below 1, each row is open to some classes only, and its label follows from the sizes of the classes:
    equal ones, or those that --shares declares. Declare them without looking at the labels. If classes differ in size
    and their shares are unknown, leave --active at 1.

    The features of a person must be computed from the data of this person alone, by a model that was not trained on any
    of these people.

    Examples
    --------
    zetadp release features.npz rows.h5 --people 60000 --classes 10 --epsilon 1 --delta 1e-5
    zetadp release f.npz rows.h5 --people 500 --classes 2 --epsilon 8 --delta 1e-4 --active 0.5 --shares 0.8 0.2 --cap 8
    """
    from zetadp.own.records import Records
    from zetadp.own.release import Mixing, release_plan, release_records

    values, labels = _read_features(features)
    records = Records(values, labels, patients=range(len(values)))
    public = Mixing(people, classes, rows, degree, active, norm, tuple(shares) or None)
    plan = release_plan(epsilon, delta, public, real=not records.inputs.dtype.is_complex)
    recorded = ledger or features.parent / "ledgers" / f"{features.stem}.jsonl"
    print(release_records(records, plan, ledger=recorded, file=file, cap=cap).text, end="")


def _read_features(features: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return features (person, component) and labels (person,) from a NumPy file."""
    import zlib
    from zipfile import BadZipFile, is_zipfile

    import numpy as np

    expected = f"Expected {features} to be a NumPy file (.npz) with features and labels"
    remedy = "Write it by numpy.savez('features.npz', features=features, labels=labels)."
    try:
        with features.open("rb") as opened:
            if not is_zipfile(opened):
                raise UserError(f"{expected}, found another kind of file, such as CSV or .npy. {remedy}")
            opened.seek(0)
            with np.load(opened) as content:
                return content["features"], content["labels"]
    except ValueError as error:  # NumPy would advise to unpickle
        raise UserError(f"{expected}, found Python objects or damaged arrays in it. {remedy}") from error
    except (OSError, EOFError, BadZipFile, zlib.error, KeyError, TypeError) as error:
        raise UserError(f"{expected}: {error}. {remedy}") from error


def statement(file: Annotated[Path, "HDF5 file of released rows (.h5)"]) -> None:
    """Print the privacy statement in a file of released rows.

    Examples
    --------
    zetadp statement rows.h5
    """
    from zetadp.own.rows import read_statement

    print(read_statement(file).text, end="")


def risk(
    source: Annotated[Path, "folder of a run, or a ledger (.jsonl)", "RUN"],
    *,
    output: Annotated[Path | None, "folder for the page (default: that of the run or ledger)"] = None,
) -> None:
    """Write one page on what a training run may reveal about a person.

    The page (risk.html, with its picture risk.svg) shows how much the best possible attack can learn about one person,
    what attacks on the code have shown, and what is not covered. It needs no network and can be printed.

    Examples
    --------
    zetadp risk results/default/runs/head/federated/eps-8/seed-0
    zetadp risk runs/mine
    zetadp risk rows.jsonl --output report
    """
    from zetadp.account.recorded import recorded_in
    from zetadp.account.risk import Risk
    from zetadp.report.riskpage import Evidence, headline, write_risk

    ledger = recorded_in(source)
    if ledger.is_dir():
        raise UserError(f"Expected the folder of a run, or a ledger, found a folder of ledgers in {source}.")
    run, evidence = RunFolder(source), Evidence()
    facts = read_json(run.privacy) if run.privacy.is_file() else {}
    if run.experiment is not None and run.run_name is not None:
        evidence = Evidence.of((run.experiment / "audit").glob("*"), run.run_name.network)
    folder = output or (source if source.is_dir() else ledger.parent)
    risk_of_run = Risk.of(ledger, name=facts.get("name"))
    write_risk(risk_of_run, folder, str(ledger), evidence)
    print(headline(risk_of_run))
    print(f"written to {RunFolder(folder).risk}")


def verify(
    folder: Annotated[Path, "folder of a finished run; with --key, a ledger", "RUN"],
    *,
    ledgers: Annotated[
        Path | None, "folder of the cohort's ledgers; also checks that none of them is missing or truncated"
    ] = None,
    head: Annotated[str | None, "head of the ledger's chain that you noted earlier, instead of --ledgers"] = None,
    key: Annotated[Path | None, "public key (.pub.pem) of a hospital's node"] = None,
) -> None:
    """Check that a finished run is unchanged and its epsilon correct.

    The first line names the run, with epsilon, delta and unit. The path of its folder must not name another epsilon,
    seed, network or arm. The files that its seal names (seal.json) must be unchanged. The output names the other files,
    which are not checked; zetadp risk writes risk.html again from the ledger. The ledger (ledger.jsonl) must be an
    unbroken chain. Plan (plan.json) and statement (privacy.json) must agree with it. Its epsilon must not be below the
    one that independent code computes. No data are needed. The exit code is 1 if anything is wrong.

    Anybody can write a new chain, so something outside the folder must vouch for the ledger: the register of the
    cohort's ledgers (--ledgers), or a head of the ledger that you noted earlier (--head). Without both, the register is
    that of the account that a run of the library names, or that of ledgers/COHORT in a folder above a run of the
    pipeline.

    A hospital of a federation has no such folder. Its node signs its ledger with its own key, and the server's copy
    has the signatures. With --key (.pub.pem, from the hospital), check that the node signed a ledger up to its last
    line. With --head as well, check that the ledger still has the line that the server printed, which an older copy
    lacks.

    Examples
    --------
    zetadp verify results/default/runs/head/federated/eps-1/seed-0 --ledgers ledgers/phantom-no-atlas
    zetadp verify runs/mine
    zetadp verify state/ledgers/pretrained-federated-eps-8-seed-0.jsonl --key node-02.pub.pem
    """
    advice = "Do not rely on it."
    if key is None:
        from zetadp.account.verification import OF_HOSPITALS, unsealed, verify_run

        checks = verify_run(folder, ledgers or (None if head else RunFolder(folder).account), head)
        others = unsealed(folder)
        if not RunFolder(folder).plan.exists():
            advice = f"It lacks plan.json. {OF_HOSPITALS}"
    else:
        from zetadp.hospitals.ledgers import check_ledger

        checks, others = check_ledger(folder, key, head), []
    for check in checks:
        print(f"wrong: {check.what}: {check.fault}" if check.fault else f"ok: {check.what}")
    if others:
        print(f"not checked, as the seal does not name them: {', '.join(others)}")
    wrong = sum(bool(check.fault) for check in checks)
    if wrong:
        raise UserError(f"{wrong} of {len(checks)} checks of {folder} failed. {advice}")


def budget(
    folder: Annotated[Path, "folder of the cohort's ledgers, or of a run", "COHORT"],
    *,
    plan: Annotated[Path | None, "plan of a further run (plan.json), or the roster that holds it"] = None,
    node: Annotated[
        str | None, "node of the plan that holds these patients (default: the one with the highest cost)"
    ] = None,
    cap: Annotated[Positive | None, "largest total epsilon"] = None,
    delta: Annotated[Delta | None, "delta of the totals (default: the smallest declared one)"] = None,
) -> None:
    """Print the total epsilon of all runs on a cohort, and the total after a plan.

    The total is that of all ledgers in a folder: ledgers/NAME of the pipeline, ledgers next to the runs of the library,
    or state/ledgers of a hospital. The folder of a run stands for the folder of its ledgers. Cohorts that share
    patients with this one count too. Every ledger that the folder's register names must be there. With --plan
    (plan.json), also print the total after the planned training. With --cap, end with exit code 1 if the total is above
    the cap. A run without noise makes the total infinite. The last lines say how many runs used seeded noise, which
    protects nobody, and which part of the total is a promise.

    Training itself refuses to exceed privacy.cap of the configuration, or cap in a hospital's settings.

    Examples
    --------
    zetadp budget ledgers/phantom-no-atlas
    zetadp budget runs/mine
    zetadp budget state/ledgers --plan plan.json --node node-02 --cap 10
    """
    from zetadp.account.book import Book
    from zetadp.account.exposure import common_unit, condition_of, declared_run
    from zetadp.account.recorded import recorded_in
    from zetadp.account.totals import Total
    from zetadp.training.plan import Plan

    if not folder.is_dir():
        raise UserError(
            f"Expected a folder of ledgers, found no folder {folder}. A hospital has none before its first run."
        )
    account = RunFolder(folder).account if RunFolder(folder).plan.is_file() else folder
    if account is None:
        raise UserError(f"Expected the ledgers of the run {folder}, found none. Name their folder.")
    recorded, planned_runs = Book.of(recorded_in(account)).runs(), []
    if plan is not None:
        content = read_json(plan)
        planned = Plan.from_json(content["plan"] if "members" in content else content)  # a roster holds its plan
        if node is not None:
            planned.position(node)
        planned_runs = [declared_run(planned.label, replace(planned.declaration(), node=node))]
    if all_runs := [*recorded, *planned_runs]:
        common_unit(all_runs)
    smallest = delta or min((run.delta for run in all_runs), default=1e-3)
    at_delta, total = f"at delta {smallest:g}", Total.of(recorded, smallest)
    spent = total.spent
    print(
        f"spent so far: epsilon {rounded_up(spent)} {at_delta}, in {counted(len(recorded), 'run')}, each counted to "
        f"its declared end{condition_of(recorded)}"
    )
    for run in planned_runs:
        total = Total.of([*recorded, run], smallest)
        spent = total.spent
        condition = condition_of([*recorded, run])
        print(f"with the plan {run.name}: epsilon {rounded_up(spent)} {at_delta}{condition}")
    for text in filter(None, (total.simulation, str(total))):
        print(text)
    if cap is None:
        return
    if spent > cap:
        raise UserError(f"The total, epsilon {rounded_up(spent)} {at_delta}, is above the cap of {cap:g}.")
    print(f"The cap of {cap:g} is not exceeded.")
