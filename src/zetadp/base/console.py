"""What Snakemake writes to the terminal: one line on all steps of the workflow at a time, and all that matters in full.

Snakemake announces every job in some ten lines. Its own log, in .snakemake/log, keeps them.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from zetadp.base.logs import Pace, time_left
from zetadp.base.workflow import PACE_FILE

STREAM = "DefaultStreamHandler"
"""Name of the handler with which Snakemake writes to the terminal; a logger plugin takes its place."""
SILENT = {"group_info", "job_finished", "job_info", "job_started", "progress", "resources_info", "run_info", "shellcmd"}
SILENT |= {"workflow_started"}
"""Events of Snakemake (`snakemake_interface_logger_plugins.common.LogEvent`) that announce jobs, or its version."""
STANDING = (
    *("Assuming unrestricted shared", "Building DAG of", "Conda environments: ignored", "Group jobs: inactive"),
    *("Select jobs to execute", "Using shell: ", "Workflow defines that rule "),
)
"""How lines begin that say the same in every call, and ask nothing of a user."""
EVERYTHING = "all"
"""The rule that asks for everything. Lines on steps that make less begin with the last rule."""
KNOWN = 0.5
"""Share of the waiting steps whose rules must have been timed before a time left is an estimate and not a guess."""
ENDED = 0.2
"""Share of all steps that must have ended otherwise."""


def summarise_jobs(settings: Any) -> None:  # noqa: ANN401  (injected by Snakemake)
    """Let Snakemake write one line on all jobs, at most one in `PACE_SECONDS`, in place of several lines on each job.

    Warnings, errors and what the Snakefile logs stay as they are. So does everything where a user asks Snakemake for
    more (``--verbose``, ``--printshellcmds``, ``--debug-dag``) or for another logger.

    Parameters
    ----------
    settings
        ``workflow.output_settings`` of Snakemake.
    """
    if settings.dryrun or settings.verbose or settings.printshellcmds or settings.debug_dag:
        return
    quiet = {str(word).rpartition(".")[2].lower() for word in settings.quiet or ()}
    for handler in logging.getLogger("snakemake.logging").handlers:
        if handler.name == STREAM:
            # It comes first: under --quiet, Snakemake's own filter hides the events that are counted here.
            handler.filters.insert(0, _Summary(handler, silent=bool(quiet & {"progress", "all"})))


class Steps:
    """The steps of a workflow, and how long those that are left may take.

    A step is expected to take the mean time of its rule, or of all rules where none of its rule has ended, and as many
    steps to run at a time as did so far.

    Parameters
    ----------
    counts
        Number of steps of each rule.
    """

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.waiting = Counter(counts)
        self.running: dict[int, tuple[str, float]] = {}
        self.seconds: dict[str, list[float]] = {}
        self.begun: float | None = None

    def start(self, job: int, rule: str, now: float) -> None:
        """Note that a job started."""
        self.begun = now if self.begun is None else self.begun
        self.waiting[rule] -= job not in self.running
        self.running[job] = rule, now

    def finish(self, job: int, now: float) -> None:
        """Note that a job ended."""
        if job in self.running:
            rule, begun = self.running.pop(job)
            self.seconds.setdefault(rule, []).append(now - begun)

    def left(self, now: float) -> float | None:
        """Return the seconds that are left; None while too little has been timed (`KNOWN`, `ENDED`)."""
        ended = [length for lengths in self.seconds.values() for length in lengths]
        waiting = {rule: number for rule, number in self.waiting.items() if number > 0}
        timed = sum(number for rule, number in waiting.items() if rule in self.seconds)
        number = len(ended) + len(self.running) + sum(waiting.values())
        if self.begun is None or (timed < KNOWN * sum(waiting.values()) and len(ended) < ENDED * number) or not ended:
            return None
        usual = sum(ended) / len(ended)
        typical = {rule: sum(lengths) / len(lengths) for rule, lengths in self.seconds.items()}
        begun = [(typical.get(rule, usual), now - start) for rule, start in self.running.values()]
        rest = [max(length - spent, 0) for length, spent in begun]
        work = sum(rest) + sum(number * typical.get(rule, usual) for rule, number in waiting.items())
        busy = sum(ended) + sum(spent for _, spent in begun)
        at_once = max(busy / max(now - self.begun, 1e-9), 1)
        return max(work / at_once, *rest, 0)

    def names(self) -> str:
        """Return the rules that run, those with most jobs first."""
        rules = Counter(rule for rule, _ in self.running.values()).most_common()
        shown = [f"{number} {rule}" if number > 1 else rule for rule, number in rules[:3]]
        return ", ".join([*shown, *(["..."] if len(rules) > 3 else [])])


class _Summary(logging.Filter):
    """Drops the events on single jobs, and writes a line on all steps when one is due."""

    def __init__(self, handler: logging.Handler, *, silent: bool) -> None:
        super().__init__()
        self.handler, self.silent = handler, silent
        self.steps, self.target = Steps({}), EVERYTHING
        self.pace, self.of_all_jobs = Pace(), Pace(shared=PACE_FILE)

    def filter(self, record: logging.LogRecord) -> bool:
        """Count what a record says, and return whether it passes."""
        event = str(getattr(record, "event", None))
        if event == "job_error":
            self.steps.running.pop(vars(record).get("jobid", -1), None)
        if event not in SILENT:
            return record.levelno >= logging.ERROR or not str(record.msg).startswith(STANDING)
        try:
            self._count(event, vars(record), time.monotonic())
        except KeyError:  # another version of Snakemake names its fields otherwise, and writes its own line
            return True
        return False

    def _count(self, event: str, content: Mapping[str, Any], now: float) -> None:
        if event == "run_info":
            counts = {rule: number for rule, number in content["stats"].items() if rule != "total"}
            self.steps, self.target = Steps(counts), EVERYTHING if EVERYTHING in counts else [*counts][-1]
            self._write(f"{sum(counts.values())} steps to do")
        elif event == "job_info":
            self.steps.start(content["jobid"], content["rule_name"], now)
        elif event == "job_finished":
            self.steps.finish(content["job_id"], now)
        elif event == "progress":
            done, total = content["done"], content["total"]
            if self.pace.due(anyway=done == total):
                self._write(self._line(done, total, now))

    def _line(self, done: int, total: int, now: float) -> str:
        left, names = self.steps.left(now), self.steps.names()
        about = f", about {time_left(left)} left" if left is not None and done < total else ""
        return f"{done} of {total} steps{about}{f' (running: {names})' if names else ''}"

    def _write(self, text: str) -> None:
        """Write a line, and let the jobs wait with theirs."""
        if self.silent:
            return
        self.of_all_jobs.due(anyway=True)
        what = "" if self.target == EVERYTHING else f"{self.target}: "
        line = f"{time.strftime('%H:%M:%S')} {what}{text}"
        self.handler.emit(logging.makeLogRecord({"msg": line, "levelno": logging.INFO, "levelname": "INFO"}))
