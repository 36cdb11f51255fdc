"""Evaluate a finished run on held-out patients, account for its privacy, and write its model card."""

from dataclasses import asdict
from pathlib import Path

import pandas as pd

from zetadp.base.storage import read_json, write_json, write_text, written_whole
from zetadp.base.tensors import keep_freed_memory, pick_device
from zetadp.base.workflow import run
from zetadp.core.evaluation import watched, without_absent
from zetadp.core.plan import Plan, RunName
from zetadp.core.pretrained import load_model
from zetadp.core.task import PipelineTask
from zetadp.federation.partition import read_partition
from zetadp.privacy.statement import account_run
from zetadp.privacy.verification import seal
from zetadp.report.modelcard import model_card
from zetadp.report.provenance import environment


def main(
    *,
    model: Path,
    images: list[Path],
    partition: Path,
    backbone: list[Path],
    ledger: Path,
    agreed: Path,
    predictions: Path,
    metrics: Path,
    privacy: Path,
    text: Path,
    card: Path,
    sealed: Path,
    device: str,
    cohort_label: str,
) -> None:
    """Write predictions and metrics, the privacy statement as JSON and as text, the card of the model, and the seal.

    One job does everything, because each part takes less time than the start of a job.
    """
    keep_freed_memory()
    plan = Plan.read(agreed)
    task = evaluate(model, images, partition, backbone, predictions, metrics, plan.run, device=device)
    statement = account_run(ledger, model, name=str(plan.run))
    statement.write(privacy, text)
    measured = read_json(metrics)
    trained = plan.network.to_json()  # with the taper that follows from the noise
    write_text(card, model_card(measured["run"], trained, statement, measured, cohort_label, task.words))
    seal(sealed, [model, ledger, agreed, predictions, metrics, privacy, text, card])


def evaluate(
    model: Path,
    images: list[Path],
    partition: Path,
    backbone: list[Path],
    predictions: Path,
    metrics: Path,
    name: RunName,
    *,
    device: str,
) -> PipelineTask:
    """Write predictions and metrics on the server's test patients, and the metric on each node's validation patients.

    If the network started from public weights, these are also evaluated: the difference is the gain of training.
    Returns the task of the model.
    """
    place = pick_device(device)
    finished = load_model(model, place)
    task, table = finished.task, read_partition(partition)

    test = task.load(images, table, "test", place)
    outputs = without_absent(finished.outputs(test.inputs), test.present)
    items = test.items.drop(columns=["record", "role", "node"])
    tested = items.assign(**task.measure(outputs, test.targets))[test.present]
    public = {}
    if finished.settings.start == "public":
        found = task.backbone(backbone[0], place)
        if found is not None:
            start = finished.public_start(found)
            public = {"public_start": watched(task, start, test)[0]}
    nodes = {}
    if (table["role"] == "validation").any():
        records = task.load(images, table, "validation", place)
        known, outputs = records.present, without_absent(finished.outputs(records.inputs), records.present)
        scores = task.scores(outputs, records.targets).cpu().double().numpy()
        nodes = pd.Series(scores[known]).groupby(records.items["node"].to_numpy()[known]).mean().to_dict()
    with written_whole(predictions) as temporary:
        tested.to_csv(temporary, index=False)
    write_json(
        metrics,
        task.summarise(tested)
        | {
            "run": asdict(name),
            "task": finished.task_name,
            "node_metric": nodes,
            **public,
            "environment": environment(place),
        },
    )
    return task


if __name__ == "__main__":
    run(main)
