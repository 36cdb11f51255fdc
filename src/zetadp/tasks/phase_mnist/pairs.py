"""Pairs of images that form composite examples.

The real part of an example is an image with label l, and the imaginary part is an image with label 9 - l. The label of
the example is l (Ziller et al., *Complex-valued deep learning with differential privacy*). The pairs are a table of
indices that depends on labels and a public seed alone.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from zetadp.base.randomness import Purpose, stream
from zetadp.base.tables import write_table
from zetadp.base.validation import UserError
from zetadp.tasks.items import Items
from zetadp.tasks.phase_mnist.digits import read_digits
from zetadp.tasks.phase_mnist.task import inputs

if TYPE_CHECKING:
    from pathlib import Path

    from zetadp.tasks.phase_mnist.digits import Part

logger = logging.getLogger(__name__)

LARGEST = 9
PARTS: tuple[Part, ...] = ("train", "test")


@dataclass(frozen=True)
class Pairs:
    """Composite examples from the images of one part.

    Attributes
    ----------
    real, imaginary
        Positions of each example's two images, shape (example,).
    labels
        Label of each example, which is the label of its real part, shape (example,).
    """

    real: np.ndarray
    imaginary: np.ndarray
    labels: np.ndarray


def drawn_pairs(labels: np.ndarray, part: Part, seed: int) -> Pairs:
    """Pair each image as real part with a random image of label 9 - l as imaginary part.

    Imaginary parts are drawn with replacement, so an image can be in several examples.

    Parameters
    ----------
    labels
        Labels of the images, 0 to 9, shape (image,).
    part
        Part of the images. Training and test images have separate random streams.
    seed
        Seed of the pairing, a public constant.

    Returns
    -------
    As many examples as images, in the order of the images.
    """
    random = stream(seed, Purpose.PAIRING, PARTS.index(part), 0)
    imaginary = np.empty(len(labels), dtype=np.int64)
    for label in range(LARGEST + 1):
        own, others = (np.flatnonzero(labels == wanted) for wanted in (label, LARGEST - label))
        if len(own):
            imaginary[own] = others[random.integers(len(others), size=len(own))]
    return Pairs(np.arange(len(labels)), imaginary, labels.astype(np.int64))


def disjoint_pairs(labels: np.ndarray, part: Part, seed: int) -> Pairs:
    """Pair images of labels l and 9 - l so that every image is used at most once.

    The rarer of the two labels limits the number of pairs, and the remaining images of the other label are left out.
    MNIST's training images give 5923 + 5851 + 5958 + 5918 + 5421 = 29,071 examples. The two labels take turns as the
    real part, so labels l and 9 - l are equally frequent.

    Parameters
    ----------
    labels, part, seed
        Same as for `drawn_pairs`.

    Returns
    -------
    Examples in random order.
    """
    random = stream(seed, Purpose.PAIRING, PARTS.index(part), 1)
    real, imaginary = [], []
    for label in range((LARGEST + 1) // 2):
        first, second = (random.permutation(np.flatnonzero(labels == wanted)) for wanted in (label, LARGEST - label))
        count = min(len(first), len(second))
        turned = np.arange(count) % 2 == 1
        real.append(np.where(turned, second[:count], first[:count]))
        imaginary.append(np.where(turned, first[:count], second[:count]))
    order = random.permutation(sum(map(len, real)))
    chosen = np.concatenate(real)[order]
    return Pairs(chosen, np.concatenate(imaginary)[order], labels[chosen].astype(np.int64))


def pair_digits(
    *, files: list[Path], examples: Path, table: Path, composite: str, seed: int, sizes: dict[str, int]
) -> None:
    """Write the examples of both parts, and one row for each: patient, record, part, scanner, sha256."""
    images: list[np.ndarray] = []
    made, names = [], []
    for part in PARTS:
        own_images, labels = read_digits(files[0].parent, part)
        # Test pairs are always drawn in the same way, so that accuracies can be compared.
        pairs = (disjoint_pairs if composite == "once" and part == "train" else drawn_pairs)(labels, part, seed)
        count = sizes[part]
        if count > len(pairs.labels):
            raise UserError(
                f"Expected cohort.{part}_patients to be at most {len(pairs.labels)} for composite {composite}, found "
                f"{count}."
            )
        before = sum(len(each) for each in images)
        made.append((pairs.real[:count] + before, pairs.imaginary[:count] + before, pairs.labels[:count]))
        names += [(f"{part}-{number:05d}", part) for number in range(count)]
        images.append(own_images)
    real, imaginary, labels = (np.concatenate(parts) for parts in zip(*made, strict=True))
    arrays = {"images": np.concatenate(images), "real": real, "imaginary": imaginary, "labels": labels}
    rows = pd.DataFrame(names, columns=["record", "part"])
    Items(arrays, rows[["record"]]).write(examples, ("image", "row", "column"), "grey")
    values, _ = inputs(arrays, np.arange(len(rows)), plain=composite == "none")
    hashes = [hashlib.sha256(value.tobytes()).hexdigest() for value in values]
    rows = rows.assign(patient=rows["record"], scanner="", sha256=hashes)
    write_table(table, rows[["patient", "record", "part", "scanner", "sha256"]])
    logger.info("made %d examples", len(rows))
