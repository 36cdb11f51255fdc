"""Train one model: one network, one arm, one target epsilon, one seed."""

import logging
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from zetadp.core.plan import Plan
from zetadp.core.records import single_images
from zetadp.core.settings import Performance
from zetadp.core.training import Holding, TrainingData, TrainingFiles, train
from zetadp.dataset import load_role, pick_device, to_records
from zetadp.federation.partition import read_partition
from zetadp.memory import keep_freed_memory
from zetadp.nn.backbone import load_backbone
from zetadp.pretrained import save_model
from zetadp.privacy.account import Permission, claim, forget_times
from zetadp.publicstart import starting_weights, with_public
from zetadp.storage import read_json, written_whole
from zetadp.ticks import wait_for_tick
from zetadp.workflow import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


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
    device: str,
    ledger_file: str,
    checkpoint: str,
) -> None:
    """Train, then write the plan, the model, its history and a sealed copy of its ledger."""
    begun = time.monotonic()
    keep_freed_memory()
    place = pick_device(device)
    roles = read_partition(partition)
    stack, rows = load_role(images, roles, "train")
    watched, _ = load_role(images, roles, "validation")
    claim(Path(ledger_file).parent, table)
    public = load_backbone(backbone[0], place) if backbone else None
    declared = with_public(calibrated(plan, noise), public)
    logger = logging.getLogger(__name__)
    logger.info("%s: %d training records, %d rounds, on %s", declared.run, len(rows), declared.training.rounds, place)
    permission = Permission(declared.delta) if declared.exact else None
    files = TrainingFiles(Path(ledger_file), Path(checkpoint), permission)
    trained = train(
        declared,
        TrainingData(to_records(stack, place), holdings(rows, declared), to_records(watched, place)),
        files,
        start=starting_weights(declared.network, public),
        performance=Performance(**performance),
    )
    if finish_seconds:
        wait_for_tick(begun, finish_seconds)
        forget_times(files.ledger)
    logger.info("%s: all %d rounds done", declared.run, declared.training.rounds)
    declared.write(agreed)
    save_model(
        model,
        trained.model,
        declared,
        sequences=stack.sequences,
        ledger_head=trained.ledger_head,
        backbone=public,
    )
    with written_whole(history) as temporary:
        trained.history.to_csv(temporary, index=False)
    with written_whole(ledger) as temporary:
        shutil.copyfile(files.ledger, temporary)
    files.finish()


def calibrated(plan: dict[str, Any], noise: list[Path]) -> Plan:
    """Return a run's plan with its noise, if it has any."""
    declared = Plan.from_json(plan)
    return declared.with_noise(read_json(noise[0])["noise_multiplier"]) if noise else declared


def holdings(rows: pd.DataFrame, plan: Plan) -> list[Holding]:
    """Return who is at each node; a central holder is one node that holds everybody."""
    names = [plan.nodes[0].name] * len(rows) if plan.threat == "central" else list(rows["node"])
    result = []
    for node in plan.nodes:
        own = rows[[name == node.name for name in names]]
        patients = [tuple(map(int, group.index)) for _, group in own.groupby("patient", sort=True)]
        units = (patients,) if plan.unit == "patient" else single_images(patients, plan.units_of_a_person)
        result.append(Holding(*units))
    return result


if __name__ == "__main__":
    run(main, snakemake)
