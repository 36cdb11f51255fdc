"""The pipeline's task: name the pulse sequence of an axial slice of a brain volume, from k-space, image or features.

Every start of the workflow makes this task, so modules that take seconds to import are imported inside functions.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from zetadp.base.storage import Items
from zetadp.base.validation import OneOf, Positive, UserError, Within
from zetadp.brain.settings import Pretraining
from zetadp.mri.decathlon import AXES, SEQUENCES, read_task
from zetadp.mri.slicing import PLANES, SIZE, SPACING, PlaneCount, centre_slices
from zetadp.nn.settings import FEATURES
from zetadp.training.task import Classification, Words

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from torch import Tensor

    from zetadp.brain.backbone import Backbone
    from zetadp.nn.settings import NetworkSettings
    from zetadp.training.plan import Plan
    from zetadp.training.records import LabelledItems

logger = logging.getLogger(__name__)

ALONE = "alone"
"""Column of predictions with the answer for an image alone."""
DECISIONS = IMAGE, SLICE, VOLUME = ("image", "slice", "volume")
"""Inputs of one decision: an image, or images or volumes of all sequences together."""
TOGETHER = {
    SLICE: "The images of a slice are classified together, one of each sequence.",
    VOLUME: "The volumes of a patient are classified together, one of each sequence.",
}
"""Sentences of cards and notes on a decision about several images."""
VOTES = "Volume accuracy: each volume by the vote of its slices."
SINGLE = "Image accuracy: each image by itself."
KEEN = 10.0
"""Strength of a record's preference for the head that explains it better, from public patients (docs/settings.md)."""


@dataclass(frozen=True)
class BrainSequences(Classification):
    """Pulse sequences of slices; a record has the same number of slices of each of its sequences.

    A record may lack some of the sequences. It still has items and outputs for them, which are NaN.

    Attributes
    ----------
    slices
        Centre planes along the axial axis, of each sequence. The image of a plane is that of the nearest slice.
    spacing
        Distance of two planes in mm, independent of the distance of slices in a file. Without a distance in a file,
        slices are counted.
    size
        Side of the square slices after area averaging, in pixels.
    decision
        Unit of classification: each image by itself; the images of all sequences of a slice together, one of each
        sequence; or the volumes of all sequences of a record together, one of each, so that all slices of a volume get
        the same answer. With slice and volume, every table of outputs must hold whole records.
    pretraining
        Training of a public backbone in this workflow, on simulated patients only (docs/pretraining.md); null takes the
        backbone that comes with the package.
    """

    classes: int | None = field(default=len(SEQUENCES), init=False)
    balanced: bool = field(default=True, init=False)
    slices: PlaneCount = PLANES
    spacing: Positive = SPACING
    size: Annotated[int, Within(ge=8, le=1024)] = SIZE
    decision: Annotated[str, OneOf(DECISIONS)] = SLICE
    pretraining: Pretraining | None = None

    before_training = ("pretraining",)
    signal = 0.009
    """Signal in the first component of the public features, found on public patients (docs/settings.md)."""
    called = "sequence"
    simulates = True
    downloads = True
    attackable = True
    """Whether attacks on messages of training know the items."""

    def cohort_faults(self, cohort: Any) -> Iterator[str]:  # noqa: ANN401  (a section of the configuration, above)
        """Yield planes outside of simulated volumes, and declarations that contradict the Decathlon's data."""
        if cohort.source == "simulated":
            thickness = cohort.simulated.voxels().voxel[2]
            try:
                centre_slices(cohort.simulated.grid[2], self.slices, self.spacing / thickness)
            except ValueError as error:
                yield (
                    f"task.settings.slices: {self.slices} planes {self.spacing:g} mm apart need a larger "
                    f"cohort.simulated.grid, whose slices are {thickness:g} mm thick: {error}."
                )
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
        from zetadp.mri.nifti import ChangedError
        from zetadp.mri.volumes import read_centre_slices

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

    def packaged(self, network: NetworkSettings) -> Path:
        """Return the file of the packaged backbone (`zetadp.training.task.SiteTask.packaged`)."""
        from zetadp.brain.backbone import shipped_backbone

        return shipped_backbone(network)

    def restored(self, tensors: Mapping[str, Tensor], content: Mapping[str, Any], device: torch.device) -> Backbone:
        """Return the backbone in a model's file (`zetadp.training.task.PipelineTask`)."""
        from zetadp.brain.backbone import from_tensors

        return from_tensors(tensors, content, device)

    def backbone(self, file: Path, device: torch.device) -> Backbone:
        """Return the public backbone."""
        from zetadp.brain.backbone import load_backbone
        from zetadp.brain.images import check_backbone

        return check_backbone(load_backbone(file, device))

    @property
    def words(self) -> Words:
        """Texts of a model's card (`zetadp.training.task.PipelineTask.words`)."""
        together = f" {TOGETHER[self.decision]}" if self.decision in TOGETHER else ""
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

        If images are classified together, the accuracy of single images is added.
        """
        from zetadp.brain.images import volume_accuracy

        further, note = {"volume_accuracy": volume_accuracy(predictions, SEQUENCES)}, VOTES
        if self.decision != IMAGE:
            alone = float((predictions[ALONE] == predictions[self.called]).mean())
            further, note = {"image_accuracy": alone, **further}, f"{TOGETHER[self.decision]} {SINGLE} {VOTES}"
        return {**super().summarise(predictions), **further, "further": list(further), "notes": [note]}


task = BrainSequences
