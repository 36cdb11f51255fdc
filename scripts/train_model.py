"""Train one model: one network, one arm, one target epsilon, one seed."""

import logging
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from zetadp.checkpoint import save_tensors, tensors_digest
from zetadp.dataset import load_role, pick_device, to_records
from zetadp.federation.partition import read_partition
from zetadp.memory import keep_freed_memory
from zetadp.nn.backbone import load_backbone
from zetadp.nn.models import NetworkSettings
from zetadp.pretrained import BACKBONE, model_content
from zetadp.privacy.account import Permission, claim, forget_times
from zetadp.privacy.threat import CENTRAL_HOLDER, SECURE_AGGREGATION
from zetadp.storage import read_json, written_whole
from zetadp.ticks import wait_for_tick
from zetadp.training import NodePlan, RunName, TrainingSettings, finish, train
from zetadp.validation import UserError
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
    network: str,
    arm: str,
    epsilon: str,
    seed: str,
    settings: dict[str, Any],
    training: dict[str, Any],
    plan: dict[str, Any],
    threat: str,
    cohort: str,
    division: dict[str, Any],
    noise_source: str,
    finish_seconds: int,
    device: str,
    ledger_file: str,
    checkpoint: str,
) -> None:
    """Train, then write the model, its history and a sealed copy of its ledger."""
    begun = time.monotonic()
    keep_freed_memory()
    place = pick_device(device)
    roles = read_partition(partition)
    stack, rows = load_role(images, roles, "train")
    watched, _ = load_role(images, roles, "validation")
    claim(Path(ledger_file).parent, table)
    name = RunName(network, arm, epsilon, int(seed))
    architecture = NetworkSettings(**settings)
    logging.getLogger(__name__).info(
        "%s: %d training records, %d rounds, on %s", name, len(rows), plan["rounds"], place
    )
    found = read_json(noise[0]) if noise else {"noise_multiplier": 0.0}
    public = load_backbone(backbone[0], place) if backbone else None
    starting = public.start(architecture) if public is not None and architecture.start == "public" else None
    used: dict[str, Any] = {} if public is None else {"backbone": tensors_digest(public.tensors())}
    if threat == SECURE_AGGREGATION:
        # Whoever reads the ledger must know that its noise was meant for sums.
        used |= {"threat": threat, "colluding": plan["colluding"]}
    trained = train(
        name,
        architecture,
        TrainingSettings.from_section(training, rounds=plan["rounds"], noise=noise_source),
        plans(rows, threat, plan, found["noise_multiplier"]),
        to_records(stack, place),
        to_records(watched, place),
        ledger_path=Path(ledger_file),
        checkpoint_path=Path(checkpoint),
        start=starting,
        context={"cohort": cohort, "partition": division} | used,
        permission=Permission(found["delta"]) if noise and noise_source == "os" else None,
    )
    if finish_seconds:
        wait_for_tick(begun, finish_seconds)
        forget_times(Path(ledger_file))
    logging.getLogger(__name__).info("%s: all %d rounds done", name, plan["rounds"])
    tensors = {key: value.detach().cpu() for key, value in trained.model.named_parameters()}
    size = stack.values.shape[-1]
    content = {"ledger_head": trained.ledger_head}
    if public is not None and architecture.domain == "features":
        # A head is of no use without the network whose features it takes: the model's file holds both.
        tensors |= {f"{BACKBONE}{key}": value.detach().cpu() for key, value in public.tensors().items()}
        content |= {"public": public.content()}
        size = public.size
    content |= model_content(settings, stack.sequences, stack.values.shape[2], size)
    save_tensors(model, tensors, content)
    with written_whole(history) as temporary:
        trained.history.to_csv(temporary, index=False)
    with written_whole(ledger) as temporary:
        shutil.copyfile(ledger_file, temporary)
    finish(Path(checkpoint))


def plans(rows: pd.DataFrame, threat: str, plan: dict[str, Any], noise_multiplier: float) -> list[NodePlan]:
    """Return what each node holds; a central holder is one node that holds everybody."""
    holders = rows["node"].map(lambda _: CENTRAL_HOLDER) if threat == "central" else rows["node"]
    result = []
    groups = rows.groupby(holders.to_numpy(), sort=True)
    for (name, group), population, expected in zip(groups, plan["sizes"], plan["expected"], strict=True):
        patients = [tuple(positions) for positions in group.groupby("patient", sort=True).indices.values()]
        positions = [tuple(int(group.index[i]) for i in own) for own in patients]
        images = None
        if "images_of_a_patient" in plan:
            positions, images = single_images(positions, plan["images_of_a_patient"])
        result.append(NodePlan(str(name), positions, population, expected, noise_multiplier, images))
    return result


def single_images(patients: list[tuple[int, ...]], count: int) -> tuple[list[tuple[int, ...]], list[int]]:
    """Return record and position of every image of some patients, where each image is drawn by itself."""
    if any(len(own) != 1 for own in patients):
        msg = "Expected one record a patient with training.unit image, found several. Use training.unit patient."
        raise UserError(msg)
    return [own for own in patients for _ in range(count)], list(range(count)) * len(patients)


if __name__ == "__main__":
    run(main, snakemake)
