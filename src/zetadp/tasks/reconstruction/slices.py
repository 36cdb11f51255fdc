"""Turn the volumes of a cohort into the input of networks: undersampled k-space, targets, and a table of patients."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import pandas as pd

from zetadp.base.storage import read_arrays, write_arrays
from zetadp.base.validation import UserError, check_distinct

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from zetadp.tasks.reconstruction.masks import MaskSettings
    from zetadp.tasks.reconstruction.volumes import KspaceVolume

COLUMNS = ("patient", "record", "part")


class Slices(NamedTuple):
    """All slices of a cohort.

    Attributes
    ----------
    table
        One row per slice: patient, record (the volume), part (train or test), slice.
    kspace
        complex64, shape (slice, ky, kx), in units of the volume's largest intensity; missing lines are zero.
    targets
        float32, shape (slice, row, column), in the same units.
    """

    table: pd.DataFrame
    kspace: np.ndarray
    targets: np.ndarray

    @classmethod
    def of(cls, volumes: Iterable[tuple[str, KspaceVolume]], masks: MaskSettings, size: int) -> Self:
        """Undersample volumes. The mask of a volume depends on its name alone.

        Parameters
        ----------
        volumes
            Part (train or test) and volume of each examination.
        masks
            Settings of the masks.
        size
            Rows and columns to which slices are cut.

        Raises
        ------
        UserError
            If a volume is smaller than `size`.
        """
        rows: list[tuple[str, str, str, int]] = []
        seen, wanted = [], []
        for part, volume in volumes:
            kspace, target = volume.slices(size)
            seen.append(kspace * masks.of_volume(volume.name, size))
            wanted.append(target)
            rows += [(volume.patient, volume.name, part, number) for number in range(len(kspace))]
        table = pd.DataFrame(rows, columns=[*COLUMNS, "slice"])
        return cls(table, np.concatenate(seen), np.concatenate(wanted))

    def cohort(self, declared: Mapping[str, int]) -> pd.DataFrame:
        """Return a table with one row per volume, and check it against the declared cohort.

        Parameters
        ----------
        declared
            Declared number of patients in each part.

        Raises
        ------
        UserError
            If a volume's name occurs twice, a patient is in both parts, or a number of patients differs from the
            declared number.
        """
        found = self.table[list(COLUMNS)].drop_duplicates(ignore_index=True)
        check_distinct(found["patient"], "the patient_id of the files")
        twice = found["record"][found["record"].duplicated()]
        if len(twice):
            raise UserError(f"Expected each volume to have its own name, found {twice.iloc[0]} twice.")
        both = found.groupby("patient")["part"].nunique()
        if (both > 1).any():
            raise UserError(
                f"Expected each patient in one part, found {both.idxmax()} in both. Move that patient's files to one "
                "folder."
            )
        for part, wanted in declared.items():
            patients = found["patient"][found["part"] == part].nunique()
            if patients != wanted:
                raise UserError(
                    f"Expected cohort.{part}_patients to be the number of patients in the files, {patients}, found "
                    f"{wanted}. Declare {patients}: the guarantee uses this number as a public constant."
                )
        return found

    def write(self, path: Path) -> None:
        """Write the slices to HDF5."""
        arrays = {"kspace": self.kspace, "targets": self.targets, "slice": self.table["slice"].to_numpy()}
        names = {column: tuple(self.table[column]) for column in COLUMNS}
        about = {"axes": ["slice", "ky", "kx"], "units": "largest intensity of the volume"}
        write_arrays(path, arrays, names, about, {})

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what `write` wrote.

        Raises
        ------
        UserError
            If the file is missing or damaged, or does not contain slices.
        """
        (kspace, targets, numbers), names = read_arrays(path, "slices", ("kspace", "targets", "slice"), COLUMNS)
        return cls(pd.DataFrame(dict(zip(COLUMNS, names, strict=True))).assign(slice=numbers), kspace, targets)
