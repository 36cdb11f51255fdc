"""What surrounds the training of a run of the pipeline, in this process or in those of a federation."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from zetadp.account.book import claim, forget_times
from zetadp.account.budget import Cap, check_unit
from zetadp.account.declaration import Series
from zetadp.base.runfolder import RunFolder
from zetadp.training.checkpoint import RunFiles
from zetadp.training.partition import training_data
from zetadp.training.plan import Plan
from zetadp.training.progress import announced_tick, seconds_to_tick
from zetadp.training.promise import make_plan


@dataclass(frozen=True)
class RunPaths:
    """Where a run of the pipeline is recorded and written.

    Attributes
    ----------
    folder
        Folder of the finished run.
    ledger, checkpoint
        Its live ledger, and the checkpoint of an interrupted run.
    processes
        Folder of the processes of a federation, where the run is one.
    """

    folder: Path
    ledger: Path
    checkpoint: Path
    processes: Path


@dataclass(frozen=True)
class RunLimits:
    """What all runs of an experiment promise together; changes of it make no finished run run again.

    Attributes
    ----------
    cap
        The most that all runs on the same patients may cost; None sets no limit.
    series
        The runs that were declared together; None if there are none.
    finish_seconds
        Seconds at whose multiples a run ends; zero for runs that end at any time.
    """

    cap: Cap | None = None
    series: Series | None = None
    finish_seconds: int = 0


@dataclass(frozen=True)
class PipelineRun:
    """A run of the pipeline from its claim on the cohort's account to its end, at which no time shows who was drawn.

    Attributes
    ----------
    plan
        The plan, without the hashes of public files.
    folder
        Where the finished run is written.
    files
        Its live ledger, with the limits on it, and its checkpoint.
    tick
        Seconds at whose multiples it ends; zero for a run that ends at any time.
    started
        When it began, as `time.monotonic` returned it.
    """

    plan: Plan
    folder: RunFolder
    files: RunFiles
    tick: float
    started: float

    @classmethod
    def begin(
        cls,
        draft: Plan,
        noise: Sequence[Path],
        people: tuple[Path, Path],
        paths: RunPaths,
        limits: RunLimits,
    ) -> Self:
        """Name the run's people in their account, make its plan, and log when it may end.

        Parameters
        ----------
        draft, noise
            The plan without its noise, and the files of `zetadp.training.promise.write_noise`.
        people
            The cohort's index, and the table of who is where.
        paths, limits
            Where the run is recorded and written, and what it promises together with others.

        Raises
        ------
        UserError
            If the account has lost lines, or the plan cannot be calibrated. If earlier runs on the same patients
            protect another unit: no total could be computed afterwards.
        """
        started, (table, partition) = time.monotonic(), people
        claim(paths.ledger.parent, table)
        plan = make_plan(draft, noise)
        check_unit(paths.ledger, plan.declaration())
        files = RunFiles(
            paths.ledger,
            paths.checkpoint,
            once=plan.protects_people,
            cap=limits.cap,
            series=limits.series,
            data=training_data(table, partition, paths.ledger),
        )
        return cls(plan, RunFolder(paths.folder), files, announced_tick(plan, limits.finish_seconds), started)

    def end(self, plan: Plan) -> None:
        """Wait until the run may end, and write its plan, with the hashes of public files."""
        if self.tick:
            time.sleep(seconds_to_tick(self.started, self.tick))
            forget_times(self.files.ledger)
        plan.write(self.folder.plan)
