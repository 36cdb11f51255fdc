"""A federation of three hospitals on this machine, with simulated patients: to see one before there is one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

import pandas as pd

from zetadp.account.statement import account_run
from zetadp.accounting.threat import MASKED_SUMS, NoiseSource, Sums
from zetadp.base.epsilon import Target
from zetadp.base.runfolder import RunFolder, RunName
from zetadp.base.storage import write_json
from zetadp.base.validation import UserError
from zetadp.hospitals.kit import invitation
from zetadp.hospitals.launcher import LocalFederation
from zetadp.mri.decathlon import read_task, write_site_folder
from zetadp.nn.settings import NetworkSettings
from zetadp.phantom.cohort import write_dataset_json, write_patients
from zetadp.phantom.settings import Simulated
from zetadp.training.checkpoint import RunFiles
from zetadp.training.plan import NodeConstants, Plan
from zetadp.training.pretrained import public_network, with_public
from zetadp.training.promise import make_plan
from zetadp.training.settings import OptimiserSettings, TrainingSettings

HOSPITALS, PATIENTS, WATCHED = 3, 12, 6
EPSILON, DELTA, ROUNDS, SPARE = Target(8), 1e-3, 10, 2
ANSWER_SECONDS = 0.5
"""Answers leave at multiples of this, as between real hospitals; a round of the demonstration is shorter."""


def run_demo(folder: Path, report: Callable[[str], None]) -> Path:
    """Simulate three hospitals, train a private head between them over TLS, and write model and statement.

    Parameters
    ----------
    folder
        A new folder, for all that is made.
    report
        Takes a line on each step.

    Returns
    -------
    The model.

    Raises
    ------
    UserError
        If the folder is there already, or a process fails.
    """
    if folder.exists():
        raise UserError(f"Expected a new folder, found {folder}. Name another: --folder FOLDER")
    work = folder.resolve()
    plan, run = demo_plan(), RunFolder(work)
    names = [node.name for node in plan.nodes]
    report(f"Simulating {len(names)} hospitals with {PATIENTS} patients each ...")
    _simulate(work, names)
    report(f"{invitation(plan, names[0])}\n")
    with LocalFederation(work, plan, idle_seconds=0.3) as local:
        for name in names:
            folders = {"images": work / name, "state": work / f"{name}-state"}
            hospital = local.hospital(name, **folders, answer_seconds=ANSWER_SECONDS, threads=1)
            local.start_node(hospital)
            report(f"{name}: the plan is approved; started, checks and prepares its patients")
        server = local.server(
            run,
            RunFiles(work / "state/ledger.jsonl", work / "state/checkpoint.safetensors"),
            watched=work / "server",
            watched_patients=WATCHED,
            evaluate_every=ROUNDS,
            threads=1,
        )
        local.run(server, report)
    statement = account_run(server.ledger, server.model, name=plan.label)
    write_json(run.privacy, statement)
    accuracy = pd.read_csv(server.history)["validation_accuracy"].iloc[-1]
    report(f"Finished. {100 * accuracy:.0f} % of the images of {WATCHED} other patients are classified correctly.")
    report(str(statement["statement"]))
    return server.model


def demo_plan() -> Plan:
    """Return the plan: a head of four components on the backbone that comes with the package."""
    training = TrainingSettings(
        ROUNDS,
        images_per_patient=80,
        optimiser=OptimiserSettings(name="sgd", learning_rate=1.0, drop_after=1.0, averaged=0.5),
        clip=0.3,
        noise=NoiseSource.OS,
    )
    plan = Plan(
        RunName("demo", "federated", EPSILON, 0),
        NetworkSettings("head", "features", components=4, start="public"),
        training,
        tuple(NodeConstants(f"hospital-{n + 1}", PATIENTS, PATIENTS) for n in range(HOSPITALS)),
        delta=DELTA,
        threat=MASKED_SUMS,
        sums=Sums(colluding=1, missing=0, spare=SPARE),
        cohort="phantom-demo",
        simulated=True,
        task={"name": "brain_sequences", "slices": 20, "size": 32, "decision": "image"},
    )
    plan = make_plan(plan)
    return with_public(plan, public_network(plan, None))


def _simulate(work: Path, names: list[str]) -> None:
    phantom, train = Simulated(seed=11, scanners=len(names)), len(names) * PATIENTS
    cohort = work / "patients"
    write_patients(phantom, train, cohort, range(1, train + WATCHED + 1))
    write_dataset_json(phantom, cohort, train, WATCHED)
    task = read_task(cohort)
    for number, name in enumerate(names):
        write_site_folder(
            work / name, cohort, _rows(task.training[number * PATIENTS : (number + 1) * PATIENTS]), "train"
        )
    write_site_folder(work / "server", cohort, _rows(task.test), "test")


def _rows(files: Sequence[PurePosixPath]) -> pd.DataFrame:
    """Return an index of files, each of which is a patient."""
    patients = [file.name.partition(".")[0] for file in files]
    return pd.DataFrame({"file": [str(file) for file in files], "patient": patients})
