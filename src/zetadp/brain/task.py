"""The pipeline's task: name the pulse sequence of an axial slice of a brain volume, from k-space, image or features.

Every start of the workflow makes this task, so modules that take seconds to import are imported inside functions.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from zetadp.base.storage import Items
from zetadp.base.validation import Count, OneOf, Positive, UserError, Within
from zetadp.mri.decathlon import AXES, SEQUENCES, read_task
from zetadp.mri.slicing import SPACING
from zetadp.nn.settings import DECISIONS, FEATURES, IMAGE, TOGETHER, VOLUME
from zetadp.training.task import Classification, Words

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from torch import Tensor

    from zetadp.nn.backbone import Backbone
    from zetadp.training.plan import Plan
    from zetadp.training.records import LabelledItems

logger = logging.getLogger(__name__)

ALONE = "alone"
"""Column of predictions with the answer for an image alone."""
KEEN = 10.0
"""Strength of a record's preference for the head that explains it better, from public patients (docs/settings.md)."""


@dataclass(frozen=True)
class Slices:
    """Choice of the slices of a volume, and their size.

    Attributes
    ----------
    count
        Centre planes along the axial axis, of each sequence. The image of a plane is that of the nearest slice.
    spacing
        Distance of two planes in mm, independent of the distance of slices in a file. Without a distance in a file,
        slices are counted.
    size
        Side of the square slices after area averaging, in pixels.
    decision
        Unit of classification, in the task of pulse sequences. image is each image separately; slice is the images
        of all sequences of a slice together, one of each sequence; volume is the volumes of all sequences of a patient
        together, one of each.
    """

    count: Count = 20
    spacing: Positive = SPACING
    size: Annotated[int, Within(ge=8)] = 32
    decision: Annotated[str, OneOf(DECISIONS)] = IMAGE


@dataclass(frozen=True)
class BrainSequences(Classification):
    """Pulse sequences of slices; a record has the same number of slices of each of its sequences.

    A record may lack some of the sequences. It still has items and outputs for them, which are NaN.

    Attributes
    ----------
    slices, spacing
        Number of centre planes of each sequence of a record, and their distance in mm (`Volume.centre_slices`).
    size
        Side of a slice in pixels.
    decision
        `IMAGE`: each image is classified separately. `SLICE`: the images of a slice are classified together, one of
        each sequence. `VOLUME`: the volumes of a record are, too, and all slices of a volume get the same answer. With
        the latter two, every table of outputs must hold whole records.
    """

    classes: int | None = len(SEQUENCES)
    balanced: bool = True
    slices: Count = 20
    size: Count = 32
    decision: Annotated[str, OneOf(DECISIONS)] = IMAGE
    spacing: Positive = SPACING

    called = "sequence"
    simulates = True
    downloads = True
    attackable = True
    """Whether attacks on messages of training know the items."""

    @staticmethod
    def settings_of(slices: Slices) -> dict[str, Any]:
        """Return the settings of the task, which have a section of the configuration to themselves.

        Values of earlier versions are left out, so that plans do not change.
        """
        decision = {"decision": slices.decision} if slices.decision != IMAGE else {}
        spacing = {"spacing": slices.spacing} if slices.spacing != SPACING else {}
        return {"slices": slices.count, "size": slices.size, **decision, **spacing}

    def cohort_faults(self, cohort: Any) -> Iterator[str]:  # noqa: ANN401  (a section of the configuration, above)
        """Yield the faults of a section ``cohort`` that takes the official data of the Decathlon."""
        if cohort.source == "download" and not cohort.real:
            yield "cohort.real_patients: expected true for the Decathlon's patients; found false."
        if cohort.source == "download" and cohort.one_record_per_patient:
            yield "cohort.one_record_per_patient: expected false: the Decathlon has several scans of some patients."

    @property
    def items_of_a_record(self) -> int:
        """The declared number of images of a record."""
        return len(SEQUENCES) * self.slices

    @property
    def names(self) -> tuple[str, ...]:
        """The sequences."""
        return SEQUENCES

    def input_shape(self, domain: str, backbone: Backbone | None) -> tuple[int, ...]:
        """Return the shape of a network's input for one slice."""
        if domain not in FEATURES:
            return (1, self.size, self.size)
        from zetadp.brain.images import check_backbone

        return (1, 1, check_backbone(backbone).components)

    def load(self, files: Sequence[Path], partition: pd.DataFrame, role: str, device: torch.device) -> LabelledItems:
        """Return the slices of all records with one role, as `zetadp.training.task.PipelineTask.load`."""
        from zetadp.brain.images import load_role, to_records

        images, rows = load_role(files, partition, role)
        count, slices = images.shape[1:3]
        items = rows.loc[rows.index.repeat(count * slices)].reset_index(drop=True)
        table = items.assign(slice=np.tile(np.arange(slices), len(rows) * count))
        return replace(to_records(images, device), items=table)

    def site(
        self, folder: Path, plan: Plan, cache: Path, *, part: str, patients: int, backbone: Backbone | None
    ) -> LabelledItems:
        """Check and prepare the volumes of one site, once (`zetadp.training.task.SiteTask.site`)."""
        import torch

        from zetadp.brain.images import prepare, to_records
        from zetadp.mri.index import index_cohort
        from zetadp.mri.volumes import ChangedError, read_centre_slices

        train, test = (patients, 0) if part == "train" else (0, patients)
        table = index_cohort(folder, train_patients=train, test_patients=test, slices=self.slices, spacing=self.spacing)
        domain = plan.network.domain
        made_by = plan.public.get("backbone") if domain in FEATURES else None
        key = [self.slices, self.spacing, self.size, domain, made_by, table[["record", "sha256"]].to_numpy().tolist()]
        path = cache / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]}.h5"
        if not path.exists():
            order, shape = read_task(folder).sequences_of, (self.slices, self.size, self.spacing)
            indexed = zip(table["file"], table["sha256"], strict=True)
            try:
                read = [read_centre_slices(folder / file, order(file), *shape, sha256=sha) for file, sha in indexed]
            except ChangedError as error:
                raise UserError(f"{error} Run again when no program writes to {folder}.") from None
            prepared = Items({"values": prepare(np.stack(read), domain, backbone)}, table[["record"]])
            prepared.write(path, AXES, "prepared for training")
            logger.info("prepared %d records of %d patients", len(table), table["patient"].nunique())
        n_images = len(SEQUENCES) * self.slices
        items = table.loc[table.index.repeat(n_images), ["patient", "record"]].reset_index(drop=True)
        images = Items.read(path, ("values",)).arrays["values"]
        return replace(to_records(images, torch.device("cpu")), items=items)

    def backbone(self, file: Path, device: torch.device) -> Backbone:
        """Return the public backbone."""
        from zetadp.brain.images import check_backbone
        from zetadp.nn.backbone import load_backbone

        return check_backbone(load_backbone(file, device))

    @property
    def words(self) -> Words:
        """Texts of a model's card (`zetadp.training.task.PipelineTask.words`)."""
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
        """Return the texts of a model's card: whether `zetadp predict` abstains depends on its features."""
        from zetadp.brain.images import has_thresholds

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
        """Return the probability of each sequence: of an image, or given that all of a slice or record differ.

        The images of whole records come record by record, then sequence by sequence. The slices of a volume resemble
        each other, so together they count as one image with their mean score. Of sequences that a record lacks, scores
        and probabilities are NaN.
        """
        if self.decision == IMAGE:
            return super().probabilities(outputs)
        from zetadp.brain.images import by_orders

        count = outputs.shape[1]
        images = outputs.reshape(-1, count, self.slices, count).transpose(1, 2)  # record, slice, image, class
        if self.decision == VOLUME:
            images = images.log_softmax(dim=-1).mean(dim=1, keepdim=True).expand_as(images)
        shares = by_orders(images)
        return shares.transpose(1, 2).reshape(outputs.shape)

    def combine_scores(self, trained: Tensor, public: Tensor, keen: float = KEEN) -> Tensor:
        """Return scores between those of the trained and of the public head, with one weight per record.

        A head's fit to a record is the log-likelihood that its mean scores of the four volumes give the likeliest order
        of the sequences: the log of the product of the four softmax values. The weight of the trained head is the
        logistic function of ``keen`` times the difference of the two fits. The public head therefore decides for
        records unlike those of the private training.
        """
        from zetadp.brain.images import best_log_likelihood

        trained_fit, public_fit = (
            best_log_likelihood(self._by_volume(scores).mean(dim=2)) for scores in (trained, public)
        )
        weight = (keen * (trained_fit - public_fit)).sigmoid()[:, None, None, None]
        mixed = weight * self._by_volume(trained) + (1 - weight) * self._by_volume(public)
        return mixed.reshape(trained.shape)

    def _by_volume(self, scores: Tensor) -> Tensor:
        """Return scores of shape (item, class) as (record, volume, slice, class)."""
        return scores.reshape(-1, scores.shape[1], self.slices, scores.shape[1])

    def measure(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Any]:
        """Return true and predicted sequence and its probability; for images together, also each image's answer."""
        columns = super().measure(outputs, targets)
        if self.decision == IMAGE:
            return columns
        return {**columns, ALONE: [SEQUENCES[i] for i in outputs.argmax(dim=1).tolist()]}

    def summarise(self, predictions: pd.DataFrame) -> dict[str, Any]:
        """Return accuracy and errors by sequence, and the accuracy of a vote of each volume's slices.

        If images are classified together, the decision and the accuracy of single images are added.
        """
        from zetadp.brain.images import volume_accuracy

        metrics = {**super().summarise(predictions), "volume_accuracy": volume_accuracy(predictions, SEQUENCES)}
        if self.decision != IMAGE:
            metrics["decision"] = self.decision
            metrics["image_accuracy"] = float((predictions[ALONE] == predictions[self.called]).mean())
        return metrics


task = BrainSequences
