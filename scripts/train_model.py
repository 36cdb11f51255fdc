"""Train one model: one network, one arm, one target epsilon, one seed."""

import logging
import shutil
import time
from pathlib import Path
from typing import Any

from zetadp.account.book import claim, forget_times
from zetadp.account.budget import Cap
from zetadp.account.declaration import Series
from zetadp.base.storage import written_whole
from zetadp.base.tensors import keep_freed_memory, pick_device
from zetadp.base.workflow import run
from zetadp.training.checkpoint import RunFiles
from zetadp.training.holders import LocalHolders
from zetadp.training.loop import train
from zetadp.training.partition import read_partition, training_data
from zetadp.training.plan import Plan
from zetadp.training.pretrained import save_model, starting_weights, with_backbone
from zetadp.training.progress import announced_tick, seconds_to_tick
from zetadp.training.promise import make_plan
from zetadp.training.records import units_by_node
from zetadp.training.settings import Performance
from zetadp.training.task import pipeline_task_of


def main(
    *,
    images: list[Path],
    partition: Path,
    table: Path,
    noise: list[Path],
    backbone: list[Path],
    model: Path,
    history: Path,
    ledger: Path,
    agreed: Path,
    plan: dict[str, Any],
    performance: dict[str, Any],
    finish_seconds: int,
    cap: dict[str, float] | None,
    series: dict[str, Any] | None,
    device: str,
    ledger_file: str,
    checkpoint: str,
) -> None:
    """Train, then write the plan, the model, its history and a sealed copy of its ledger."""
    started = time.monotonic()
    keep_freed_memory()
    torch_device = pick_device(device)
    claim(Path(ledger_file).parent, table)
    planned = make_plan(Plan.from_json(plan), noise)
    task, roles = pipeline_task_of(planned.task), read_partition(partition)
    declared, public = with_backbone(planned, backbone, task, torch_device)
    records, watched = (task.load(images, roles, role, torch_device) for role in ("train", "validation"))
    logger = logging.getLogger(__name__)
    logger.info(
        "%s: %d items, %d rounds, on %s", declared.run, len(records.inputs), declared.training.rounds, torch_device
    )
    tick = announced_tick(declared, finish_seconds)
    limit, live = None if cap is None else Cap(**cap), Path(ledger_file)
    together = None if series is None else Series(**series)
    data = training_data(table, partition, live)
    files = RunFiles(live, Path(checkpoint), declared.protects_people, limit, together, data)
    holders = LocalHolders(
        declared,
        records,
        units_by_node(declared, records),
        start=starting_weights(declared.network, public),
        performance=Performance(**performance),
    )
    trained = train(holders, files, validation=watched)
    if tick:
        time.sleep(seconds_to_tick(started, tick))
        forget_times(files.ledger)
    logger.info("%s: all %d rounds done", declared.run, declared.training.rounds)
    declared.write(agreed)
    save_model(model, trained, declared, inputs=records.inputs.shape[-1], backbone=public, ledger=files.ledger)
    with written_whole(history) as temporary:
        trained.history.to_csv(temporary, index=False)
    with written_whole(ledger) as temporary:
        shutil.copyfile(files.ledger, temporary)
    files.finish()


if __name__ == "__main__":
    run(main)
