"""Tables of text, from users and for readers, and folders of users, whose hidden files are ignored.

A patient may be called ``NA``, ``007`` or ``1e5``. A reader that guesses types changes such names or loses them, so
every value stays the text that the file holds.
"""

from __future__ import annotations

import csv
import fnmatch
import hashlib
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path, PurePath

import pandas as pd

from zetadp.base.names import check_distinct
from zetadp.base.storage import written_whole
from zetadp.base.validation import UserError, counted, refuse, shown

logger = logging.getLogger(__name__)

MISSING = "–"
"""A missing value in a `Sheet`."""
SEPARATORS = "\t;,"
"""Characters that may separate columns. The first of them that the header contains does."""
HIDDEN_FOLDERS = ("__MACOSX", "@eaDir")
"""Folders that archives and network drives add to those of a user."""


def read_table(path: Path, columns: Sequence[str] = ()) -> pd.DataFrame:
    """Read a table whose values are all text.

    Parameters
    ----------
    path
        UTF-8 file with a header. Columns are separated by tabs, semicolons or commas.
    columns
        Columns that the table must have.

    Raises
    ------
    UserError
        If the file cannot be read, a column is missing or occurs twice, or a row has more or fewer values than the
        header.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        separator = next((mark for mark in SEPARATORS if mark in text.partition("\n")[0]), ",")
        names, *rows = [row for row in csv.reader(StringIO(text), delimiter=separator, strict=True) if row] or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"Cannot read {path} as a table in UTF-8: {error}.") from error
    missing = [name for name in columns if name not in names]
    if missing:
        raise UserError(
            f"Expected the columns {', '.join(columns)} in {path}, found {', '.join(names) or 'an empty file'}. "
            "Separate columns by tabs, semicolons or commas."
        )
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UserError(f"Expected each column of {path} once, found {twice[0]!r} twice.")
    for row in rows:
        if len(row) != len(names):
            raise UserError(
                f"Expected {len(names)} values in each row of {path}, found {len(row)} in {', '.join(row)}."
            )
    return pd.DataFrame(rows, columns=names, dtype=str)


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Write a table without row names, completely or not at all. A ``.tsv`` file has tabs, others have commas."""
    with written_whole(path) as temporary:
        table.to_csv(temporary, index=False, sep="\t" if path.suffix == ".tsv" else ",", lineterminator="\n")


def visible(folder: Path, pattern: str = "*") -> list[Path]:
    """Return the files and folders in a folder whose paths match a pattern, in capitals or not, sorted by path.

    Parameters
    ----------
    folder
        The folder. One that does not exist has no files.
    pattern
        A pattern for names in the folder, or several with ``/`` between them, for its subfolders too. ``**`` stands
        for any number of subfolders.

    Returns
    -------
    Paths below the folder. Hidden files, hidden folders and what is in them are left out.
    """
    paths = [folder]
    for part in pattern.split("/"):
        if part == "**":
            below = (path for parent in paths for path in (parent, *parent.rglob("*")) if path.is_dir())
            paths = [path for path in below if not is_hidden(path.relative_to(folder))]
            continue
        matches = re.compile(fnmatch.translate(part), re.IGNORECASE).match
        inside = (path for parent in paths if parent.is_dir() for path in parent.iterdir())
        paths = [path for path in inside if matches(path.name) and not is_hidden(PurePath(path.name))]
    return sorted(paths)


def fingerprint(files: Iterable[Path]) -> str:
    """Return a short digest of the names, lengths and times of files, which changes when one is replaced or missing.

    A file that replaces another may be older than the results of the first, so comparing times is not enough.
    """
    digest = hashlib.sha256()
    for file in files:
        about = file.stat() if file.exists() else None
        digest.update(f"{file} {about and (about.st_size, about.st_mtime_ns)}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


def is_hidden(path: PurePath) -> bool:
    """Return whether a path, relative to the user's folder, leads to or through a hidden file or folder."""
    return any(part.startswith(".") or part in HIDDEN_FOLDERS for part in path.parts)


@dataclass(frozen=True)
class Sheet:
    """A table for readers, whose cells are text; `zetadp.report.rendering` prints it.

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
        """Escape characters that a page would not print, such as a line break in a name, which looks like two rows."""
        texts = {
            "title": shown(self.title),
            "columns": tuple(map(shown, self.columns)),
            "rows": tuple(tuple(map(shown, row)) for row in self.rows),
            "notes": tuple(map(shown, self.notes)),
        }
        for key, value in texts.items():
            object.__setattr__(self, key, value)


def numbers_of(table: pd.DataFrame, column: str) -> str:
    """Return the different numbers of a column as text; empty where the table has no such column or no number."""
    return ", ".join(f"{number:g}" for number in table[column].dropna().unique()) if column in table else ""


def write_cohort(path: Path, rows: pd.DataFrame, declared: Mapping[str, int], source: str) -> None:
    """Write the table of a cohort, one row per record, after comparing it with what the user declared.

    Parameters
    ----------
    path
        The file.
    rows
        Patient, record, part (``train`` or ``test``), scanner and sha256 of each record, and perhaps more.
    declared
        Declared number of patients in each part. The guarantee uses these numbers as public constants.
    source
        Where the records come from, for messages.

    Raises
    ------
    UserError
        If a record's name occurs twice, the names of two patients look the same, a patient is in both parts, or a
        number of patients differs from the declared number.
    """
    check_distinct(rows["patient"], source)
    twice = rows["record"][rows["record"].duplicated()]
    if len(twice):
        raise UserError(f"Expected each record of {source} to have its own name, found {twice.iloc[0]} twice.")
    refuse(wrong_parts(rows, declared, source), f"in {source}")
    write_table(path, rows)
    logger.info("%d records of %d patients", len(rows), rows["patient"].nunique())


def shared_contents(names: Iterable[str], contents: Iterable[str]) -> list[list[str]]:
    """Return the groups of names whose contents are the same. Every index of records is checked with this.

    Two records with the same content are one recording under two names. If these are two persons, one is in the data
    twice, possibly in training and in test data, and the guarantee for a person is wrong.

    Parameters
    ----------
    names
        Records, files or recordings.
    contents
        Hash of the content of each, before anything that depends on its name is done to it.
    """
    groups: dict[str, list[str]] = {}
    for name, content in zip(names, contents, strict=True):
        groups.setdefault(content, []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def check_contents(rows: pd.DataFrame, contents: Iterable[str], source: str) -> None:
    """Refuse one recording of several persons, and log that one person has a recording more than once.

    Parameters
    ----------
    rows
        Patient and record of each recording.
    contents
        As in `shared_contents`.
    source
        Where the recordings come from, for messages.

    Raises
    ------
    UserError
        One message that names the recordings that several persons have.
    """
    numbers = [str(number) for number in range(len(rows))]
    groups = [rows.iloc[list(map(int, group))] for group in shared_contents(numbers, contents)]
    problems = [
        "Expected different recordings of different persons, found the same content in "
        f"{' and '.join(shown(f'{row.record} of {row.patient}') for row in group.itertuples())}. Keep one."
        for group in groups
        if group["patient"].nunique() > 1
    ]
    refuse(problems, f"in {source}")
    if groups:
        first = " and ".join(map(shown, groups[0]["record"]))
        logger.warning(
            "One person has the same recording more than once in %s: %s, such as %s",
            *(source, counted(len(groups), "time"), first),
        )


def wrong_parts(rows: pd.DataFrame, declared: Mapping[str, int], source: str) -> list[str]:
    """Compare the patients of each part with the declared number and with the other part, as `write_cohort` does."""
    members = {part: rows[rows["part"] == part].groupby("patient")["record"].agg(", ".join) for part in declared}
    problems = [
        f"Expected {counted(number, 'patient')} in the part {part} as declared, found "
        f"{len(members[part])} in {source}. The guarantee uses the declared number as a public constant. Correct the "
        "folder, or the list of which records are of one patient, or declare the number that is there. In a "
        "federation, the plan declares it for each hospital."
        for part, number in declared.items()
        if len(members[part]) != number
    ]
    parts = rows.groupby("patient")["part"].nunique()
    return problems + [
        f"Expected patient {patient} in one part, found records in both: "
        f"{'; '.join(f'{part} {records[patient]}' for part, records in members.items() if patient in records)}. Move "
        "all records of a patient to one part."
        for patient in parts.index[parts > 1]
    ]
