"""Snakemake's output on the terminal: one line of progress for all steps of the workflow, and every important line.

Snakemake announces every job in about ten lines. They remain in its own log, in .snakemake/log.
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
ROUTINE = (
    *("Assuming unrestricted shared", "Building DAG of", "Conda environments: ignored", "Group jobs: inactive"),
    *("Select jobs to execute", "Using shell: ", "Workflow defines that rule "),
)
"""Beginnings of lines that are the same in every call and need no action."""
EVERYTHING = "all"
"""The rule that requests all results. For any other target, the lines begin with the name of its rule."""
TIMED_SHARE = 0.5
"""The remaining time is estimated once this share of the waiting steps have rules with a measured time."""
FINISHED_SHARE = 0.2
"""The remaining time is also estimated once this share of all steps has finished."""


def summarise_jobs(settings: Any) -> None:  # noqa: ANN401  (injected by Snakemake)
    """Let Snakemake write one line on all jobs, at most one in `PACE_SECONDS`, in place of several lines on each job.

    Warnings, errors and the Snakefile's own log lines stay as they are. Nothing changes if the user asks Snakemake for
    more output (``--verbose``, ``--printshellcmds``, ``--debug-dag``) or for another logger.

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
    """The steps of a workflow, and the time that the remaining ones may take.

    A step is expected to take the mean time of its rule, or of all rules if no step of its rule has finished. The
    number of steps that run at a time is expected to stay as it was so far.

    Parameters
    ----------
    counts
        Number of steps of each rule.
    """

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.waiting = Counter(counts)
        self.running: dict[int, tuple[str, float]] = {}
        self.seconds: dict[str, list[float]] = {}
        self.started: float | None = None

    def start(self, job: int, rule: str, now: float) -> None:
        """Note that a job started."""
        self.started = now if self.started is None else self.started
        self.waiting[rule] -= job not in self.running
        self.running[job] = rule, now

    def finish(self, job: int, now: float) -> None:
        """Note that a job ended."""
        if job in self.running:
            rule, started = self.running.pop(job)
            self.seconds.setdefault(rule, []).append(now - started)

    def left(self, now: float) -> float | None:
        """Return the remaining seconds; None while too few steps were timed (`TIMED_SHARE`, `FINISHED_SHARE`)."""
        ended = [length for lengths in self.seconds.values() for length in lengths]
        waiting = {rule: number for rule, number in self.waiting.items() if number > 0}
        timed = sum(number for rule, number in waiting.items() if rule in self.seconds)
        number = len(ended) + len(self.running) + sum(waiting.values())
        too_few = timed < TIMED_SHARE * sum(waiting.values()) and len(ended) < FINISHED_SHARE * number
        if self.started is None or too_few or not ended:
            return None
        usual = sum(ended) / len(ended)
        typical = {rule: sum(lengths) / len(lengths) for rule, lengths in self.seconds.items()}
        running = [(typical.get(rule, usual), now - start) for rule, start in self.running.values()]
        rest = [max(length - spent, 0) for length, spent in running]
        work = sum(rest) + sum(number * typical.get(rule, usual) for rule, number in waiting.items())
        busy = sum(ended) + sum(spent for _, spent in running)
        at_once = max(busy / max(now - self.started, 1e-9), 1)
        return max(work / at_once, *rest, 0)

    def names(self) -> str:
        """Return the running rules, those with most jobs first."""
        rules = Counter(rule for rule, _ in self.running.values()).most_common()
        texts = [f"{number} {rule}" if number > 1 else rule for rule, number in rules[:3]]
        return ", ".join([*texts, *(["..."] if len(rules) > 3 else [])])


class _Summary(logging.Filter):
    """Drops the events on single jobs, and writes a line on all steps when one is due."""

    def __init__(self, handler: logging.Handler, *, silent: bool) -> None:
        super().__init__()
        self.handler, self.silent = handler, silent
        self.steps, self.target = Steps({}), EVERYTHING
        self.pace, self.of_all_jobs = Pace(), Pace(shared=PACE_FILE)

    def filter(self, record: logging.LogRecord) -> bool:
        """Count the event of a record, and return whether the record passes."""
        event = str(getattr(record, "event", None))
        if event == "job_error":
            self.steps.running.pop(vars(record).get("jobid", -1), None)
        if event not in SILENT:
            return record.levelno >= logging.ERROR or not str(record.msg).startswith(ROUTINE)
        try:
            self._count(event, vars(record), time.monotonic())
        except KeyError:  # another version of Snakemake has other names for its fields, and writes its own line
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
        estimate = f", about {time_left(left)} left" if left is not None and done < total else ""
        return f"{done} of {total} steps{estimate}{f' (running: {names})' if names else ''}"

    def _write(self, text: str) -> None:
        """Write a line, and delay the next line of the jobs."""
        if self.silent:
            return
        self.of_all_jobs.due(anyway=True)
        target = "" if self.target == EVERYTHING else f"{self.target}: "
        line = f"{time.strftime('%H:%M:%S')} {target}{text}"
        self.handler.emit(logging.makeLogRecord({"msg": line, "levelno": logging.INFO, "levelname": "INFO"}))
