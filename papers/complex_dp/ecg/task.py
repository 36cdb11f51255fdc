"""Detect left bundle branch block (LBBB) in recordings (Ziller et al., section 5.2). The unit is the patient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from papers.complex_dp.ecg.recordings import LABELS
from papers.complex_dp.roc import area, areas, placements
from zetadp.base.randomness import Purpose, stream
from zetadp.base.validation import UserError
from zetadp.training.metrics import REPLICATES, bootstrapped, of_confusion, percentile_interval, resamples
from zetadp.training.task import Words, records_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from zetadp.training.records import LabelledItems

THRESHOLD = 0.5


@dataclass(frozen=True)
class Ecg:
    """Classification of recordings: LBBB or normal."""

    outputs = 1
    metric = "ROC-AUC"
    called = "diagnosis"
    simulates = True
    rules = Path(__file__).parents[1] / "rules/ecg.smk"

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the binary cross-entropy of each item, shape (item,).

        Parameters
        ----------
        outputs
            Scores before the logistic function, shape (item, 1).
        targets
            Labels, 0 or 1, shape (item,).
        """
        from torch.nn import functional  # takes seconds to import

        return functional.binary_cross_entropy_with_logits(outputs[:, 0], targets, reduction="none")

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the share of each item (`papers.complex_dp.roc.placements`). The mean of the shares is the area."""
        import torch

        shares = placements(outputs[:, 0].cpu().double().numpy(), targets.cpu().numpy() > THRESHOLD)
        return torch.from_numpy(shares).to(outputs)

    def measure(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Any]:
        """Return the true label and the score of each item, before the logistic function."""
        return {
            self.called: [LABELS[int(label)] for label in targets.cpu().tolist()],
            "score": outputs[:, 0].cpu().double().numpy(),
        }

    def summarise(self, predictions: pd.DataFrame) -> dict[str, Any]:
        """Return the area under the ROC curve over patients, its interval, and the accuracy at a threshold of one half.

        A patient's score is the mean over the patient's recordings. ``replicates`` are the areas in resamples of
        patients. Runs with the same test patients use the same resamples.

        Raises
        ------
        UserError
            If there are no predictions, or some are not finite.
        """
        if predictions.empty or not np.isfinite(predictions["score"]).all():
            raise UserError(
                "Expected finite scores of at least one recording, found none or values that are not finite. Train the "
                "run again."
            )
        ill = predictions[self.called] == LABELS[1]
        patients = of_patients(predictions["patient"], predictions["score"], ill)
        scores, labels = patients["score"].to_numpy(), patients["label"].to_numpy(dtype=bool)
        shares = placements(scores, labels)
        resampled = replicates(scores, labels, stream(0, Purpose.BOOTSTRAP))
        low, high = percentile_interval(resampled)
        return {
            "metric": self.metric,
            self.metric: area(scores, labels),
            f"{self.metric}_interval": bootstrapped(low, high, "patients of each label", REPLICATES),
            "replicates": [round(float(value), 6) for value in resampled],
            "items_called": "recordings",
            "images": len(predictions),
            "patients": len(patients),
            "per_patient": dict(zip(patients.index, shares.tolist(), strict=True)),
            "per_patient_images": predictions["patient"].astype(str).value_counts().to_dict(),
            **self._at_threshold(labels, scores > 0),
        }

    def _at_threshold(self, labels: np.ndarray, said: np.ndarray) -> dict[str, Any]:
        """Return accuracy and confusion of patients at the threshold."""
        confusion = np.zeros((len(LABELS), len(LABELS)), dtype=np.int64)
        np.add.at(confusion, (labels.astype(int), said.astype(int)), 1)
        return {
            "called": self.called,
            "classes": list(LABELS),
            "accuracy": float((labels == said).mean()),
            **of_confusion(confusion, LABELS),
        }

    def load(self, files: Sequence[Path], partition: pd.DataFrame, role: str, device: torch.device) -> LabelledItems:
        """Return the recordings with one role (`zetadp.training.task.PipelineTask.load`)."""
        return records_of(files, partition, role, device)

    def backbone(self, file: Path, device: torch.device) -> None:
        """Return None. The encoder only computes features, and no training starts from it."""

    @property
    def words(self) -> Words:
        """The texts for the model card (`zetadp.training.task.PipelineTask.words`)."""
        return Words(
            title="Classifier of left bundle branch block",
            about="It detects left bundle branch block.",
            inputs="Of an electrocardiogram: public features of the usual beat in twelve leads, or the spectrum or "
            "the signal of the first second of one lead.",
            outputs="A score, which is higher with left bundle branch block.",
            limits=("A test bed for methods: not for the diagnosis of anybody.",),
        )


def of_patients(patients: pd.Series, scores: pd.Series, labels: pd.Series) -> pd.DataFrame:
    """Return the mean score and the label of each patient, sorted by name.

    Parameters
    ----------
    patients, scores, labels
        Patient, score and label of each item. All items of a patient have one label.

    Returns
    -------
    Table with the patients as index and columns ``score`` and ``label``.
    """
    table = pd.DataFrame({"patient": patients.astype(str), "score": scores, "label": labels})
    return table.groupby("patient").agg(score=("score", "mean"), label=("label", "first"))


def replicates(scores: np.ndarray, labels: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return the areas in bootstrap resamples of patients. The patients of each label are resampled separately.

    Parameters
    ----------
    scores, labels
        Score of each patient, and whether the patient is ill, shape (patient,).
    random
        Generator of the resamples. Equal generators give equal resamples if the labels are equal.

    Returns
    -------
    Shape (resample,). All values are NaN if one of the labels is missing.
    """
    labels = np.asarray(labels, dtype=bool)
    times = np.zeros((REPLICATES, len(labels)))
    for group in (labels, ~labels):
        if group.any():
            times[:, group] = resamples(int(group.sum()), random)
    return areas(scores, labels, times)
