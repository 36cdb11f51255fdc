"""Silence for logs that no reader needs: warnings about what is intended, and lines by the thousand."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def only_errors(name: str) -> Iterator[None]:
    """Let only errors into the log called ``name`` while the block runs."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
