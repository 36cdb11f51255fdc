"""Log lines for people and for machines, in which every text of another party is escaped."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from zetadp.base.validation import shown_lines


class PlainLines(logging.Formatter):
    """Lines of text. Characters that a terminal would obey are escaped, whoever wrote them."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, and below it the lines of its traceback."""
        return shown_lines(super().format(record))


class JsonLines(logging.Formatter):
    """One JSON object per record: ``time`` (UTC), ``level``, ``site``, ``message``, and ``traceback`` if there is one.

    Parameters
    ----------
    site
        Whose log it is.
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
