"""Independent attacks on several processes, each with one thread."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeVar

import torch

from zetadp.base.workflow import PROGRESS

progress = logging.getLogger(PROGRESS)

Job = TypeVar("Job")
Result = TypeVar("Result")


def spread(
    work: Callable[[Job], Result], jobs: Sequence[Job], processes: int, name: Callable[[Result], str]
) -> list[Result]:
    """Return the result of ``work`` for every job, in the order of the jobs.

    Parameters
    ----------
    work
        A function that other processes can import: a function of a module, or a partial of one.
    jobs
        Arguments of the calls.
    processes
        Number of processes. With one, the jobs run in this process.
    name
        Returns the name of a result for the log.
    """
    if processes == 1:
        return [_told(work(job), number, len(jobs), name) for number, job in enumerate(jobs, start=1)]
    # A server that has imported PyTorch once and runs no thread can be forked safely and quickly.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(processes, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        waiting = [pool.submit(work, job) for job in jobs]
        for number, done in enumerate(as_completed(waiting), start=1):
            _told(done.result(), number, len(jobs), name)
        return [each.result() for each in waiting]


def _told(result: Result, number: int, of: int, name: Callable[[Result], str]) -> Result:
    progress.info("attack %d of %d: %s", number, of, name(result))
    return result
