"""Logs that are not for the reader of what runs: warnings that are meant to be, and lines by the thousand."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def only_errors(name: str) -> Iterator[None]:
    """Keep all but errors out of the log called ``name``, as long as the block runs."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
