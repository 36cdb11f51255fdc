"""The configuration of one private training on a cohort that was converted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from zetadp.base.tables import read_table
from zetadp.base.validation import counted
from zetadp.mri.decathlon import PATIENT_KEY, Listing
from zetadp.mri.persons import Division


@dataclass(frozen=True)
class ConvertedCohort:
    """Facts about a converted folder that a configuration declares.

    Attributes
    ----------
    folder
        The folder, as an absolute path.
    name
        Name of the user's folder, with the letters that are allowed in names.
    unit
        Unit of the guarantee: ``patient`` or ``record``.
    patients
        Numbers of training and test patients.
    scans
        Numbers of their scans.
    division
        Rule by which the patients were divided.
    settings
        Settings of the task that differ from the default.
    """

    folder: Path
    name: str
    unit: str
    patients: tuple[int, int]
    scans: tuple[int, int]
    division: Division
    settings: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of_task(cls, task: Listing, source: Path, division: Division, settings: Mapping[str, float]) -> ConvertedCohort:
        """Describe a converted folder; the other parameters are those of `zetadp.mri.convert.convert_folder`."""
        person = {file.as_posix(): file.as_posix() for file in (*task.training, *task.test)}
        key = task.root / PATIENT_KEY
        if key.is_file():
            table = read_table(key, ("file", "patient"))
            person = dict(zip(table["file"], table["patient"], strict=True))
        # Scans of one person are one patient, which the configuration declares and the guarantee protects.
        train, test = (len({person[file.as_posix()] for file in files}) for files in (task.training, task.test))
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", source.resolve().name).strip("-._")[:60]
        return cls(
            task.root.resolve(),
            name or "my-hospital",
            "patient" if key.is_file() else "record",
            (train, test),
            (len(task.training), len(task.test)),
            division,
            settings,
        )

    @property
    def trains(self) -> bool:
        """Whether both parts have patients, as training and testing need."""
        return min(self.patients) > 0

    def described(self) -> str:
        """Return sentences about the numbers of patients, the unit of the guarantee, and the choice of parts."""
        (train, test), (train_scans, test_scans) = self.patients, self.scans
        scans = f", with {train_scans} and {counted(test_scans, 'scan')}" if self.unit == "patient" else ""
        lines = [
            f"{self.folder}: {train} training and {counted(test, f'test {self.unit}')}{scans}.",
            self._parts(),
        ]
        if self.unit == "record" and train:  # patients of the test have no guarantee
            lines.append(
                "Nothing says which scans are of one person, so the guarantee protects one scan, and a person with "
                "several is protected less.\nTo protect patients, delete the new folder and configuration, and convert "
                "again with --patients TABLE (columns record and\npatient), or with --patient-pattern REGEX, such as "
                "'(.*)' if every scan's folder is a patient."
            )
        return "\n".join(line for line in lines if line)

    def configuration(self) -> str:
        """Return the configuration as YAML; for a cohort with one part, the settings of a site of a federation."""
        (train, test), (train_scans, test_scans) = self.patients, self.scans
        folder, settings = _quoted(self.folder), ", ".join(f"{key}: {value}" for key, value in self.settings.items())
        if not self.trains:
            return f"  images: {folder}" if train else f"  watched: {folder}\n  watched_patients: {test}"
        lines = [
            f"name: {_quoted(self.name)}  # results go to results/{self.name}",
            "cohort:",
            f"  name: {_quoted(self.name)}  # stands for these patients: other patients need another name",
            "  source: folder",
            f"  folder: {folder}",
            *(f"  # {line}" for line in self._parts().splitlines()),
            f"  train_patients: {train}  # with {counted(train_scans, 'scan')}",
            f"  test_patients: {test}  # with {counted(test_scans, 'scan')}",
            f"  unit: {self.unit}  # what the guarantee protects",
            *([f"  patient_key: {_quoted(self.folder / PATIENT_KEY)}"] if self.unit == "patient" else []),
            *([f"task: {{settings: {{{settings}}}}}"] if settings else []),
            "partition:",
            "  nodes: 1  # number of hospitals",
            "  validation_patients: 0",
            "privacy:",
            "  noise: os",
            "runs:",
            "  - {networks: [head], arms: [federated], epsilons: [8], seeds: [0]}",
        ]
        return "\n".join(lines) + "\n"

    def _parts(self) -> str:
        """Return a sentence about the choice of parts; empty if the rule puts all patients into one part."""
        if self.division.test_fraction in {0, 1}:
            return ""
        share = f"{self.division.test_fraction:g}"
        if self.division.exact:
            return (
                f"A share of {share} of the {self.unit}s is for testing, chosen by hashes of their names. A "
                f"{self.unit} that joins or\nleaves can move another from training to test data or back, so do not "
                "test a model on a later conversion."
            )
        return (
            f"Each {self.unit} is for testing with probability {share}. A hash of its name alone decides, so no "
            f"{self.unit} changes groups when others join.\nIn a small cohort the actual share can be very different; "
            "--exact-test-fraction makes it exact."
        )


def _quoted(value: object) -> str:
    """Return a text in YAML, on one line."""
    return yaml.safe_dump(str(value), width=float("inf"), allow_unicode=True).removesuffix("\n").removesuffix("\n...")
