"""PhaseMNIST: classify the digit in a complex image whose parts are two images of MNIST (Ziller et al., section 5.1).

MNIST does not identify the writers of its digits, so the unit of the guarantee is one example, and no figure is stated
for a writer. If imaginary parts are drawn with replacement, an image can be in several examples.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from zetadp.base.storage import read_arrays, write_arrays
from zetadp.base.validation import in_range, one_of
from zetadp.core.task import Classification, Held, Words, places_of
from zetadp.tasks.phase_mnist.digits import SIDE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import torch

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
    seed
        Seed of the pairs, a public constant.
    encoder
        Settings of the public encoder (`zetadp.tasks.phase_mnist.encoder.DigitEncoderSettings`).

    Raises
    ------
    ValueError
        If `composite` is unknown or the seed is out of range.
    """

    classes: int | None = 10
    composite: str = "drawn"
    seed: int = 0
    encoder: Mapping[str, Any] = field(default_factory=dict)

    called = "digit"

    def __post_init__(self) -> None:
        """Check the settings."""
        one_of(COMPOSITES, composite=self.composite)
        in_range(0, 2**31, seed=self.seed)

    def load(self, files: Sequence[Path], partition: pd.DataFrame, role: str, device: torch.device) -> Held:
        """Return the examples with one role (`zetadp.core.task.PipelineTask.load`)."""
        import torch  # takes seconds, and every start of the workflow makes a task

        from zetadp.core.records import Records

        (file,) = files
        rows = partition[partition["role"] == role].reset_index(drop=True)
        # The task's workflow rules name the file of features, so the name shows what the file contains.
        if file.name == FEATURES:
            values, labels, names = _read(file, "values", "labels")
            places = places_of(rows["record"], names, "examples", file)
            inputs = values[places]
        else:
            examples = read_examples(file)
            places = places_of(rows["record"], examples.names, "examples", file)
            inputs, labels = examples.values(places, plain=self.composite == "none"), examples.labels
        return Held(Records(torch.from_numpy(inputs), torch.from_numpy(labels[places])).to(device), rows)

    def backbone(self, file: Path, device: torch.device) -> None:
        """Return None. The encoder only computes features, and no training starts from it."""

    def words(self, network: Mapping[str, Any]) -> Words:
        """Return the texts for the model card (`zetadp.core.task.PipelineTask.words`)."""
        kind = "real-valued" if network["domain"] == "image" else "complex-valued"
        seen = "the digit in an image"
        if self.composite != "none":
            seen = (
                "the digit l in a complex image whose real part is a digit l and whose imaginary part is a digit 9 - l"
            )
        on = " on public features" if network["domain"] == "features" else ""
        return Words(
            title="PhaseMNIST classifier" if self.composite != "none" else "MNIST classifier",
            about=f"A {kind} network of family {network['family']}{on}. It classifies {seen}.",
            inputs=f"An image of {SIDE} x {SIDE} pixels, each part in [0, 1].",
            outputs="A score for each digit.",
            usage="from zetadp.core.pretrained import load_model",
            limits=("A test bed for methods: nothing here is about patients.",),
        )


@dataclass(frozen=True)
class Examples:
    """Examples, stored as positions of their images, so that each image is in memory only once.

    Attributes
    ----------
    images
        Images of MNIST, uint8, shape (image, 28, 28).
    real, imaginary
        Positions of each example's two images, shape (example,).
    labels
        Digit of each example, which is the digit of its real part, shape (example,).
    names
        Name of each example.
    """

    images: np.ndarray
    real: np.ndarray
    imaginary: np.ndarray
    labels: np.ndarray
    names: tuple[str, ...]

    @classmethod
    def joined(cls, one: Examples, other: Examples) -> Examples:
        """Join the examples of two parts, one part after the other."""
        moved = len(one.images)
        return cls(
            np.concatenate((one.images, other.images)),
            np.concatenate((one.real, other.real + moved)),
            np.concatenate((one.imaginary, other.imaginary + moved)),
            np.concatenate((one.labels, other.labels)),
            one.names + other.names,
        )

    def values(self, places: np.ndarray, *, plain: bool) -> np.ndarray:
        """Return examples, shape (example, 1, 28, 28), with parts in [0, 1].

        Parameters
        ----------
        places
            Positions of the examples.
        plain
            Whether to return the real parts alone, as float32. Otherwise the result is complex64.
        """
        real = self.images[self.real[places], None].astype(np.float32) / 255
        if plain:
            return real
        found = np.empty(real.shape, dtype=np.complex64)
        found.real, found.imag = real, self.images[self.imaginary[places], None].astype(np.float32) / 255
        return found

    def write(self, path: Path) -> None:
        """Write the examples to HDF5."""
        arrays = {"images": self.images, "real": self.real, "imaginary": self.imaginary, "labels": self.labels}
        write_arrays(path, arrays, {"records": self.names}, {"axes": ["image", "row", "column"], "units": "grey"}, {})


def read_examples(path: Path) -> Examples:
    """Read examples that `Examples.write` wrote.

    Raises
    ------
    UserError
        If the file is missing or damaged, or has other contents.
    """
    images, real, imaginary, labels, names = _read(path, "images", "real", "imaginary", "labels")
    return Examples(images, real, imaginary, labels, names)


def write_features(path: Path, values: np.ndarray, labels: np.ndarray, names: Sequence[str]) -> None:
    """Write public features of examples to HDF5.

    Parameters
    ----------
    path
        The file.
    values
        complex64, shape (example, 1, 1, component).
    labels, names
        Digit and name of each example.
    """
    axes = {"axes": ["example", "channel", "row", "component"], "units": "1"}
    write_arrays(path, {"values": values, "labels": labels}, {"records": names}, axes, {})


def _read(path: Path, *arrays: str) -> tuple[Any, ...]:
    """Read arrays of a file by name, and the names of its examples."""
    found, (names,) = read_arrays(path, "examples", arrays, ("records",))
    return (*found, names)


task = PhaseMnist
