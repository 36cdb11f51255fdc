"""The patient of each scan of a folder, by BIDS or the user's rule, and the part of each patient."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from zetadp.base.names import check_distinct
from zetadp.base.tables import read_table
from zetadp.base.validation import UserError
from zetadp.mri.index import read_patient_table, summarise_names
from zetadp.mri.sources import Scan

TRAIN, TEST = "imagesTr", "imagesTs"
"""Folders of the two parts."""


def with_patients(scans: list[Scan], source: Path, table: Path | None, pattern: str | None) -> list[Scan]:
    """Return the scans of a folder with their patients, as far as a table, a rule or BIDS names them.

    Parameters
    ----------
    scans
        All scans of the folder.
    source
        The folder.
    table, pattern
        The user's table or rule (`zetadp.mri.convert.convert_folder`), or None.

    Raises
    ------
    UserError
        If table or rule do not name the patient of each scan, if names differ only in case or accents, if BIDS names
        the patients of some scans only, or if one subject of BIDS would be several patients.
    """
    names = [scan.name for scan in scans]
    check_distinct(names, f"{source} (folders)")
    subjects = {scan.name: scan.patient for scan in scans if scan.patient}
    if table is not None and pattern is not None:
        raise UserError(f"--patient-pattern: the table {table} already names the patients. Give only one of them.")
    if table is not None:
        if "part" in read_table(table):
            raise UserError(
                f"--patients: Expected no column part in {table}: --test-fraction says who is a test patient."
            )
        patients = read_patient_table(table, "record", names, str(source))
    elif pattern is not None:
        patients = _apply_rule(names, pattern, subjects)
    elif subjects and len(subjects) < len(scans):
        unassigned = summarise_names(
            [scan.name for scan in scans if not scan.patient], "records of which it does not say this"
        )
        raise UserError(
            f"Expected to know of each record of {source} whose it is, because BIDS says it of {len(subjects)}, found "
            f"{unassigned}. Say it with --patients TABLE or --patient-pattern, or convert the folders one by one."
        )
    else:
        patients = subjects
        check_distinct(subjects.values(), str(source))
        folders = {scan.patient: {other.subject for other in scans if other.patient == scan.patient} for scan in scans}
        shared = [f"{name} in {' and '.join(sorted(parents))}" for name, parents in folders.items() if len(parents) > 1]
        if shared:
            raise UserError(
                f"Expected each subject of BIDS in one folder, found {'; '.join(shared)}, which may be one person or "
                "several. Say who is who with --patients TABLE."
            )
    of_subjects: dict[str, set[str]] = {}
    for scan in scans:
        of_subjects.setdefault(scan.subject, set()).add(patients.get(scan.name, ""))
    split_subjects = [subject for subject, several in of_subjects.items() if subject and len(several) > 1]
    if split_subjects:
        raise UserError(
            f"Expected one patient for each subject of BIDS, found several for {split_subjects[0]}: "
            f"{', '.join(sorted(of_subjects[split_subjects[0]]))}. Correct the table or the rule."
        )
    return [replace(scan, patient=patients.get(scan.name, "")) for scan in scans]


def _apply_rule(names: list[str], pattern: str, subjects: Mapping[str, str]) -> dict[str, str]:
    """Return the patient that a rule extracts from each name, or raise a `UserError` that names the rule."""
    expected = "--patient-pattern: expected a regular expression whose first group is the patient"
    try:
        rule = re.compile(pattern)
    except re.error as error:
        raise UserError(f"{expected}, found {pattern!r}: {error}.") from error
    if not rule.groups:
        raise UserError(f"{expected}, found {pattern!r} without a group in parentheses.")
    matches = {name: rule.fullmatch(name) for name in names}
    wrong = [name for name, match in matches.items() if not (match and match[1]) and name not in subjects]
    if wrong:
        raise UserError(
            f"{expected} of every record, found {summarise_names(wrong, 'that do not match')}. Widen {pattern!r}."
        )
    patients = {name: match[1] if match and match[1] else subjects[name] for name, match in matches.items()}
    check_distinct(patients.values(), "--patient-pattern")
    return patients


@dataclass(frozen=True)
class Division:
    """The rule that divides patients into the two parts.

    Attributes
    ----------
    test_fraction
        Expected share of test patients, in [0, 1]. A patient's part follows from the patient's name alone, so that no
        patient moves when another one joins. With 1, all are test patients, for a server that watches a run across
        hospitals.
    exact
        Whether exactly this share of the patients (rounded to a whole number) becomes test patients. A patient's part
        then depends on who else is in the folder: a patient who joins or leaves can move another one from training to
        test data or back.
    """

    test_fraction: float
    exact: bool = False

    def assign(self, names: Iterable[str]) -> dict[str, str]:
        """Assign each patient to a part, named by its folder.

        A public hash turns a patient's name into a number between 0 and 1. By default, patients with a number below the
        fraction become test patients. If the share is exact, those with the smallest numbers do, as many as it
        requires.

        Examples
        --------
        >>> Division(0.0).assign(["sub-01"]), Division(1.0).assign(["sub-01"])
        ({'sub-01': 'imagesTr'}, {'sub-01': 'imagesTs'})
        >>> [part for part in Division(0.35, exact=True).assign(map(str, range(13))).values()].count("imagesTs")
        5
        """
        numbers = {
            name: int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big") / 2**56
            for name in sorted(set(names))
        }
        if self.exact:
            first = set(sorted(numbers, key=lambda name: numbers[name])[: round(self.test_fraction * len(numbers))])
            return {name: TEST if name in first else TRAIN for name in numbers}
        return {name: TEST if number < self.test_fraction else TRAIN for name, number in numbers.items()}
