"""The rehearsal of an experiment: everything that follows a training, tried before anything is spent.

A training on real patients is paid for once. If its evaluation, a page or a disk then fails, its epsilon is spent all
the same. So before the first release, everything after the training is tried with the starting weights and the
ledger that the training would leave. The files are in a temporary folder, and no ledger or register of the cohort
is written.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from zetadp.account.book import Book
from zetadp.account.ledger import Ledger
from zetadp.account.risk import Risk
from zetadp.account.statement import total_statement
from zetadp.base.logs import NOTICE
from zetadp.base.runfolder import RunFolder
from zetadp.base.storage import check_writable, write_text
from zetadp.base.tensors import pick_device
from zetadp.base.validation import UserError
from zetadp.report import figures, rendering, tables
from zetadp.report.accuracyfigure import accuracy_against_epsilon, compare_networks
from zetadp.report.evaluation import RunInputs, evaluate_run
from zetadp.report.figurestyle import save_svg
from zetadp.report.notes import notes
from zetadp.report.provenance import Cohort
from zetadp.report.riskpage import Evidence, write_risk
from zetadp.training.assembly import Assembly
from zetadp.training.checkpoint import RunFiles
from zetadp.training.holders import KEPT_BYTES
from zetadp.training.loop import Trained, no_history
from zetadp.training.partition import read_partition, training_data
from zetadp.training.plan import Plan
from zetadp.training.pretrained import starting_weights, with_backbone
from zetadp.training.promise import Noise, make_plan
from zetadp.training.results import write_results
from zetadp.training.task import pipeline_task_of

logger = logging.getLogger(__name__)

LEDGER_BYTES = 2000
"""Bytes of a ledger for each round and node, at most."""
ROOM_BYTES = 2**26
"""Bytes that pages, tables and figures of an experiment need."""


def rehearse(
    runs: Iterable[Mapping[str, Any]],
    partition: Path,
    table: Path,
    noise: Sequence[Path],
    *,
    results: Path,
    ledgers: Path,
    device: str,
    cohort: Cohort,
) -> None:
    """Try everything that follows the trainings of an experiment, without training.

    Parameters
    ----------
    runs
        For each run its ``plan`` as JSON, and the paths of its ``images`` and of its ``backbone``, each in a list.
    partition, table, noise
        The table of who is where, the cohort's index, and the files of `zetadp.training.promise.write_noise`.
    results, ledgers
        Folder of the results, and of the cohort's ledgers, which are read and not written.
    device, cohort
        As for `zetadp.report.evaluation.evaluate_run`.

    Raises
    ------
    UserError
        If anything fails. Nothing was released then.
    """
    with _before_release(), tempfile.TemporaryDirectory(prefix="zetadp-rehearsal-") as temporary:
        Book.read(ledgers)  # or an error, if something that was recorded is missing
        where = pick_device(device)
        folders: list[Path] = []
        room = ROOM_BYTES
        for run in runs:
            plan = make_plan(Plan.from_json(run["plan"]), noise)
            images, backbone = ([Path(file) for file in run[name]] for name in ("images", "backbone"))
            folder = Path(temporary) / plan.run.folder
            folder.mkdir(parents=True)
            ledger = Path(temporary) / f"ledgers/{plan.label}.jsonl"
            files, inputs = RunFolder(folder), RunInputs(images, partition, table, backbone)
            room += _write_untrained(plan, inputs, ledger, files, where)
            _warn_of_change(files.plan, results)
            evaluate_run(files, inputs, account=ledger, device=device, cohort=cohort)
            write_risk(Risk.of(ledger), folder, str(ledger), Evidence())
            folders.append(folder)
        _show(folders, ledger.parent, cohort)
        for folder in (results, ledgers):
            check_writable(folder / "rehearsal")
            if (free := shutil.disk_usage(folder).free) < room:
                raise UserError(
                    f"Expected {room / 2**20:.0f} MiB of free space for {folder}, found {free / 2**20:.0f} MiB. Free "
                    "space, or choose another disk."
                )


def _warn_of_change(agreed: Path, results: Path) -> None:
    """Say that a finished run was trained with other settings.

    Snakemake does not look at a training in the call in which its rehearsal runs again, so the next call would be the
    first to say so.
    """
    plan = Plan.read(agreed)
    trained = RunFolder(results / plan.run.folder)
    if trained.plan.exists() and Plan.read(trained.plan).digest != plan.digest:
        logger.warning(
            "%s was trained with other settings than the configuration has now. This call leaves it as it is; the next "
            "one asks whether to train it again, which would cost epsilon once more.",
            trained.path,
        )


@contextmanager
def _before_release() -> Iterator[None]:
    """Add to a user's error that nothing was spent."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{error} This was tried before the training, so nothing was released.") from error


def _write_untrained(draft: Plan, inputs: RunInputs, ledger: Path, files: RunFolder, device: torch.device) -> int:
    """Write what a training would leave, with the starting weights; return the bytes that the training needs on a disk.

    A ledger counts every attempt to its declared end, so one round stands for all.
    """
    task = pipeline_task_of(draft.task)
    plan, public = with_backbone(draft, inputs.backbone, task, device)
    items = task.load(inputs.images, read_partition(inputs.partition), "test", device)
    start = starting_weights(plan.network, public)
    parts = Assembly.of(plan, items, start)
    if plan.target.private and parts.solved is None:
        logger.log(NOTICE, "%s: %s", plan.run, Noise.of(plan, parts.phase.dimension))
    with Ledger(ledger) as opened:
        opened.start(replace(parts.declaration(), data=training_data(inputs.table, inputs.partition, ledger)))
        opened.record([plan.event(node.name, 0) for node in plan.nodes])
        head = opened.head
    plan.write(files.plan)
    history = no_history(task)
    history.loc[0] = [plan.training.rounds, *[float("nan")] * (history.shape[1] - 1)]
    trained = Trained(parts.phase.model, history.astype({"round": int}), head, None)
    run = RunFiles(ledger, ledger.with_suffix(".checkpoint"))
    write_results(files, trained, plan, run, inputs=items.inputs.shape[-1], backbone=public)
    releases = plan.tries * len(plan.nodes)
    messages = min(KEPT_BYTES, 8 * releases * parts.phase.message) if plan.protects_people else 0
    return 3 * files.model.stat().st_size + releases * LEDGER_BYTES + 2 * messages  # the checkpoint is a model as well


def _show(folders: Sequence[Path], ledgers: Path, cohort: Cohort) -> None:
    """Write the total, the table and the figures of the runs."""
    folder = folders[0].parents[4]
    total = total_statement(Book.read(ledgers).runs())
    total.write(folder / "total.json", folder / "total.txt")
    runs = tables.collect(folders)
    table, below = tables.table1(runs, cohort), notes(runs, cohort, total)
    write_text(folder / "table.txt", rendering.to_text(rendering.accuracy_sheet(table, below)))
    write_text(folder / "nodes.csv", rendering.to_csv(tables.per_node(runs), below))
    chance = tables.chance_of(runs)
    save_svg(accuracy_against_epsilon(table, cohort, chance=chance), folder / "accuracy.svg")
    save_svg(compare_networks(table, cohort, chance=chance), folder / "networks.svg")
    save_svg(figures.training_curves(tables.histories(runs), cohort, chance=chance), folder / "curves.svg")
    if runs["confusion"].notna().all():
        save_svg(figures.confusion_matrices(runs, cohort), folder / "confusion.svg")
