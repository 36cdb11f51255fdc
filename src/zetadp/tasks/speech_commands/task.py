"""Spoken commands: classify the word in a clip of one second (Ziller et al., section 5.3).

A setting chooses the unit of the guarantee: one clip, as in the paper, or one speaker with all clips. Only the second
choice protects a person.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from zetadp.base.randomness import Purpose, stream
from zetadp.base.storage import read_arrays, write_arrays
from zetadp.base.validation import one_of, positive
from zetadp.core.metrics import LEVEL, bootstrapped
from zetadp.core.task import Classification, Held, Words, places_of
from zetadp.tasks.speech_commands.clips import WORDS
from zetadp.tasks.speech_commands.discrimination import REPLICATES, auc_interval, auc_shares, macro_auc

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import torch
    from torch import Tensor

    from zetadp.tasks.speech_commands.encoder import WordEncoder

UNITS = NAMES = ("clip", "speaker")
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
    encoder
        Settings of the public encoder (`zetadp.tasks.speech_commands.encoder.WordEncoderSettings`).

    Raises
    ------
    ValueError
        If the unit is unknown or the number of clips is not positive.
    """

    classes: int | None = len(WORDS)
    unit: str = "clip"
    clips_of_a_speaker: int = 40
    encoder: Mapping[str, Any] = field(default_factory=dict)

    metric = "auc"
    called = "word"

    def __post_init__(self) -> None:
        """Check the settings."""
        one_of(UNITS, unit=self.unit)
        positive(clips_of_a_speaker=self.clips_of_a_speaker)

    @property
    def names(self) -> tuple[str, ...]:
        """The words."""
        return WORDS

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return one number per clip. Their mean is the area under the ROC curve of these clips."""
        import torch

        shares = auc_shares(targets.cpu().numpy(), self.probabilities(outputs).cpu().double().numpy())
        return torch.from_numpy(shares).float().to(outputs.device)

    def measure(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Any]:
        """Return the true word, the predicted word and its probability, and the probability of every word."""
        every = self.probabilities(outputs).cpu().double().numpy()
        return {**super().measure(outputs, targets), **dict(zip(SCORES, every.T, strict=True))}

    def summarise(self, predictions: pd.DataFrame) -> dict[str, Any]:
        """Return the area under the ROC curve and the accuracy, with intervals over speakers."""
        # Intervals are over speakers for both units, because clips of one speaker resemble each other.
        of_speakers = predictions.drop(columns=SCORES).assign(patient=predictions["speaker"])
        found = super().summarise(of_speakers)
        labels = predictions[self.called].map(WORDS.index).to_numpy()
        scores, owners = predictions[SCORES].to_numpy(), predictions["speaker"].to_numpy()
        low, high = auc_interval(labels, scores, owners, stream(0, Purpose.BOOTSTRAP), LEVEL)
        shares = pd.Series(auc_shares(labels, scores)).groupby(owners).mean()
        return found | {
            "metric": self.metric,
            "auc": float(macro_auc(labels, scores)[0]),
            "auc_interval": bootstrapped(low, high, "speakers", REPLICATES),
            "per_patient": {str(speaker): float(share) for speaker, share in shares.items()},
        }

    def load(self, files: Sequence[Path], partition: pd.DataFrame, role: str, device: torch.device) -> Held:
        """Return the clips of the units with one role (`zetadp.core.task.PipelineTask.load`)."""
        import torch  # takes seconds, and every start of the workflow makes a task

        from zetadp.core.records import Records

        (file,) = files
        rows = partition[partition["role"] == role].reset_index(drop=True)
        values, labels, clips = read_inputs(file)
        clips["record"] = clips[self.unit]
        own = places_of(rows["record"], clips["record"], f"{self.unit}s", file)
        items = clips.loc[own].merge(rows, on="record", how="left", validate="many_to_one")
        records = Records(torch.from_numpy(values[own][:, None]), torch.from_numpy(labels[own]))
        return Held(records.to(device), items)

    def backbone(self, file: Path, device: torch.device) -> WordEncoder:
        """Return the public encoder. Its head can be the start of private heads."""
        from zetadp.tasks.speech_commands.encoder import WordEncoder

        return WordEncoder.load(file)

    def words(self, network: Mapping[str, Any]) -> Words:
        """Return the texts for the model card (`zetadp.core.task.PipelineTask.words`)."""
        seen = {
            "features": "public features of the clip",
            "complex": "its complex spectrogram",
            "image": "the magnitude of its spectrogram",
        }[network["domain"]]
        kind = "real-valued" if network["domain"] == "image" else "complex-valued"
        return Words(
            title="Classifier of spoken commands",
            about=f"A {kind} network of family {network['family']} on {seen}. It classifies which of the words "
            f"{', '.join(WORDS)} is spoken. The unit of privacy is the {self.unit}.",
            inputs="A clip of one second, 16 kHz, one channel.",
            outputs="A score for each word.",
            usage="from zetadp.core.pretrained import load_model",
            limits=(
                "A test bed for methods, trained on few speakers.",
                "It always answers with one of its words, also for a clip that holds none of them.",
            ),
        )


def write_inputs(path: Path, values: np.ndarray, labels: np.ndarray, clips: pd.DataFrame) -> None:
    """Write the inputs of networks to HDF5.

    Parameters
    ----------
    path
        The file.
    values
        Complex spectrograms, shape (clip, frame, frequency), or features, shape (clip, 1, component).
    labels
        Position of each clip's word in `WORDS`.
    clips
        Table with columns ``clip`` and ``speaker``, in the order of the values.
    """
    about = {"axes": ["clip", "frame", "frequency"], "units": "1"}
    names = {column: tuple(clips[column]) for column in NAMES}
    write_arrays(path, {"values": values, "labels": labels}, names, about, {})


def read_inputs(path: Path) -> tuple[np.ndarray, np.ndarray, pd.DataFrame]:
    """Return the values, labels and clips that `write_inputs` wrote.

    Raises
    ------
    UserError
        If the file is missing or damaged, or has other contents.
    """
    (values, labels), names = read_arrays(path, "clips", ("values", "labels"), NAMES)
    return values, labels, pd.DataFrame(dict(zip(NAMES, names, strict=True)))


task = SpeechCommands
