"""Classification of the pulse sequences of any volume with a finished model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
import torch

from zetadp.accounting.threat import MASKED_SUMS, NoiseSource, condition
from zetadp.base.epsilon import rounded_up
from zetadp.base.validation import UserError, counted
from zetadp.brain.abstention import UNLIKE, UNSURE, abstention_for, mean_scores
from zetadp.brain.backbone import Backbone, subtract_mean
from zetadp.brain.images import prepared_inputs
from zetadp.brain.task import IMAGE, BrainSequences
from zetadp.mri.decathlon import LEAST_SEQUENCES
from zetadp.mri.nifti import log_assumptions, read_volume
from zetadp.mri.volumes import centre_images
from zetadp.nn.settings import STUDY
from zetadp.training.evaluation import without_absent
from zetadp.training.pretrained import FinishedModel


def predict_volume(model: FinishedModel, path: Path) -> pd.DataFrame:
    """Classify the pulse sequence of every channel of a volume by a vote of its centre slices.

    A model that classifies the images of a slice or the volumes of a patient together does so if the file has two to
    four channels, which must be different sequences of one patient. Otherwise it classifies each image separately.

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
    - ``doubt``: the reason not to trust the answer, `UNSURE` or `UNLIKE`. Empty for a trusted answer,
      None if `abstention_for` has no thresholds for the model.

    Raises
    ------
    UserError
        If the model is of another task. If the file is not a NIfTI volume, has too few slices, or has an empty slice.
        If a model of domain ``study`` gets fewer than two or more than four channels.
    """
    task = model.task
    if not isinstance(task, BrainSequences):
        raise UserError(
            f"Expected a model that classifies pulse sequences, found a model of another task ({type(task).__name__})."
        )
    volume = read_volume(path, slices=task.slices, spacing=task.spacing)
    log_assumptions([volume])
    channels = volume.shape[3]
    together = LEAST_SEQUENCES <= channels <= len(task.names)
    if model.settings.domain == STUDY and not together:
        raise UserError(
            f"Expected {LEAST_SEQUENCES} to {len(task.names)} different sequences of a patient in {path}, because the "
            f"model compares them, found {counted(channels, 'channel')}. Give one 4-D file, or the files of several "
            "sequences."
        )
    names = [f"channel {number}" for number in range(channels)]
    images = centre_images(volume, names, task.slices, task.size, task.spacing).reshape(-1, task.size, task.size)
    backbone = cast("Backbone | None", model.backbone)  # a model of this task has no other
    before = prepared_inputs(images, model.settings.domain, backbone and replace(backbone, centred=False))
    inputs = subtract_mean(before) if model.settings.domain == STUDY else before
    deciding, absent = (task, len(task.names) - channels) if together else (replace(task, decision=IMAGE), 0)
    # The model takes whole records, in which channels that the file lacks are NaN.
    inputs = torch.cat([inputs, inputs.new_full((absent * task.slices, *inputs.shape[1:]), torch.nan)])
    present = np.arange(len(inputs)) < channels * task.slices
    probabilities = deciding.probabilities(without_absent(model.outputs(inputs), present))[present]
    rows = []
    for channel, part in enumerate(np.split(probabilities.numpy(), channels)):
        votes = np.bincount(part.argmax(axis=1), minlength=len(task.names)) / task.slices
        *_, second, winner = (int(index) for index in np.lexsort((part.mean(axis=0), votes)))
        rows.append(
            {
                "channel": channel,
                "sequence": task.names[winner],
                "votes": float(votes[winner]),
                "probability": float(part[:, winner].mean()),
                "alternative": task.names[second],
            }
        )
    abstention = abstention_for(model, channels)
    verdicts: Sequence[str | None] = [None] * channels
    if abstention is not None:
        features = before.reshape(channels, -1, before.shape[-1]).mean(dim=1)
        whole = torch.cat([features, features.new_full((absent, features.shape[1]), torch.nan)])[None]
        answers = torch.tensor([task.names.index(str(row["sequence"])) for row in rows])
        confidence = abstention.probabilities(mean_scores(model, whole))[0, :channels].gather(1, answers[:, None])[:, 0]
        verdicts = abstention.verdicts(features, confidence)
    return pd.DataFrame([{**row, "doubt": verdict} for row, verdict in zip(rows, verdicts, strict=True)])


def describe_doubts(table: pd.DataFrame) -> list[str]:
    """Return one sentence per doubtful channel of `predict_volume`, or one sentence for a model without thresholds."""
    if table["doubt"].isna().all():
        return ["This model has no thresholds for doubtful answers, so it always answers, even if it is unsure."]
    sentences = []
    for row in table.to_dict("records"):
        if row["doubt"] == UNSURE:
            sentences.append(f"unsure: channel {row['channel']} may be {row['sequence']} or {row['alternative']}.")
        elif row["doubt"] == UNLIKE:
            sentences.append(f"unlike: channel {row['channel']} looks like no image that the model knows.")
    return sentences


def describe_origin(model: FinishedModel) -> str:
    """Return the statement of a model's file about its training, with a warning if the training was a simulation.

    It is not proven: the author of the file can write anything. Only a ledger proves it, and is not read here.
    """
    about = model.trained_on
    if about is None:
        return "The file of the model does not say what it was trained on."
    epsilon, remark = about.target.epsilon, ""
    spent = single = about.target.short
    if about.attempts > 1:  # all together lead, as on every page about a run
        epsilon = math.inf if about.spent is None else about.spent
        spent = rounded_up(epsilon)
        remark = f" for its {about.attempts} trainings together, the last one alone ε = {single}"
    holds_if = condition(about.threat == MASKED_SUMS)
    private = f"ε = {spent} per {about.unit} at δ = {about.delta:g}{holds_if}{remark}"
    guarantee = private if math.isfinite(epsilon) else "without noise, and so without a privacy guarantee"
    text = (
        f"The model's file says of itself: trained on {counted(about.units, about.unit)} of the cohort "
        f"{about.cohort or '(no name)'}, {guarantee}. Only its ledger can prove this."
    )
    simulated = []
    if about.simulated:
        simulated.append("its patients were simulated")
    if about.noise == NoiseSource.SEEDED and math.isfinite(epsilon):
        simulated.append("its noise came from a seed, which protects nobody")
    if simulated:
        text += f"\nWarning: this training was a simulation: {', and '.join(simulated)}."
    return text
