"""Audits train hundreds of times: what trainings log is not for the reader of an audit."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_trainings() -> Iterator[None]:
    """Keep the log of trainings out of the log of the audit: thousands of lines, and warnings that are meant to be."""
    trainings = logging.getLogger("zetadp.core")
    level = trainings.level
    trainings.setLevel(logging.ERROR)
    try:
        yield
    finally:
        trainings.setLevel(level)
