"""The first task: tell the pulse sequence of an axial slice of a brain volume, from its k-space, image or features."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional

from zetadp.base.storage import Items, present
from zetadp.base.tensors import load_tensors, tensors_digest
from zetadp.base.validation import Count, OneOf, Positive, UserError
from zetadp.core.metrics import volume_accuracy
from zetadp.core.plan import Plan
from zetadp.core.records import LabelledItems
from zetadp.core.task import Classification, Words, places_of
from zetadp.mri.decathlon import AXES, SEQUENCES, read_task
from zetadp.mri.kspace import to_kspace, whiten_records
from zetadp.mri.slicing import SPACING
from zetadp.nn.backbone import Backbone, load_backbone
from zetadp.nn.settings import DECISIONS, FEATURES, IMAGE, STUDY, TOGETHER, VOLUME

logger = logging.getLogger(__name__)

PUBLIC_FEATURES = Path(__file__).parents[2] / "data/abstention_study.safetensors"
"""The package's file of public features, to which the thresholds of a model are fitted."""
ALONE = "alone"
"""Column of predictions with what an image by itself says."""
KEEN = 10.0
"""How strongly a record prefers the head that explains it better, found on public patients (docs/settings.md)."""


@dataclass(frozen=True)
class BrainSequences(Classification):
    """Pulse sequences of slices; every record has as many slices of each of its sequences.

    A record may lack some of the sequences. It still has items and outputs for them, which are NaN.

    Attributes
    ----------
    slices, spacing
        Number of centre planes of each sequence of a record, and their distance in mm (`Volume.centre_slices`).
    size
        Side of a slice in pixels.
    decision
        `IMAGE`: each image is classified by itself. `SLICE`: the images of a slice are classified together, one of
        each sequence. `VOLUME`: so are the volumes of a record, and all slices of a volume get the same answer. With
        the latter two, every table of outputs must hold whole records.
    """

    classes: int | None = len(SEQUENCES)
    balanced: bool = True
    slices: Count = 20
    size: Count = 32
    decision: Annotated[str, OneOf(DECISIONS)] = IMAGE
    spacing: Positive = SPACING

    called = "sequence"

    @property
    def names(self) -> tuple[str, ...]:
        """The sequences."""
        return SEQUENCES

    def input_shape(self, domain: str, backbone: Backbone | None) -> tuple[int, ...]:
        """Return the shape of what a network takes of one slice."""
        if domain not in FEATURES:
            return (1, self.size, self.size)
        return (1, 1, of_brains(backbone).components)

    def load(self, files: Sequence[Path], partition: pd.DataFrame, role: str, device: torch.device) -> LabelledItems:
        """Return the slices of all records with one role, and whose they are (`zetadp.core.task.PipelineTask.load`)."""
        images, rows = load_role(files, partition, role)
        count, slices = images.shape[1:3]
        items = rows.loc[rows.index.repeat(count * slices)].reset_index(drop=True)
        table = items.assign(slice=np.tile(np.arange(slices), len(rows) * count))
        return replace(to_records(images, device), items=table)

    def site(
        self, folder: Path, plan: Plan, cache: Path, *, part: str, patients: int, backbone: Backbone | None
    ) -> LabelledItems:
        """Check and prepare the volumes of one site, once (`zetadp.core.task.SiteTask.site`)."""
        from zetadp.mri.index import index_cohort
        from zetadp.mri.volumes import ChangedError, read_centre_slices

        train, test = (patients, 0) if part == "train" else (0, patients)
        table = index_cohort(folder, train_patients=train, test_patients=test, slices=self.slices, spacing=self.spacing)
        domain = plan.network.domain
        made_by = plan.public.get("backbone") if domain in FEATURES else None
        key = [self.slices, self.spacing, self.size, domain, made_by, table[["record", "sha256"]].to_numpy().tolist()]
        path = cache / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]}.h5"
        if not path.exists():
            order, wanted = read_task(folder).sequences_of, (self.slices, self.size, self.spacing)
            indexed = zip(table["file"], table["sha256"], strict=True)
            try:
                read = [read_centre_slices(folder / file, order(file), *wanted, sha256=sha) for file, sha in indexed]
            except ChangedError as error:
                raise UserError(f"{error} Run again when no program writes to {folder}.") from None
            prepared = Items({"values": prepare(np.stack(read), domain, backbone)}, table[["record"]])
            prepared.write(path, AXES, "prepared for training")
            logger.info("prepared %d records of %d patients", len(table), table["patient"].nunique())
        each = len(SEQUENCES) * self.slices
        items = table.loc[table.index.repeat(each), ["patient", "record"]].reset_index(drop=True)
        images = Items.read(path, ("values",)).arrays["values"]
        return replace(to_records(images, torch.device("cpu")), items=items)

    def backbone(self, file: Path, device: torch.device) -> Backbone:
        """Return the public backbone."""
        return of_brains(load_backbone(file, device))

    @property
    def words(self) -> Words:
        """What a model's card says (`zetadp.core.task.PipelineTask.words`)."""
        together = f" {TOGETHER[self.decision]}." if self.decision in TOGETHER else ""
        return Words(
            title="MRI sequence classifier",
            about=f"It classifies the pulse sequence ({', '.join(SEQUENCES)}) of an axial slice of a brain MRI.",
            inputs="A 4-D NIfTI volume in the layout of the Medical Segmentation Decathlon: axes x, y, z and sequence. "
            "It is preprocessed as in training: canonical orientation, centre slices along the axial axis, area "
            "resize, and then as the network takes it. The settings travel with the model.",
            outputs=f"For each slice the name of the sequence and its probability.{together}",
            usage="zetadp predict MODEL VOLUME",
            limits=(
                "Not for clinical use, and not a medical device.",
                "It always answers with one of its sequences, also for a volume that holds none of them.",
            ),
        )

    def words_of(self, domain: str, backbone: Backbone | None) -> Words:
        """Return what the card of a model says: whether `zetadp predict` abstains depends on its features."""
        if not has_thresholds(domain, backbone):
            return self.words
        limits = (
            self.words.limits[0],
            "It is for brain volumes with its sequences. `zetadp predict` names no sequence if the model is "
            "unsure, or if a volume is unlike those from which its public features were learnt; --anyway names the "
            "likeliest one. The thresholds come from simulated patients, so on other scanners more or fewer of its "
            "answers may be right.",
        )
        return self.words._replace(limits=limits)

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return the probability of each sequence, of an image or given that those of a slice or record all differ.

        The images of whole records come record by record, then sequence by sequence. The slices of a volume resemble
        each other, so together they count as one image with their mean score. Of sequences that a record lacks, scores
        and probabilities are NaN.
        """
        if self.decision == IMAGE:
            return super().probabilities(outputs)
        count = outputs.shape[1]
        images = outputs.reshape(-1, count, self.slices, count).transpose(1, 2)  # record, slice, image, class
        if self.decision == VOLUME:
            images = images.log_softmax(dim=-1).mean(dim=1, keepdim=True).expand_as(images)
        shares = by_orders(images)
        return shares.transpose(1, 2).reshape(outputs.shape)

    def beside(self, own: Tensor, public: Tensor, keen: float = KEEN) -> Tensor:
        """Return scores between those of the trained and of the public head, with one weight a record.

        A head explains a record as well as its mean scores of the four volumes make the likeliest order of the
        sequences: the log of the product of the four softmax values. The trained head has the weight of the logistic
        function of ``keen`` times how much better it explains the record. So where private training has taught nothing
        about a record, the public head decides.
        """
        trained, known = (_explained(self._by_volume(scores).mean(dim=2)) for scores in (own, public))
        weight = (keen * (trained - known)).sigmoid()[:, None, None, None]
        mixed = weight * self._by_volume(own) + (1 - weight) * self._by_volume(public)
        return mixed.reshape(own.shape)

    def _by_volume(self, scores: Tensor) -> Tensor:
        """Return scores of shape (item, class) as (record, volume, slice, class)."""
        return scores.reshape(-1, scores.shape[1], self.slices, scores.shape[1])

    def measure(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Any]:
        """Return true and predicted sequence with its probability; for images together, also what each one says."""
        told = super().measure(outputs, targets)
        if self.decision == IMAGE:
            return told
        return {**told, ALONE: [SEQUENCES[i] for i in outputs.argmax(dim=1).tolist()]}

    def summarise(self, predictions: pd.DataFrame) -> dict[str, Any]:
        """Return accuracy and errors by sequence, and the accuracy of a vote of each volume's slices.

        Where images are classified together, also the decision, and the accuracy of each image by itself.
        """
        found = {**super().summarise(predictions), "volume_accuracy": volume_accuracy(predictions, SEQUENCES)}
        if self.decision != IMAGE:
            found["decision"] = self.decision
            found["image_accuracy"] = float((predictions[ALONE] == predictions[self.called]).mean())
        return found


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


def _explained(scores: Tensor) -> Tensor:
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


task = BrainSequences
