"""Train one model: one network, one arm, one target epsilon, one seed."""

import logging
from pathlib import Path

from zetadp.base.tensors import keep_freed_memory, pick_device
from zetadp.base.workflow import run
from zetadp.training.holders import LocalHolders
from zetadp.training.loop import train
from zetadp.training.partition import read_partition
from zetadp.training.pipeline import PipelineRun, RunLimits, RunPaths
from zetadp.training.plan import Plan
from zetadp.training.pretrained import starting_weights, with_backbone
from zetadp.training.records import units_by_node
from zetadp.training.results import write_results
from zetadp.training.settings import Performance
from zetadp.training.task import pipeline_task_of


def main(
    *,
    images: list[Path],
    partition: Path,
    table: Path,
    noise: list[Path],
    backbone: list[Path],
    plan: Plan,
    performance: Performance,
    device: str,
    paths: RunPaths,
    limits: RunLimits,
) -> None:
    """Train, then write the plan, the model, its history and a sealed copy of its ledger."""
    keep_freed_memory()
    torch_device = pick_device(device)
    pipeline_run = PipelineRun.begin(plan, noise, (table, partition), paths, limits)
    task, roles = pipeline_task_of(pipeline_run.plan.task), read_partition(partition)
    declared, public = with_backbone(pipeline_run.plan, backbone, task, torch_device)
    records, watched = (task.load(images, roles, role, torch_device) for role in ("train", "validation"))
    logger, rounds, items = logging.getLogger(__name__), declared.training.rounds, len(records.inputs)
    logger.info("%s: %d items, %d rounds, on %s", declared.run, items, rounds, torch_device)
    start = starting_weights(declared.network, public)
    units = units_by_node(declared, records)
    holders = LocalHolders(declared, records, units, start=start, performance=performance)
    trained = train(holders, pipeline_run.files, validation=watched)
    pipeline_run.end(declared)
    logger.info("%s: all %d rounds done", declared.run, rounds)
    inputs = records.inputs.shape[-1]
    write_results(pipeline_run.folder, trained, declared, pipeline_run.files, inputs=inputs, backbone=public)


if __name__ == "__main__":
    run(main)
