"""PhaseMNIST: classify the digit in a complex image whose parts are two images of MNIST (Ziller et al., section 5.1).

MNIST does not identify the writers of its digits, so the unit of the guarantee is one example, and no epsilon is stated
for a writer. If imaginary parts are drawn with replacement, an image can be in several examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

from zetadp.base.validation import OneOf
from zetadp.core.task import Classification, Words, records_of
from zetadp.tasks.phase_mnist.digits import SIDE, inputs

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    import torch

    from zetadp.core.records import LabelledItems

COMPOSITES = ("drawn", "once", "none")
FEATURES = "features.h5"
"""Name of the file with an encoder's features."""


@dataclass(frozen=True)
class PhaseMnist(Classification):
    """Classification of digits in composite or plain examples.

    Attributes
    ----------
    composite
        How examples are made. ``drawn`` pairs each image as real part with a random image of label 9 - l as imaginary
        part, drawn with replacement, as in the paper. ``once`` pairs without replacement, so every image is used at
        most once. ``none`` is plain MNIST with real images.
    """

    classes: int | None = 10
    composite: Annotated[str, OneOf(COMPOSITES)] = "drawn"

    called = "digit"
    downloads = True

    def load(self, files: Sequence[Path], partition: pd.DataFrame, role: str, device: torch.device) -> LabelledItems:
        """Return the examples with one role (`zetadp.core.task.PipelineTask.load`)."""
        # The task's workflow rules name the file of features, so the name shows what the file contains.
        if files[0].name == FEATURES:
            return records_of(files, partition, role, device)
        arrays, take = ("images", "real", "imaginary", "labels"), partial(inputs, plain=self.composite == "none")
        return records_of(files, partition, role, device, arrays=arrays, take=take)

    def backbone(self, file: Path, device: torch.device) -> None:
        """Return None. The encoder only computes features, and no training starts from it."""

    @property
    def words(self) -> Words:
        """The texts for the model card (`zetadp.core.task.PipelineTask.words`)."""
        seen = "the digit in an image"
        if self.composite != "none":
            seen = (
                "the digit l in a complex image whose real part is a digit l and whose imaginary part is a digit 9 - l"
            )
        return Words(
            title="PhaseMNIST classifier" if self.composite != "none" else "MNIST classifier",
            about=f"It classifies {seen}.",
            inputs=f"An image of {SIDE} x {SIDE} pixels, each part in [0, 1].",
            outputs="A score for each digit.",
            usage="from zetadp.core.pretrained import load_model",
            limits=("A test bed for methods: nothing here is about patients.",),
        )


task = PhaseMnist
