"""Train one model as a federation of separate processes on this machine that send real messages over TLS."""

import shutil
from pathlib import Path
from typing import Any

from zetadp.base.tables import read_table
from zetadp.base.workflow import run
from zetadp.hospitals.launcher import LocalFederation
from zetadp.mri.decathlon import write_site_folder
from zetadp.training.partition import read_partition
from zetadp.training.pipeline import PipelineRun, RunLimits, RunPaths
from zetadp.training.plan import Plan
from zetadp.training.pretrained import public_network, with_public
from zetadp.training.settings import Patience, Performance

UNLIMITED = 1_000_000


def main(
    *,
    dataset: Path,
    table: Path,
    partition: Path,
    noise: list[Path],
    backbone: list[Path],
    plan: Plan,
    performance: Performance,
    federation: dict[str, Any],
    device: str,
    paths: RunPaths,
    limits: RunLimits,
) -> None:
    """Give every site a folder of its own patients, start server and nodes, train, stop everything."""
    pipeline_run = PipelineRun.begin(plan, noise, (table, partition), paths, limits)
    public = backbone[0].resolve() if backbone else None
    declared = with_public(pipeline_run.plan, public_network(pipeline_run.plan, public) if public else None)
    work, names = paths.processes.resolve(), [node.name for node in declared.nodes]
    # The checkpoint, the ledgers and the nodes' stored messages, which an interrupted run needs, are elsewhere.
    shutil.rmtree(work, ignore_errors=True)
    rows = read_partition(partition).merge(read_table(table)[["record", "file"]], on="record")
    watched = rows[rows["role"] == "validation"]
    write_site_folder(work / "images/server", dataset.parent, watched, "test")
    patience = dict(federation)
    answer_seconds = patience.pop("answer_seconds")
    federated = LocalFederation(work, declared, idle_seconds=max(0.25, 0.1 * len(names)))
    server = federated.server(
        pipeline_run.folder,
        pipeline_run.files,
        watched=work / "images/server" if len(watched) else None,
        watched_patients=watched["patient"].nunique(),
        backbone=public,
        evaluate_every=performance.evaluate_every,
        checkpoint_seconds=performance.checkpoint_seconds,
        threads=1,
        patience=Patience(**patience),
    )
    # The ledgers of the nodes must remain when results are deleted, like those of the cohort.
    states = pipeline_run.files.ledger.resolve().with_suffix(".hospitals")
    with federated:
        for name in names:
            rows_of_node = rows[(rows["role"] == "train") & (rows["node"] == name)]
            write_site_folder(work / "images" / name, dataset.parent, rows_of_node, "train")
            hospital = federated.hospital(
                name,
                images=work / "images" / name,
                state=states / name,
                # The cohort's ledger decides whether there may be another attempt.
                attempts=UNLIMITED,
                answer_seconds=answer_seconds,
                device=device,
                backbone=public,
                chunk=performance.chunk,
                threads=1,
                simulation=declared.simulated,
            )
            federated.start_node(hospital)
        federated.run(server)
    for name in names:
        for part in ("messages", "images"):
            shutil.rmtree(states / name / part, ignore_errors=True)
    pipeline_run.end(declared)
    for path in work.iterdir():
        if path.is_dir() and path.name != "logs":
            shutil.rmtree(path)
        elif path.name != "plan.json" and path.is_file():
            path.unlink()


if __name__ == "__main__":
    run(main)
