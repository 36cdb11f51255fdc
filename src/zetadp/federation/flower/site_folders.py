"""A site's folder of its own patients: written from one cohort, and read by the site's own slicing and whitening, once.

All checks of content happen here, before the site joins: later, stopping would be a function of one patient.
"""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from zetadp.cohort.folders import folder_written_whole
from zetadp.cohort.index import PATIENT_KEY
from zetadp.storage import read_json, write_json

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd


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
