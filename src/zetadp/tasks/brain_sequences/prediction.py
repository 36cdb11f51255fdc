"""Classify the pulse sequences of any volume with a finished model, and say what the model was trained on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from zetadp.cohort.decathlon import DAMAGED
from zetadp.config.contradictions import SIMULATED_NAME
from zetadp.core.evaluation import outputs_of
from zetadp.core.pretrained import FinishedModel
from zetadp.epsilon import epsilon_shown, epsilon_value
from zetadp.kspace.slicing import centre_slices, resize_area
from zetadp.tasks.brain_sequences import BrainSequences, prepared_inputs
from zetadp.validation import UserError


def predict_volume(model: FinishedModel, path: Path) -> pd.DataFrame:
    """Classify the pulse sequence of every channel of a volume by a vote of its centre slices.

    Parameters
    ----------
    model
        A finished model.
    path
        NIfTI file, 3-D (x, y, z) or 4-D (x, y, z, channel), in any orientation.

    Returns
    -------
    Table with one row a channel: ``channel`` (from zero), ``sequence`` with most votes, ``votes`` (share of the
    slices) and ``probability`` (its mean over the slices).

    Raises
    ------
    UserError
        If the model learnt another task, or if the file is not such a volume, or has too few slices or empty ones.
    """
    task = model.task
    if not isinstance(task, BrainSequences):
        raise UserError(
            f"Expected a model that tells pulse sequences, found one of another task ({type(task).__name__})."
        )
    channels = _canonical_channels(path)
    if channels.shape[3] < task.slices:
        raise UserError(f"Expected at least {task.slices} axial slices in {path}, found {channels.shape[3]}.")
    kept = centre_slices(channels.shape[3], task.slices)
    # As in training: rows run from anterior to posterior, columns from left to right.
    slices = np.transpose(channels[:, :, ::-1, kept], (0, 3, 2, 1)).astype(np.float32)
    spread = np.ptp(slices, axis=(2, 3))
    if not np.isfinite(spread).all() or (spread == 0).any():
        channel, place = np.argwhere(~np.isfinite(spread) | (spread == 0))[0]
        where = f"slice {kept.start + place} of channel {channel}"
        raise UserError(f"Expected finite, varying slices in {path}, found another in {where}.")
    images = resize_area(slices, task.size).reshape(-1, task.size, task.size)
    inputs = prepared_inputs(images, model.settings.domain, model.backbone)
    scores = outputs_of(model.network, inputs).softmax(dim=1).numpy()
    rows = []
    for channel, part in enumerate(np.split(scores, len(channels))):
        votes = np.bincount(part.argmax(axis=1), minlength=len(task.names)) / task.slices
        winner = int(np.lexsort((part.mean(axis=0), votes))[-1])
        rows.append(
            {
                "channel": channel,
                "sequence": task.names[winner],
                "votes": float(votes[winner]),
                "probability": float(part[:, winner].mean()),
            }
        )
    return pd.DataFrame(rows)


def origin(model: FinishedModel) -> str:
    """Return what a model was trained on, in sentences, with a warning where that was a simulation."""
    about = model.trained_on
    if not about:
        return "The file of the model does not say what it was trained on: an earlier version of zetadp wrote it."
    epsilon = epsilon_value(about["epsilon"])
    private = f"ε = {epsilon_shown(about['epsilon'])} per {about['unit']} at δ = {about['delta']:g}"
    guarantee = private if math.isfinite(epsilon) else "without noise, and so without a privacy guarantee"
    found = f"Trained on {about['units']} {about['unit']}s of the cohort {about['cohort'] or '(no name)'}, {guarantee}."
    simulated = []
    if about["cohort"].startswith(SIMULATED_NAME):
        simulated.append("its patients were simulated")
    if about["noise"] == "seeded" and math.isfinite(epsilon):
        simulated.append("its noise came from a seed, which protects nobody")
    if simulated:
        found += f"\nWarning: this training was a simulation: {', and '.join(simulated)}."
    return found


def _canonical_channels(path: Path) -> np.ndarray:
    """Return a volume as (channel, right, anterior, superior)."""
    import nibabel as nib

    unreadable = (
        nib.filebasedimages.ImageFileError,
        nib.spatialimages.HeaderDataError,
        nib.orientations.OrientationError,
    )
    try:
        image: Any = nib.as_closest_canonical(nib.load(path))  # type: ignore[no-untyped-call]
        values = np.asarray(image.dataobj)
        _check_whole(path)
    except (*DAMAGED, ValueError, *unreadable) as error:
        raise UserError(f"Cannot read {path} as a NIfTI volume: {error}.") from error
    if values.ndim not in (3, 4):
        raise UserError(f"Expected a 3-D or 4-D volume in {path}, found {values.ndim} axes.")
    if values.dtype.kind not in "iuf":
        raise UserError(f"Expected real voxels in {path}, found {values.dtype}.")
    return values[None] if values.ndim == 3 else np.moveaxis(values, 3, 0)


def _check_whole(path: Path) -> None:
    """Decompress a gzip file to its end, where its checksum stands: who reads voxels alone stops before it."""
    from isal import igzip

    if path.suffix == ".gz":
        with igzip.open(path, "rb") as stream:  # type: ignore[no-untyped-call]
            while stream.read(1 << 24):
                pass
