"""Predictions of a network on images of patients that it was not trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from zetadp.core.records import Records

IMAGES_AT_ONCE = 80
"""Images of a pass. What convolutions make of so many stays in the cache of a processor: 512 take 1.4 times as long."""


@torch.no_grad()
def class_scores(model: nn.Module, images: Tensor) -> Tensor:
    """Return class scores of shape (image, class) for images of shape (image, row, column)."""
    parts = [model(part.unsqueeze(1)) for part in torch.split(images, IMAGES_AT_ONCE)]
    return torch.cat(parts)


def accuracy_and_loss(model: nn.Module, records: Records) -> tuple[float, float]:
    """Return accuracy and mean cross-entropy over all images of all patients; NaN where there is no patient."""
    if not len(records.images):
        return float("nan"), float("nan")
    accuracy, loss = _accuracy_and_loss(model, records).tolist()
    return accuracy, loss


def _accuracy_and_loss(model: nn.Module, records: Records) -> Tensor:
    """Return both in one tensor on the device, so that a GPU is waited for once."""
    scores = class_scores(model, records.images.flatten(0, 1))
    labels = records.labels.repeat(len(records.images)) if records.labels.ndim == 1 else records.labels.flatten()
    loss = functional.cross_entropy(scores, labels)
    return torch.stack(((scores.argmax(dim=1) == labels).float().mean(), loss))


def predict(model: nn.Module, images: Tensor, patients: Sequence[str], sequences: Sequence[str]) -> pd.DataFrame:
    """Predict the pulse sequence of every image.

    Parameters
    ----------
    model
        The network.
    images
        Tensor of shape (patient, sequence, slice, row, column).
    patients, sequences
        Names along the first two axes.

    Returns
    -------
    Table with one row an image: ``patient``, ``sequence`` (true), ``slice`` (counted from zero among those used),
    ``predicted`` and ``probability`` (softmax of the predicted class).
    """
    probabilities = class_scores(model, images.flatten(0, 2)).softmax(dim=1).cpu()
    best, which = probabilities.max(dim=1)
    index = pd.MultiIndex.from_product(
        [list(patients), list(sequences), range(images.shape[2])], names=["patient", "sequence", "slice"]
    )
    table = pd.DataFrame(
        {"predicted": [sequences[i] for i in which.tolist()], "probability": best.numpy()}, index=index
    )
    return table.reset_index()
