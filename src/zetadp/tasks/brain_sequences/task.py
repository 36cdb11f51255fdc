"""The pipeline's task: name the pulse sequence of an axial slice of a brain volume, from k-space, image or features.

Every start of the workflow makes this task, so what takes seconds to import is imported where it is used.
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
from zetadp.core.task import Classification, Words
from zetadp.mri.decathlon import AXES, SEQUENCES, read_task
from zetadp.mri.slicing import SPACING
from zetadp.nn.settings import DECISIONS, FEATURES, IMAGE, TOGETHER, VOLUME

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from torch import Tensor

    from zetadp.core.plan import Plan
    from zetadp.core.records import LabelledItems
    from zetadp.nn.backbone import Backbone

logger = logging.getLogger(__name__)

ALONE = "alone"
"""Column of predictions with what an image by itself says."""
KEEN = 10.0
"""How strongly a record prefers the head that explains it better, found on public patients (docs/settings.md)."""


@dataclass(frozen=True)
class Slices:
    """Which slices of a volume are used, and their size.

    Attributes
    ----------
    count
        Centre planes along the axial axis, of each sequence. The image of a plane is that of the nearest slice.
    spacing
        Distance of two planes in mm, whatever the distance of the slices in a file. In a file that gives none, slices
        are counted.
    size
        Side of the square slices after area averaging, in pixels.
    decision
        What is classified at once, in the task of pulse sequences. image is each image by itself; slice is the images
        of all sequences of a slice together, one of each sequence; volume is the volumes of all sequences of a patient
        together, one of each.
    """

    count: Count = 20
    spacing: Positive = SPACING
    size: Annotated[int, Within(ge=8)] = 32
    decision: Annotated[str, OneOf(DECISIONS)] = IMAGE


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
    simulates = True
    downloads = True
    attackable = True
    """Whether attacks on messages of training know the items."""

    @staticmethod
    def settings_of(slices: Slices) -> dict[str, Any]:
        """Return the settings of the task, which have a section of the configuration to themselves.

        What is as in earlier versions is left out, so that plans stay what they were.
        """
        decided = {"decision": slices.decision} if slices.decision != IMAGE else {}
        spaced = {"spacing": slices.spacing} if slices.spacing != SPACING else {}
        return {"slices": slices.count, "size": slices.size, **decided, **spaced}

    def cohort_faults(self, cohort: Any) -> Iterator[str]:  # noqa: ANN401  (a section of the configuration, above)
        """Yield what is wrong of a section ``cohort`` that takes the official data of the Decathlon."""
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
        """Return the shape of what a network takes of one slice."""
        if domain not in FEATURES:
            return (1, self.size, self.size)
        from zetadp.tasks.brain_sequences.images import of_brains

        return (1, 1, of_brains(backbone).components)

    def load(self, files: Sequence[Path], partition: pd.DataFrame, role: str, device: torch.device) -> LabelledItems:
        """Return the slices of all records with one role, and whose they are (`zetadp.core.task.PipelineTask.load`)."""
        from zetadp.tasks.brain_sequences.images import load_role, to_records

        images, rows = load_role(files, partition, role)
        count, slices = images.shape[1:3]
        items = rows.loc[rows.index.repeat(count * slices)].reset_index(drop=True)
        table = items.assign(slice=np.tile(np.arange(slices), len(rows) * count))
        return replace(to_records(images, device), items=table)

    def site(
        self, folder: Path, plan: Plan, cache: Path, *, part: str, patients: int, backbone: Backbone | None
    ) -> LabelledItems:
        """Check and prepare the volumes of one site, once (`zetadp.core.task.SiteTask.site`)."""
        import torch

        from zetadp.mri.index import index_cohort
        from zetadp.mri.volumes import ChangedError, read_centre_slices
        from zetadp.tasks.brain_sequences.images import prepare, to_records

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
        from zetadp.nn.backbone import load_backbone
        from zetadp.tasks.brain_sequences.images import of_brains

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
        from zetadp.tasks.brain_sequences.images import has_thresholds

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
        from zetadp.tasks.brain_sequences.images import by_orders

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
        from zetadp.tasks.brain_sequences.images import explained

        trained, known = (explained(self._by_volume(scores).mean(dim=2)) for scores in (own, public))
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
        from zetadp.tasks.brain_sequences.images import volume_accuracy

        found = {**super().summarise(predictions), "volume_accuracy": volume_accuracy(predictions, SEQUENCES)}
        if self.decision != IMAGE:
            found["decision"] = self.decision
            found["image_accuracy"] = float((predictions[ALONE] == predictions[self.called]).mean())
        return found


task = BrainSequences
