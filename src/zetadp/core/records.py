"""The records of a site, its nodes, and the choice of the images that make a contribution."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from zetadp.transfer import to_device
from zetadp.validation import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from zetadp.privacy.mechanism import Draw, SampledGaussian


@dataclass(frozen=True)
class Records:
    """The images of all records (volumes), on one device.

    Attributes
    ----------
    images
        Tensor of shape (record, image, row, column), complex64 or float32.
    labels
        Class of each image: the same for every record, shape (image,), or of every record, shape (record, image).
    """

    images: Tensor
    labels: Tensor

    @cached_property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.labels.max()) + 1

    @cached_property
    def strata(self) -> np.ndarray:
        """Kind of each image of a record, shape (image,); a patient's images are chosen equally from every kind.

        The class, where it is the same for every record. It lies in the processor's memory, where images are chosen.
        """
        shared = self.labels.ndim == 1
        return self.labels.cpu().numpy() if shared else np.zeros(self.labels.shape[1], dtype=np.int64)

    def labels_of(self, records: Tensor, images: Tensor) -> Tensor:
        """Return the classes of some images, given as record and position within it."""
        return self.labels[images] if self.labels.ndim == 1 else self.labels[records, images]


@dataclass(frozen=True)
class ChosenImages:
    """Images of drawn patients, looked up when a pass asks for them: memory holds those of one pass, not of a round.

    Attributes
    ----------
    source
        Images of all records, shape (record, image, row, column).
    records, images
        Record and image within it, on the device of ``source``, both of shape (patient, image).
    """

    source: Tensor
    records: Tensor
    images: Tensor

    @property
    def shape(self) -> torch.Size:
        """Shape of all of them: (patient, image, 1, row, column)."""
        return torch.Size((*self.records.shape, 1, *self.source.shape[2:]))

    @property
    def dtype(self) -> torch.dtype:
        """Type of the numbers."""
        return self.source.dtype

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.source.device

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, part: slice) -> Tensor:
        return self.source[self.records[part], self.images[part]].unsqueeze(2)


@dataclass(frozen=True)
class Node:
    """A holder of patients.

    Attributes
    ----------
    mechanism
        Sampling and noise of the node.
    patients
        For each training patient of the node, the positions of its records: one, or several of one person.
    images
        None where patients are drawn. Where images are drawn instead, each by itself, ``patients`` holds the one record
        of each image and this its position within it.
    """

    mechanism: SampledGaussian
    patients: Sequence[Sequence[int]]
    images: Sequence[int] | None = None


def choose_images(node: Node, draw: Draw, strata: np.ndarray, images_per_patient: int) -> tuple[np.ndarray, np.ndarray]:
    """Choose the images that make each drawn patient's gradient: equally many of every stratum, at random.

    Which images are chosen needs no accounting: whatever they are, the patient's clipped gradient has norm at most B.

    Parameters
    ----------
    node, draw
        The node and its draw.
    strata
        As of `Records`.
    images_per_patient
        How many, a multiple of the number of strata; as many as a record has takes every image position once.

    Returns
    -------
    records, images
        Record and image within it, both of shape (drawn, images_per_patient). Each image of a patient with several
        records is taken from one of them at random. Where images are drawn, each is alone: shape (drawn, 1).
    """
    if node.images is not None:
        owners = np.array([own[0] for own in node.patients], dtype=np.int64)
        return owners[draw.members][:, None], np.array(node.images, dtype=np.int64)[draw.members][:, None]
    random = node.mechanism.image_choices(draw.event.round)
    # Choices are made for all patients of the node and then looked up: a patient's images must not depend on who else
    # was drawn, or being drawn would show in the images of others, which the accountant does not know.
    population = len(node.patients)
    if images_per_patient == len(strata):
        images = np.tile(np.arange(len(strata)), (population, 1))
    else:
        kinds = np.unique(strata)
        chosen = []
        for kind in kinds:
            candidates = np.flatnonzero(strata == kind)
            order = random.random((population, len(candidates))).argsort(axis=1)
            chosen.append(candidates[order[:, : images_per_patient // len(kinds)]])
        images = np.concatenate(chosen, axis=1)
    place = random.random(images.shape)
    owned = [np.asarray(own, dtype=np.int64) for own in node.patients]
    records = np.empty(images.shape, dtype=np.int64)
    for row, own in enumerate(owned):
        records[row] = own[(place[row] * len(own)).astype(np.int64)]
    return records[draw.members], images[draw.members]


def single_images(patients: Sequence[Sequence[int]], count: int) -> tuple[list[Sequence[int]], list[int]]:
    """Return record and position of every image of some patients, where each image is drawn by itself.

    Raises
    ------
    UserError
        If a patient has several records.
    """
    if any(len(own) != 1 for own in patients):
        msg = "Expected one record a patient with training.unit image, found several. Use training.unit patient."
        raise UserError(msg)
    return [own for own in patients for _ in range(count)], list(range(count)) * len(patients)


def check_images_per_patient(images_per_patient: int, strata: np.ndarray) -> None:
    """Refuse a number of images that cannot be shared equally by the strata or that a patient does not have."""
    kinds, counts = np.unique(strata, return_counts=True)
    if images_per_patient != len(strata) and (
        images_per_patient % len(kinds) or not 0 < images_per_patient // len(kinds) <= counts.min()
    ):
        msg = (
            f"Expected training.images_per_patient to be a multiple of {len(kinds)} (equally many of every class) "
            f"up to {len(strata)}, found {images_per_patient}."
        )
        raise UserError(msg)


def gather(data: Records, records: np.ndarray, images: np.ndarray) -> tuple[ChosenImages, Tensor]:
    """Return images of shape (patient, image, 1, row, column), not yet looked up, and labels of (patient, image)."""
    device = data.images.device
    rows, columns = (to_device(torch.from_numpy(chosen), device) for chosen in (records, images))
    return ChosenImages(data.images, rows, columns), data.labels_of(rows, columns)
