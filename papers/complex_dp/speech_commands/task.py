"""Spoken commands: classify the word in a clip of one second (Ziller et al., section 5.3).

A setting chooses the unit of the guarantee: one clip, as in the paper, or one speaker with all clips. Only the second
choice protects a person.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pandas as pd

from papers.complex_dp.roc import area_shares, macro_area
from papers.complex_dp.speech_commands.clips import NAMES, WORDS
from zetadp.base.randomness import Purpose, stream
from zetadp.base.validation import Count, OneOf
from zetadp.training.metrics import bootstrapped, percentile_interval, resamples
from zetadp.training.task import Classification, Words, records_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from papers.complex_dp.speech_commands.encoder import WordEncoder
    from zetadp.training.records import LabelledItems

REPLICATES = 1000
UNITS = ("clip", "speaker")
SCORES = [f"score_{word}" for word in WORDS]
"""Columns of the table of predictions with the probability of each word."""


@dataclass(frozen=True)
class SpeechCommands(Classification):
    """Classification of eight spoken words.

    Attributes
    ----------
    unit
        The unit of the guarantee, which is drawn and clipped: ``clip`` or ``speaker``.
    clips_of_a_speaker
        Largest number of training clips per speaker, a public constant. Further clips are dropped by a rule that
        depends on this speaker's clips alone.
    """

    classes: int | None = len(WORDS)
    unit: Annotated[str, OneOf(UNITS)] = "clip"
    clips_of_a_speaker: Count = 40

    metric = "auc"
    called = "word"
    rules = Path(__file__).parents[1] / "rules/speech_commands.smk"
    of_patients = False

    @property
    def names(self) -> tuple[str, ...]:
        """The words."""
        return WORDS

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return one number per clip. Their mean is the area under the ROC curve of these clips."""
        import torch

        shares = area_shares(targets.cpu().numpy(), self.probabilities(outputs).cpu().double().numpy())
        return torch.from_numpy(shares).float().to(outputs.device)

    def measure(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Any]:
        """Return the true word, the predicted word and its probability, and the probability of every word."""
        every = self.probabilities(outputs).cpu().double().numpy()
        return {**super().measure(outputs, targets), **dict(zip(SCORES, every.T, strict=True))}

    def summarise(self, predictions: pd.DataFrame) -> dict[str, Any]:
        """Return the area under the ROC curve and the accuracy, with intervals over speakers."""
        # Intervals are over speakers for both units, because clips of one speaker resemble each other.
        of_speakers = predictions.drop(columns=SCORES).assign(patient=predictions["speaker"])
        summary = super().summarise(of_speakers)
        labels = predictions[self.called].map(WORDS.index).to_numpy()
        scores, owners = predictions[SCORES].to_numpy(), predictions["speaker"].to_numpy()
        low, high = interval(labels, scores, owners, stream(0, Purpose.BOOTSTRAP))
        shares = pd.Series(area_shares(labels, scores)).groupby(owners).mean()
        return summary | {
            "metric": self.metric,
            "auc": float(macro_area(labels, scores)[0]),
            "auc_interval": bootstrapped(low, high, "speakers", REPLICATES),
            "per_patient": {str(speaker): float(share) for speaker, share in shares.items()},
        }

    def load(self, files: Sequence[Path], partition: pd.DataFrame, role: str, device: torch.device) -> LabelledItems:
        """Return the clips of the units with one role (`zetadp.training.task.PipelineTask.load`)."""
        return records_of(files, partition, role, device, names=NAMES)

    def backbone(self, file: Path, device: torch.device) -> WordEncoder:
        """Return the public encoder. Its head can be the start of private heads."""
        from papers.complex_dp.speech_commands.encoder import WordEncoder

        return WordEncoder.load(file)

    @property
    def words(self) -> Words:
        """The texts for the model card (`zetadp.training.task.PipelineTask.words`)."""
        return Words(
            title="Classifier of spoken commands",
            about=f"It classifies which of the words {', '.join(WORDS)} is spoken, from public features of a clip, its "
            f"complex spectrogram, or the magnitude of that. The unit of privacy is the {self.unit}.",
            inputs="A clip of one second, 16 kHz, one channel.",
            outputs="A score for each word.",
            limits=(
                "A test bed for methods, trained on few speakers.",
                "It always answers with one of its words, also for a clip that holds none of them.",
            ),
        )


def interval(
    labels: np.ndarray, scores: np.ndarray, owners: np.ndarray, generator: np.random.Generator
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of `macro_area` over owners. Its ends are NaN with fewer than two.

    Parameters
    ----------
    labels, scores
        Same as for `papers.complex_dp.roc.macro_area`.
    owners
        Owner of each item, such as a speaker, shape (item,). Owners are resampled with all of their items.
    generator
        Generator of the resamples.
    """
    names, owner_indices = np.unique(owners, return_inverse=True)
    if len(names) < 2:
        return float("nan"), float("nan")
    times = resamples(len(names), generator, REPLICATES)
    return percentile_interval(macro_area(labels, scores, times[:, owner_indices]))
