"""Which check fails on which mutant: minutes of work, printed as docs/mutants/matrix.csv.

Run ``PYTHONPATH=tests python -m mutants.matrix > docs/mutants/matrix.csv`` in the root of the repository.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from pathlib import Path

from mutants import (
    mutants_of_contributions,
    mutants_of_directions,
    mutants_of_hospitals,
    mutants_of_kernels,
    mutants_of_noise,
    mutants_of_records,
    mutants_of_rows,
    mutants_of_sampling,
)
from mutants.installing import CHECKS, MUTANTS, Check, Mutant, installed

MODULES = (
    mutants_of_noise,
    mutants_of_sampling,
    mutants_of_contributions,
    mutants_of_kernels,
    mutants_of_records,
    mutants_of_hospitals,
    mutants_of_rows,
    mutants_of_directions,
)
KILLER, FAILS, PASSES = "K", "x", "·"
UNREPEATABLE = frozenset(name for name in CHECKS if "exact" in name) | {
    "check_a_hospital_answers_a_round_once",
    "check_every_release_stays_counted",
    "check_the_statement_is_that_of_all_rounds_seen",
}
"""Checks with noise from the operating system: whether they fail on others' mutants can be a matter of luck."""


def fails(check: Check, mutation: Mutant, folder: Path) -> bool:
    """Tell whether a check fails on a mutant, or cannot be run on it."""
    with installed(mutation):
        try:
            check.run(folder)
        except Exception:  # noqa: BLE001 a mutant may break the code that a check drives
            return True
    return False


def numbers() -> dict[str, int]:
    """Return the number by which the table calls each check."""
    return {name: number for number, name in enumerate(sorted(CHECKS), start=1)}


def row(mutation: Mutant) -> list[str]:
    """Return one mutant's line of the table: its name, and what each check makes of it."""
    cells = []
    for name in sorted(CHECKS):
        with tempfile.TemporaryDirectory() as folder:
            failed = fails(CHECKS[name], mutation, Path(folder))
        cells.append(PASSES if not failed else KILLER if name == mutation.killer else FAILS)
    return [mutation.name, *cells]


def main() -> None:
    """Print the table."""
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(["mutant", *numbers().values()])
    for mutation in MUTANTS.values():
        table.writerow(row(mutation))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
