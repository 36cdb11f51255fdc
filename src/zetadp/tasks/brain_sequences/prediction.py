"""Classify the pulse sequences of any volume with a finished model, and report doubtful answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from torch import Tensor

from zetadp.base.epsilon import epsilon_shown, epsilon_value
from zetadp.base.validation import UserError
from zetadp.core.evaluation import outputs_of
from zetadp.core.pretrained import FinishedModel
from zetadp.core.task import SIMULATED_NAME
from zetadp.mri.volumes import centre_images, log_assumptions, read_volume
from zetadp.nn.settings import IMAGE, STUDY
from zetadp.tasks.brain_sequences import BrainSequences, prepared_inputs
from zetadp.tasks.brain_sequences.abstention import UNLIKE, UNSURE, abstention_for


def predict_volume(model: FinishedModel, path: Path) -> pd.DataFrame:
    """Classify the pulse sequence of every channel of a volume by a vote of its centre slices.

    A model that classifies the images of a slice or the volumes of a patient together does so only if the file has one
    channel per sequence. Otherwise it classifies each image by itself.

    Parameters
    ----------
    model
        A finished model.
    path
        NIfTI file, 3-D (x, y, z) or 4-D (x, y, z, channel), in any orientation.

    Returns
    -------
    Table with one row per channel and these columns:

    - ``channel``: number of the channel, from zero
    - ``sequence``: the sequence with most votes
    - ``votes``: share of the slices that vote for it
    - ``probability``: its mean probability over the slices
    - ``alternative``: the sequence with the next most votes
    - ``doubt``: why not to trust the answer, `abstention.UNSURE` or `abstention.UNLIKE`. Empty for a trusted answer,
      None if `abstention.abstention_for` has no thresholds for the model.

    Raises
    ------
    UserError
        If the model is of another task. If the file is not a NIfTI volume, has too few slices, or has an empty slice.
        If a sequence is missing that a model of domain ``study`` needs.
    """
    task = model.task
    if not isinstance(task, BrainSequences):
        raise UserError(
            f"Expected a model that classifies pulse sequences, found a model of another task ({type(task).__name__})."
        )
    volume = read_volume(path, slices=task.slices)
    log_assumptions([volume])
    channels = volume.shape[3]
    if model.settings.domain == STUDY and channels != len(task.names):
        raise UserError(
            f"Expected all {len(task.names)} sequences of a patient in {path}, because the model compares them, found "
            f"{channels} channel(s)."
        )
    names = [f"channel {number}" for number in range(channels)]
    images = centre_images(volume, names, task.slices, task.size).reshape(-1, task.size, task.size)
    inputs = prepared_inputs(images, model.settings.domain, model.backbone)
    outputs = outputs_of(model.network, inputs)
    doubts = _doubts(model, inputs, outputs, channels)
    rows = []
    deciding = task if channels == len(task.names) else replace(task, decision=IMAGE)
    for channel, part in enumerate(np.split(deciding.probabilities(outputs).numpy(), channels)):
        votes = np.bincount(part.argmax(axis=1), minlength=len(task.names)) / task.slices
        *_, second, winner = (int(place) for place in np.lexsort((part.mean(axis=0), votes)))
        rows.append(
            {
                "channel": channel,
                "sequence": task.names[winner],
                "votes": float(votes[winner]),
                "probability": float(part[:, winner].mean()),
                "alternative": task.names[second],
                "doubt": doubts[channel],
            }
        )
    return pd.DataFrame(rows)


def _doubts(model: FinishedModel, inputs: Tensor, outputs: Tensor, channels: int) -> Sequence[str | None]:
    """Return the doubt about each channel, as `Abstention.verdicts`. None if the model has no thresholds."""
    abstention = abstention_for(model)
    if abstention is None:
        return [None] * channels
    features = inputs.reshape(channels, -1, inputs.shape[-1]).mean(dim=1)
    scores = outputs.reshape(channels, -1, outputs.shape[-1]).mean(dim=1)
    return abstention.verdicts(features, abstention.probabilities(scores))


def answers(table: pd.DataFrame, *, anyway: bool = False) -> pd.DataFrame:
    """Return the columns of `predict_volume` to print.

    Parameters
    ----------
    table
        The result of `predict_volume`.
    anyway
        Whether to show the sequences of doubtful answers, too. By default they are None.
    """
    shown = table.drop(columns="alternative")
    if table["doubt"].isna().all():
        return shown.drop(columns="doubt")
    if not anyway:
        doubtful = table["doubt"] != ""
        shown["sequence"] = shown["sequence"].astype(object).mask(doubtful, None)
    return shown


def doubts(table: pd.DataFrame) -> list[str]:
    """Return one sentence for each doubtful channel of `predict_volume`, or one sentence if there are no thresholds."""
    if table["doubt"].isna().all():
        return ["This model has no thresholds for doubtful answers, so it always answers, even if it is unsure."]
    found = []
    for row in table.to_dict("records"):
        if row["doubt"] == UNSURE:
            found.append(f"unsure: channel {row['channel']} may be {row['sequence']} or {row['alternative']}.")
        elif row["doubt"] == UNLIKE:
            found.append(f"unlike: channel {row['channel']} looks like no image that the model knows.")
    return found


def origin(model: FinishedModel) -> str:
    """Describe in sentences what a model was trained on, with a warning if the training was a simulation."""
    about = model.trained_on
    if not about:
        return "The file of the model does not say what it was trained on: an earlier version of zetadp wrote it."
    epsilon = epsilon_value(about["epsilon"])
    private = f"ε = {epsilon_shown(about['epsilon'])} per {about['unit']} at δ = {about['delta']:g}"
    guarantee = private if math.isfinite(epsilon) else "without noise, and so without a privacy guarantee"
    found = f"Trained on {about['units']} {about['unit']}s of the cohort {about['cohort'] or '(no name)'}, {guarantee}."
    simulated = []
    patients_simulated = about.get("simulated")
    if patients_simulated is None:  # files of earlier versions have no such field
        patients_simulated = about["cohort"].startswith(SIMULATED_NAME)
    if patients_simulated:
        simulated.append("its patients were simulated")
    if about["noise"] == "seeded" and math.isfinite(epsilon):
        simulated.append("its noise came from a seed, which protects nobody")
    if simulated:
        found += f"\nWarning: this training was a simulation: {', and '.join(simulated)}."
    return found
