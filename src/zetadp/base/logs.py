"""Log lines for people and for programs, in which texts from outside are escaped, and the pace of progress lines."""

from __future__ import annotations

import fcntl
import json
import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from zetadp.base.validation import shown_lines

PROGRESS = "zetadp.progress"
"""Name of the logger for the progress of long stages; training runs have a logger below it."""
PACE_SECONDS = 20.0
"""Seconds between two lines of progress."""
NOTICE = (logging.INFO + logging.WARNING) // 2
"""Level of lines that a user must see, such as a privacy cost, although nothing is wrong."""
logging.addLevelName(NOTICE, "NOTICE")


class Pace:
    """Decides when a line of progress is due: the first immediately, every later one some seconds after the last.

    Parameters
    ----------
    seconds
        Seconds between two lines.
    shared
        File with the time of the last line, for processes that write to one terminal.
    """

    def __init__(self, seconds: float = PACE_SECONDS, shared: Path | None = None) -> None:
        self.seconds, self.shared, self.last = seconds, shared, -math.inf

    def due(self, *, anyway: bool = False) -> bool:
        """Return whether a line is due, and count it as written if it is; ``anyway`` counts it in any case."""
        # Without the file, as on another machine, each process has its own pace.
        with suppress(OSError):
            if self.shared is not None:
                return self._due_together(self.shared, anyway)
        return self._due(anyway)

    def _due_together(self, shared: Path, anyway: bool) -> bool:
        with shared.open("a+", encoding="ascii") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            with suppress(ValueError):
                self.last = float(file.read())
            due = self._due(anyway)
            if due:
                file.truncate(0)
                file.write(repr(self.last))
            return due

    def _due(self, anyway: bool) -> bool:
        now = time.time()  # which processes share
        due = anyway or not 0 <= now - self.last < self.seconds  # a clock may be set back
        if due:
            self.last = now
        return due


class Paced(logging.Filter):
    """Lets warnings, errors and notices pass, and other lines only when a pace has one due.

    Parameters
    ----------
    pace
        The pace.
    """

    def __init__(self, pace: Pace) -> None:
        super().__init__()
        self.pace = pace

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line passes."""
        return record.levelno >= NOTICE or self.pace.due()


@contextmanager
def only_errors(*names: str) -> Iterator[None]:
    """Let only errors into the logs of these names while the block runs."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def time_left(seconds: float) -> str:
    """Return a remaining time in words: in minutes from 2 minutes, in hours from 2 hours."""
    for length, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def is_milestone(done: int, total: int, parts: int = 20) -> bool:
    """Return whether a step completes one of at most ``parts`` equal parts of all steps, as the last step does."""
    return parts * done // total > parts * (done - 1) // total


class PlainLines(logging.Formatter):
    """Lines of text. Control characters, which a terminal would obey, are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, and below it the lines of its traceback."""
        return shown_lines(super().format(record))


class JsonLines(logging.Formatter):
    """One JSON object per record: ``time`` (UTC), ``level``, ``site``, ``message``, and ``traceback`` if there is one.

    Parameters
    ----------
    site
        Name of the site that writes the log.
    """

    def __init__(self, site: str) -> None:
        super().__init__()
        self.site = site

    def format(self, record: logging.LogRecord) -> str:
        """Return the JSON of a record in one line."""
        content = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "site": self.site,
            "message": record.getMessage(),
        }
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return json.dumps(content)
