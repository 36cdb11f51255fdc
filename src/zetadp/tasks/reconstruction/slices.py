"""Turn the volumes of a cohort into the input of networks: undersampled k-space, targets, and a table of patients."""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from zetadp.base.tables import write_table
from zetadp.base.validation import UserError, check_distinct
from zetadp.tasks.items import Items
from zetadp.tasks.reconstruction.settings import MaskSettings
from zetadp.tasks.reconstruction.volumes import read_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from zetadp.tasks.reconstruction.volumes import KspaceVolume

logger = logging.getLogger(__name__)


def undersampled(volumes: Iterable[tuple[str, KspaceVolume]], masks: MaskSettings, size: int) -> Items:
    """Undersample volumes. The mask of a volume depends on its name alone.

    Parameters
    ----------
    volumes
        Part (train or test) and volume of each examination.
    masks
        Settings of the masks.
    size
        Rows and columns to which slices are cut.

    Returns
    -------
    All slices. Arrays are ``kspace`` (complex64, shape (slice, ky, kx), in units of the volume's largest intensity,
    missing lines zero), ``targets`` (float32, shape (slice, row, column), in the same units) and ``slice`` (number of
    the slice in its volume). Names are patient, record (the volume) and part.

    Raises
    ------
    UserError
        If a volume is smaller than `size`.
    """
    rows, seen, wanted = [], [], []
    for part, volume in volumes:
        kspace, target = volume.slices(size)
        seen.append(kspace * masks.of_volume(volume.name, size))
        wanted.append(target)
        rows += [(volume.patient, volume.name, part, number) for number in range(len(kspace))]
    table = pd.DataFrame(rows, columns=["patient", "record", "part", "slice"])
    arrays = {"kspace": np.concatenate(seen), "targets": np.concatenate(wanted), "slice": table["slice"].to_numpy()}
    return Items(arrays, table.drop(columns="slice"))


def check_cohort(names: pd.DataFrame, declared: Mapping[str, int]) -> pd.DataFrame:
    """Return a table with one row per volume, and check it against the declared cohort.

    Parameters
    ----------
    names
        Patient, record and part of each slice.
    declared
        Declared number of patients in each part.

    Raises
    ------
    UserError
        If a volume's name occurs twice, two patients' names look the same, a patient is in both parts, or a number of
        patients differs from the declared number.
    """
    found = names.drop_duplicates(ignore_index=True)
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


def undersample(
    *, volumes: Path, slices: Path, table: Path, mask: dict[str, Any], size: int, sizes: dict[str, int]
) -> None:
    """Write the slices, and one row for each volume: patient, record, part, scanner, sha256."""
    found = undersampled(read_folder(volumes), MaskSettings(**mask), size)
    index = check_cohort(found.names, sizes)
    places = found.names.groupby("record").indices
    hashes = [hashlib.sha256(found.arrays["kspace"][places[name]].tobytes()).hexdigest() for name in index["record"]]
    found.write(slices, ("slice", "ky", "kx"), "largest intensity of the volume")
    write_table(table, index.assign(scanner="", sha256=hashes))
    logger.info("%d slices of %d patients", len(found.names), index["patient"].nunique())
