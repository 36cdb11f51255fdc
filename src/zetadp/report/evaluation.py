"""Evaluation of a finished run: its predictions and metrics, its privacy statement, its card and its seal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from zetadp.account.attempts import LostError, read_ledger
from zetadp.account.statement import account_run
from zetadp.base.runfolder import RunFolder
from zetadp.base.storage import read_json, write_json, written_whole
from zetadp.base.tensors import pick_device
from zetadp.base.validation import UserError
from zetadp.report.modelcard import model_card
from zetadp.report.provenance import Cohort, environment
from zetadp.training.evaluation import watched, without_absent
from zetadp.training.partition import read_partition, training_data
from zetadp.training.plan import Plan
from zetadp.training.pretrained import FinishedModel, load_model


@dataclass(frozen=True)
class RunInputs:
    """Files that a run is trained and evaluated on.

    Attributes
    ----------
    images
        Inputs of the network.
    partition, table
        The table of who is where, and the cohort's index.
    backbone
        The public backbone in a sequence, which is empty if the network has none.
    """

    images: Sequence[Path]
    partition: Path
    table: Path
    backbone: Sequence[Path]


def evaluate_run(run: RunFolder, inputs: RunInputs, *, account: Path, device: str, cohort: Cohort) -> None:
    """Write everything that evaluation writes of a run.

    Parameters
    ----------
    run, inputs
        The run's folder and inputs.
    account
        The live ledger of the run.
    device
        ``auto``, ``cpu`` or ``cuda``.
    cohort
        The cohort.

    Raises
    ------
    UserError
        If the model was trained on other data than these, or if anything cannot be evaluated.
    """
    check_data(run, account, inputs)
    plan = Plan.read(run.plan)
    model = load_model(run.model, pick_device(device))
    _measure(model, plan, run, inputs)
    statement = account_run(run.ledger, run.model, name=str(plan.run))
    measured = read_json(run.metrics)
    trained = plan.network.to_json()  # with the taper that follows from the noise
    statement.seal(run, model_card(measured["run"], trained, statement, measured, cohort, model.words))


def check_data(run: RunFolder, account: Path, inputs: RunInputs) -> None:
    """Refuse the data of a cohort if the model of a run was trained on others.

    A run on real patients is trained once. If a training volume changes afterwards, the model is still the earlier one,
    and its predictions for this cohort would pass as the result on the new data.

    Parameters
    ----------
    run, account
        The run's folder, and its live ledger.
    inputs
        The run's inputs.
    """
    trained_on = read_ledger(run.ledger)[-1].declaration.data
    if not account.exists():
        raise LostError([f"{account} is missing"])
    if trained_on != training_data(inputs.table, inputs.partition, account):
        raise UserError(
            f"Expected the data that {run.model} was trained on, found others in {inputs.table}: a training volume, "
            "its patient or its hospital has changed since. Bring the earlier data back. Or train again, which costs "
            f"the patients more: zetadp permit {account} shows the total and asks; then add --forcerun {run.model} to "
            "the snakemake command."
        )


def _measure(finished: FinishedModel, plan: Plan, run: RunFolder, inputs: RunInputs) -> None:
    """Write predictions and metrics on the server's test patients, and the metric on each node's validation patients.

    If the network started from public weights, these are also evaluated: the difference is the gain of training.
    """
    device = next(finished.network.parameters()).device
    task, table = finished.task, read_partition(inputs.partition)
    test = task.load(inputs.images, table, "test", device)
    outputs = without_absent(finished.outputs(test.inputs), test.present)
    items = test.items.drop(columns=["role", "node"])
    tested = items.assign(**task.measure(outputs, test.targets))[test.present]
    public = {}
    if finished.settings.start == "public":
        pretrained = task.backbone(inputs.backbone[0], device)
        if pretrained is not None:
            start = finished.public_start(pretrained)
            public = {"public_start": watched(task, start, test)[0]}
    nodes = {}
    if (table["role"] == "validation").any():
        records = task.load(inputs.images, table, "validation", device)
        known, outputs = records.present, without_absent(finished.outputs(records.inputs), records.present)
        scores = task.scores(outputs, records.targets).cpu().double().numpy()
        nodes = pd.Series(scores[known]).groupby(records.items["node"].to_numpy()[known]).mean().to_dict()
    with written_whole(run.predictions) as temporary:
        tested.to_csv(temporary, index=False)
    write_json(
        run.metrics,
        task.summarise(tested)
        | {
            "run": plan.run.to_json(),
            "task": finished.task_name,
            "node_metric": nodes,
            **public,
            "environment": environment(device),
        },
    )
