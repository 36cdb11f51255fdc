"""A site's folder of its own patients: written from one cohort, and read by the site's own slicing and whitening, once.

All checks of content happen here, before the site joins: later, stopping would be a function of one patient.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import numpy as np
import torch

from zetadp.cohort.decathlon import SEQUENCES, read_task
from zetadp.cohort.folders import folder_written_whole
from zetadp.cohort.index import PATIENT_KEY, index_cohort
from zetadp.dataset import to_records
from zetadp.kspace.fourier import to_kspace
from zetadp.kspace.volumes import read_centre_slices
from zetadp.kspace.whitening import whiten
from zetadp.publicstart import record_features
from zetadp.storage import ImageStack, read_json, read_stack, write_json, write_stack
from zetadp.validation import UserError

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from zetadp.core.plan import Plan
    from zetadp.core.records import Records
    from zetadp.nn.backbone import Backbone

logger = logging.getLogger(__name__)

FIELDS = {"train": "training", "test": "test"}


def write_site_folder(target: Path, task: Path, records: pd.DataFrame, part: str) -> None:
    """Write the folder of one site in Decathlon layout; volumes are links to those of the cohort.

    Parameters
    ----------
    target
        The folder; replaced if it is there.
    task
        Folder of the cohort, the one that holds ``dataset.json``.
    records
        The site's rows of the cohort's index, with the columns ``patient`` and ``file``.
    part
        ``train`` for a hospital's patients, ``test`` for those that the server watches.
    """
    shutil.rmtree(target, ignore_errors=True)
    modality = read_json(task / "dataset.json")["modality"]
    files = sorted(records["file"])
    with folder_written_whole(target) as folder:
        for file in files:
            link = folder / PurePosixPath(file)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to((task / file).resolve())
        listed = [{"image": f"./{file}"} for file in files] if part == "train" else [f"./{file}" for file in files]
        content = {"modality": modality, "training": [], "test": [], FIELDS[part]: listed}
        write_json(folder / "dataset.json", json.loads(json.dumps(content)))
        key = records[["file", "patient"]].sort_values("file")
        key.to_csv(folder / PATIENT_KEY, sep="\t", index=False)


def load_site(
    folder: Path, plan: Plan, cache: Path, *, part: str, patients: int, backbone: Backbone | None
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
    backbone
        The public backbone, where the network takes its features.

    Raises
    ------
    UserError
        For everything that the checks of a cohort find, and for slices that are empty, constant or not finite.
    """
    train, test = (patients, 0) if part == "train" else (0, patients)
    table = index_cohort(folder, train_patients=train, test_patients=test, slices=plan.task["slices"])
    path = cache / f"{_key(table, plan)}.h5"
    if not path.exists():
        write_stack(path, _prepare(folder, table, plan, backbone))
        logger.info("prepared %d records of %d patients", len(table), table["patient"].nunique())
    records = to_records(read_stack(path), torch.device("cpu"))
    positions = table.groupby("patient", sort=True).indices
    return records, [tuple(int(i) for i in own) for own in positions.values()]


def _prepare(folder: Path, table: pd.DataFrame, plan: Plan, backbone: Backbone | None) -> ImageStack:
    """Slice every volume; unless the network sees images, transform and whiten every slice by itself.

    Features of the public backbone are computed of the same.
    """
    order, slices, size = read_task(folder).sequences, plan.task["slices"], plan.task["size"]
    values = np.stack([read_centre_slices(folder / file, order, slices, size) for file in table["file"]])
    if plan.network.domain != "image":
        values = whiten(to_kspace(values))
    if plan.network.domain == "features":
        if backbone is None:
            msg = f"Expected a plan that names the backbone whose features {plan.run.network} takes, found none."
            raise UserError(msg)
        values = record_features(backbone, values)
    axes = ("record", "sequence", "slice", "row", "column")
    return ImageStack(values, tuple(table["record"]), SEQUENCES, axes, "prepared for training")


def _key(table: pd.DataFrame, plan: Plan) -> str:
    """Return what the prepared images depend on."""
    backbone = plan.public.get("backbone") if plan.network.domain == "features" else None
    content = [
        plan.task["slices"],
        plan.task["size"],
        plan.network.domain,
        backbone,
        table[["record", "sha256"]].to_numpy().tolist(),
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
