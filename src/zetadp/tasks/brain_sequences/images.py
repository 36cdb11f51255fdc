"""Records of images as networks of the task take them, and their scores as all images of a record make them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional

from zetadp.base.storage import Items, present
from zetadp.base.tensors import load_tensors, tensors_digest
from zetadp.base.validation import UserError
from zetadp.core.records import LabelledItems
from zetadp.core.task import places_of
from zetadp.mri.decathlon import SEQUENCES
from zetadp.mri.kspace import to_kspace, whiten_records
from zetadp.nn.backbone import Backbone
from zetadp.nn.settings import STUDY

PUBLIC_FEATURES = Path(__file__).parents[2] / "data/abstention_study.safetensors"
"""The package's file of public features, to which the thresholds of a model are fitted."""


def has_thresholds(domain: str, backbone: Backbone | None) -> bool:
    """Return whether there are thresholds at which a model abstains: of heads on a study of the shipped backbone."""
    if backbone is None or domain != STUDY:
        return False
    return tensors_digest(backbone.tensors()) == str(load_tensors(PUBLIC_FEATURES)[1]["backbone"])


def orders_of(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return all orders of the classes, shape (order, class), and the score of each one for images that all differ.

    Parameters
    ----------
    scores
        Shape (..., image, class), with as many images as classes. An image that is absent has scores of NaN. It fits
        every class equally well, so the orders of the other images are their assignments to different classes.

    Returns
    -------
    The orders, and the sums of scores that they pick, shape (..., order).
    """
    count = scores.shape[-1]
    orders = torch.tensor(list(permutations(range(count))), device=scores.device)
    known = torch.where(scores.isnan(), 0, scores)
    return orders, known[..., torch.arange(count), orders].sum(dim=-1)


def by_orders(scores: Tensor) -> Tensor:
    """Return the probability of each class, (..., image, class), for images that all differ; scores likewise.

    The probabilities of an absent image are NaN, as its scores.
    """
    orders, sums = orders_of(scores)
    picks = functional.one_hot(orders, scores.shape[-1]).to(scores.dtype)
    shares = torch.einsum("...o,oic->...ic", sums.softmax(dim=-1), picks).clamp(max=1)  # sums exceed it by rounding
    return torch.where(scores.isnan(), torch.nan, shares)


def explained(scores: Tensor) -> Tensor:
    """Return the log-likelihood of the likeliest order, shape (record,), for scores (record, volume, class)."""
    return orders_of(scores.log_softmax(dim=-1))[1].amax(dim=-1)


def load_role(files: Sequence[Path], partition: pd.DataFrame, role: str) -> tuple[np.ndarray, pd.DataFrame]:
    """Return the images of all records with one role and, in the same order, their rows of the partition.

    Images have shape (record, sequence, slice, row, column). Beside the result, one file is in memory at a time.

    Raises
    ------
    UserError
        If the files do not hold every record with this role.
    """
    rows = partition[partition["role"] == role].reset_index(drop=True)
    place = {record: number for number, record in enumerate(rows["record"])}
    found: set[str] = set()
    result = np.empty(0)
    for number, file in enumerate(files):
        shard = Items.read(file, ("values",))
        values, names = shard.arrays["values"], shard.names["record"]
        if number == 0:
            result = np.empty((len(rows), *values.shape[1:]), values.dtype)
        for record, value in zip(names, values, strict=True):
            if record in place:
                result[place[record]] = value
        found.update(names)
    places_of(place, found, "records", files[0].parent if files else Path("no file"))  # all of them, or an error
    return result, rows


def to_records(values: np.ndarray, device: torch.device) -> LabelledItems:
    """Return images of shape (record, sequence, slice, row, column) as records on a device.

    An item is one image, whose class is the index of its sequence. Images of a sequence that a record lacks are NaN.
    """
    records, sequences, slices = values.shape[:3]
    images = as_given(values).reshape(records, sequences * slices, 1, *values.shape[3:])
    labels = torch.arange(sequences).repeat_interleave(slices)
    known = present(values).ravel().repeat(slices)
    return replace(LabelledItems.stacked(images, labels), present=known).to(device)


def as_given(values: np.ndarray) -> torch.Tensor:
    """Return prepared images as networks take them: real ones standardised, complex ones unchanged."""
    return torch.from_numpy(values if np.iscomplexobj(values) else standardise(values))


def standardise(images: np.ndarray) -> np.ndarray:
    """Give each real image (..., row, column) mean zero and standard deviation one, as float32.

    The scale of MRI intensities is arbitrary, and no statistic may cross patients. A constant image becomes NaN.
    """
    centred = images - images.mean(axis=(-2, -1), keepdims=True)
    # NaN makes the patient contribute zero. A warning in a log would reveal that there is such a patient.
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(centred / centred.std(axis=(-2, -1), keepdims=True), dtype=np.float32)


def prepare(slices: np.ndarray, domain: str, backbone: Backbone | None) -> np.ndarray:
    """Return what a network of some domain is given of slices, shape (record, ..., row, column), each record by itself.

    The image stays as it is; k-space is transformed and whitened; features are the public backbone's of k-space. The
    rules of the workflow do the same in several stages.
    """
    if domain == "image":
        return slices
    kspace = to_kspace(slices)
    return whiten_records(kspace) if domain == "kspace" else of_brains(backbone).record_features(kspace)


def prepared_inputs(slices: np.ndarray, domain: str, backbone: Backbone | None) -> Tensor:
    """Return a network's inputs, (item, 1, row, column), for all slices of one record, (item, row, column)."""
    return as_given(prepare(slices[None], domain, backbone)[0]).unsqueeze(1)


def of_brains(backbone: Backbone | None) -> Backbone:
    """Return a backbone; raise `UserError` if there is none, or if it was trained on other sequences."""
    if backbone is None:
        raise UserError("Expected a plan that names the backbone whose features its network takes, found none.")
    if backbone.sequences != SEQUENCES:
        raise UserError(
            f"Expected a backbone of the sequences {', '.join(SEQUENCES)}, found one that was trained on "
            f"{', '.join(backbone.sequences)}. Pretrain one on the former."
        )
    return backbone


def volume_accuracy(predictions: pd.DataFrame, sequences: Sequence[str]) -> float:
    """Return the accuracy of a majority vote over the slices of each volume: a patient's scan in one sequence.

    A tie goes to the sequence with the larger sum of probabilities, then to the earlier one in ``sequences``. Without a
    column ``record``, every patient has one scan.
    """
    volume = [name for name in ("patient", "record", "sequence") if name in predictions]
    groups = predictions.groupby([*volume, "predicted"], as_index=False)
    votes = groups["probability"].agg(["size", "sum"])
    votes["order"] = votes["predicted"].map({name: index for index, name in enumerate(sequences)})
    votes = votes.sort_values(["size", "sum", "order"], ascending=[False, False, True], kind="stable")
    winners = votes.drop_duplicates(volume)
    return float((winners["predicted"] == winners["sequence"]).mean())
