"""Records of images in the form of the networks' inputs, and joint scores of all images of a record."""

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
from zetadp.brain.backbone import Backbone
from zetadp.mri.decathlon import SEQUENCES
from zetadp.mri.kspace import to_kspace, whiten_records
from zetadp.nn.settings import STUDY
from zetadp.training.records import LabelledItems
from zetadp.training.task import PublicNetwork, positions_of

PUBLIC_FEATURES = Path(__file__).parents[1] / "data/abstention_study.safetensors"
"""The package's file of public features, to which the thresholds of a model are fitted."""


def has_thresholds(domain: str, backbone: PublicNetwork | None) -> bool:
    """Return whether a model has thresholds to abstain: heads on a study of the shipped backbone have."""
    if backbone is None or domain != STUDY:
        return False
    return tensors_digest(backbone.tensors()) == str(load_tensors(PUBLIC_FEATURES)[1]["backbone"])


def orders_of(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return all orders of the classes, shape (order, class), and the score of each order for images that all differ.

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
    filled = torch.where(scores.isnan(), 0, scores)
    return orders, filled[..., torch.arange(count), orders].sum(dim=-1)


def by_orders(scores: Tensor) -> Tensor:
    """Return the probability of each class for images that all differ, (..., image, class), from scores of that shape.

    The probabilities of an absent image are NaN, like its scores.
    """
    orders, sums = orders_of(scores)
    picks = functional.one_hot(orders, scores.shape[-1]).to(scores.dtype)
    shares = torch.einsum("...o,oic->...ic", sums.softmax(dim=-1), picks).clamp(max=1)  # sums exceed it by rounding
    return torch.where(scores.isnan(), torch.nan, shares)


def best_log_likelihood(scores: Tensor) -> Tensor:
    """Return the log-likelihood of the likeliest order, shape (record,), for scores (record, volume, class)."""
    return orders_of(scores.log_softmax(dim=-1))[1].amax(dim=-1)


def load_role(files: Sequence[Path], partition: pd.DataFrame, role: str) -> tuple[np.ndarray, pd.DataFrame]:
    """Return the images of all records with one role and, in the same order, their rows of the partition.

    Images have shape (record, sequence, slice, row, column). In addition to the result, one file is in memory at a
    time.

    Raises
    ------
    UserError
        If the files do not hold every record with this role.
    """
    rows = partition[partition["role"] == role].reset_index(drop=True)
    positions = {record: number for number, record in enumerate(rows["record"])}
    records: set[str] = set()
    result = np.empty(0)
    for number, file in enumerate(files):
        shard = Items.read(file, ("values",))
        values, names = shard.arrays["values"], shard.names["record"]
        if number == 0:
            result = np.empty((len(rows), *values.shape[1:]), values.dtype)
        for record, value in zip(names, values, strict=True):
            if record in positions:
                result[positions[record]] = value
        records.update(names)
    # All of them, or an error.
    positions_of(positions, records, "records", files[0].parent if files else Path("no file"))
    return result, rows


def to_records(values: np.ndarray, device: torch.device) -> LabelledItems:
    """Return images of shape (record, sequence, slice, row, column) as records on a device.

    An item is one image, whose class is the index of its sequence. Images of a sequence that a record lacks are NaN.
    """
    records, sequences, slices = values.shape[:3]
    images = to_inputs(values).reshape(records, sequences * slices, 1, *values.shape[3:])
    labels = torch.arange(sequences).repeat_interleave(slices)
    available = present(values).ravel().repeat(slices)
    return replace(LabelledItems.stacked(images, labels), present=available).to(device)


def to_inputs(values: np.ndarray) -> torch.Tensor:
    """Return the network's inputs from prepared images: real images are standardised, complex ones unchanged."""
    return torch.from_numpy(values if np.iscomplexobj(values) else standardise(values))


def standardise(images: np.ndarray) -> np.ndarray:
    """Give each real image (..., row, column) mean zero and standard deviation one, as float32.

    The scale of MRI intensities is arbitrary, and no statistic may cross patients. A constant image becomes NaN.
    """
    centred = images - images.mean(axis=(-2, -1), keepdims=True)
    # NaN makes the patient contribute zero. A warning in a log would reveal that such a patient exists.
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(centred / centred.std(axis=(-2, -1), keepdims=True), dtype=np.float32)


def prepare(slices: np.ndarray, domain: str, backbone: Backbone | None) -> np.ndarray:
    """Prepare slices, shape (record, ..., row, column), for a network of some domain. Records are processed separately.

    Images do not change; k-space is transformed and whitened; features are those of the public backbone. The
    rules of the workflow perform the same steps in several stages.
    """
    if domain == "image":
        return slices
    kspace = to_kspace(slices)
    return whiten_records(kspace) if domain == "kspace" else check_backbone(backbone).record_features(kspace)


def prepared_inputs(slices: np.ndarray, domain: str, backbone: Backbone | None) -> Tensor:
    """Return a network's inputs, (item, 1, row, column), for all slices of one record, (item, row, column)."""
    return to_inputs(prepare(slices[None], domain, backbone)[0]).unsqueeze(1)


def check_backbone(backbone: Backbone | None) -> Backbone:
    """Return a backbone; raise `UserError` if it is None or was trained on other sequences."""
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
