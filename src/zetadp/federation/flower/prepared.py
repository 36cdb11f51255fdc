"""A site's own patients: from its own folder, by its own slicing, transform and whitening, once.

All checks of content happen here, before the site joins: later, stopping would be a function of one patient.
"""

from __future__ import annotations

import hashlib
import json
import logging
from typing import TYPE_CHECKING

import numpy as np
import torch

from zetadp.cohort.decathlon import SEQUENCES, read_task
from zetadp.cohort.index import index_cohort
from zetadp.dataset import to_records
from zetadp.kspace.fourier import to_kspace
from zetadp.kspace.volumes import read_centre_slices
from zetadp.kspace.whitening import whiten
from zetadp.storage import ImageStack, read_stack, write_stack

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from zetadp.federation.flower.plan import Plan
    from zetadp.federation.node import Records

logger = logging.getLogger(__name__)


def load_site(
    folder: Path, plan: Plan, cache: Path, *, part: str, patients: int
) -> tuple[Records, list[tuple[int, ...]]]:
    """Return the images of a site's patients and, for each patient, the positions of its records.

    Parameters
    ----------
    folder
        Folder in the layout of the Medical Segmentation Decathlon that holds this site's patients and nobody else's.
    plan
        Which slices, of which size, in which domain.
    cache
        Folder where the prepared images are kept; they are made again when files or plan change.
    part
        ``train`` for a hospital, ``test`` for patients that the server watches.
    patients
        Declared number of patients.

    Raises
    ------
    UserError
        For everything that the checks of a cohort find, and for slices that are empty, constant or not finite.
    """
    train, test = (patients, 0) if part == "train" else (0, patients)
    table = index_cohort(folder, train_patients=train, test_patients=test, slices=plan.slices)
    path = cache / f"{_key(table, plan)}.h5"
    if not path.exists():
        write_stack(path, _prepare(folder, table, plan))
        logger.info("prepared %d records of %d patients", len(table), table["patient"].nunique())
    records = to_records(read_stack(path), torch.device("cpu"))
    positions = table.groupby("patient", sort=True).indices
    return records, [tuple(int(i) for i in own) for own in positions.values()]


def _prepare(folder: Path, table: pd.DataFrame, plan: Plan) -> ImageStack:
    """Slice every volume and, for a network on k-space, transform and whiten every slice by itself."""
    order = read_task(folder).sequences
    values = np.stack([read_centre_slices(folder / file, order, plan.slices, plan.size) for file in table["file"]])
    if plan.network.domain == "kspace":
        values = whiten(to_kspace(values))
    axes = ("record", "sequence", "slice", "row", "column")
    return ImageStack(values, tuple(table["record"]), SEQUENCES, axes, "prepared for training")


def _key(table: pd.DataFrame, plan: Plan) -> str:
    """Return what the prepared images depend on."""
    content = [plan.slices, plan.size, plan.network.domain, table[["record", "sha256"]].to_numpy().tolist()]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
