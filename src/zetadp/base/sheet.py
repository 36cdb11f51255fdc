"""A table for readers: cells as text, with the notes that belong below. `zetadp.report.rendering` prints it."""

from __future__ import annotations

from dataclasses import dataclass

from zetadp.base.validation import shown

MISSING = "–"


@dataclass(frozen=True)
class Sheet:
    """A table whose cells are text.

    Attributes
    ----------
    title
        One line above the table.
    columns
        Heading of each column.
    rows
        Cells; a missing value is an en dash.
    notes
        Sentences below the table.
    names
        Number of leading columns that name the row. They are aligned left, the others right.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    names: int = 1

    def __post_init__(self) -> None:
        """Show what a page would not print, such as a line break in a name, so that no name looks like two rows."""
        texts = {
            "title": shown(self.title),
            "columns": tuple(map(shown, self.columns)),
            "rows": tuple(tuple(map(shown, row)) for row in self.rows),
            "notes": tuple(map(shown, self.notes)),
        }
        for key, value in texts.items():
            object.__setattr__(self, key, value)
