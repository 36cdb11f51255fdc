"""Train one model as a federation of separate processes on this machine that send real messages over TLS."""

import shutil
import time
from pathlib import Path
from typing import Any

from zetadp.account.book import claim, forget_times
from zetadp.account.budget import Cap
from zetadp.account.declaration import Series
from zetadp.base.tables import read_table
from zetadp.base.workflow import run
from zetadp.hospitals.launcher import LocalFederation
from zetadp.mri.convert import write_site_folder
from zetadp.nn.backbone import load_backbone
from zetadp.training.partition import read_partition, training_data
from zetadp.training.plan import Plan
from zetadp.training.pretrained import with_public
from zetadp.training.progress import announced_tick, seconds_to_tick
from zetadp.training.promise import make_plan
from zetadp.training.settings import Patience

UNLIMITED = 1_000_000


def main(
    *,
    dataset: Path,
    table: Path,
    partition: Path,
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
    federation: dict[str, Any],
    device: str,
    ledger_file: str,
    checkpoint: str,
    folder: str,
) -> None:
    """Give every site a folder of its own patients, start server and nodes, train, stop everything."""
    started = time.monotonic()
    claim(Path(ledger_file).parent, table)
    public = backbone[0].resolve() if backbone else None
    declared = make_plan(Plan.from_json(plan), noise)
    declared = with_public(declared, load_backbone(public) if public else None)
    tick = announced_tick(declared, finish_seconds)
    work = Path(folder).resolve()
    names = [node.name for node in declared.nodes]
    # The checkpoint, the ledgers and the nodes' stored messages, which an interrupted run needs, are elsewhere.
    shutil.rmtree(work, ignore_errors=True)
    rows = read_partition(partition).merge(read_table(table)[["record", "file"]], on="record")
    watched = rows[rows["role"] == "validation"]
    write_site_folder(work / "images/server", dataset.parent, watched, "test")
    patience = dict(federation)
    answer_seconds = patience.pop("answer_seconds")
    federated = LocalFederation(work, declared, idle_seconds=max(0.25, 0.1 * len(names)))
    server = federated.server(
        model=model.resolve(),
        history=history.resolve(),
        ledger=ledger.resolve(),
        ledger_file=Path(ledger_file).resolve(),
        checkpoint=Path(checkpoint).resolve(),
        watched=work / "images/server" if len(watched) else None,
        watched_patients=watched["patient"].nunique(),
        backbone=public,
        evaluate_every=performance["evaluate_every"],
        checkpoint_seconds=performance["checkpoint_seconds"],
        threads=1,
        patience=Patience(**patience),
        once=declared.protects_people,
        cap=None if cap is None else Cap(**cap),
        series=None if series is None else Series(**series),
        data=training_data(table, partition, Path(ledger_file)),
    )
    # The ledgers of the nodes must remain when results are deleted, like those of the cohort.
    states = Path(ledger_file).resolve().with_suffix(".hospitals")
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
                chunk=performance["chunk"],
                threads=1,
                simulation=declared.simulated,
            )
            federated.start_node(hospital)
        federated.run(server)
    for name in names:
        for part in ("messages", "images"):
            shutil.rmtree(states / name / part, ignore_errors=True)
    if tick:
        time.sleep(seconds_to_tick(started, tick))
        forget_times(Path(ledger_file))
    declared.write(agreed)
    for path in work.iterdir():
        if path.is_dir() and path.name != "logs":
            shutil.rmtree(path)
        elif path.name != "plan.json" and path.is_file():
            path.unlink()


if __name__ == "__main__":
    run(main)
