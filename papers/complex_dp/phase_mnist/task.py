"""PhaseMNIST: classify the digit in a complex image whose parts are two images of MNIST (Ziller et al., section 5.1).

The real part of an example is an image with label l, and the imaginary part is an image with label 9 - l. The label of
the example is l. The pairs are a table of indices that depends on labels and a public seed alone.

MNIST does not identify the writers of its digits, so the unit of the guarantee is one example, and no epsilon is stated
for a writer. If imaginary parts are drawn with replacement, an image can be in several examples.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import pandas as pd

from zetadp.base.randomness import Purpose, stream
from zetadp.base.storage import Items
from zetadp.base.tables import write_cohort
from zetadp.base.validation import OneOf, UserError
from zetadp.mri.download import download
from zetadp.training.task import Classification, Words, records_of

if TYPE_CHECKING:
    import torch

    from zetadp.training.records import LabelledItems

Part = Literal["train", "test"]

HEADERS = {"images": 16, "labels": 8}
"""Length of the header of an idx file in bytes."""
SIDE = 28
FILES: dict[tuple[Part, str], str] = {
    ("train", "images"): "train-images-idx3-ubyte.gz",
    ("train", "labels"): "train-labels-idx1-ubyte.gz",
    ("test", "images"): "t10k-images-idx3-ubyte.gz",
    ("test", "labels"): "t10k-labels-idx1-ubyte.gz",
}
"""Name of each file of a data set, by part and content."""


@dataclass(frozen=True)
class Source:
    """A data set in the format of MNIST.

    Attributes
    ----------
    name
        Name of the data set in messages.
    mirror
        Address of the folder with the gzip files.
    md5s
        For each of `FILES`, the MD5 of its content and the MD5 of the published gzip file.
    """

    name: str
    mirror: str
    md5s: Sequence[tuple[str, str]]


MNIST = Source(
    "MNIST",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    (
        ("6bbc9ace898e44ae57da46a324031adb", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        ("a25bea736e30d166cdddb491f175f624", "d53e105ee54ea40749a09fcbcd1e9432"),
        ("2646ac647ad5339dbf082846283269ea", "9fb629c4189551a2d022fa330f9573f3"),
        ("27ae3e4e09519cfbb04c329615203637", "ec29112dd5afa0611ce80d1b7f02629c"),
    ),
)
FASHION = Source(
    "Fashion-MNIST",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    (
        ("f4a8712d7a061bf5bd6d2ca38dc4d50a", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        ("9018921c3c673c538a1fc5bad174d6f9", "25c81989df183df01b3e8a0aad5dffbe"),
        ("8181f5470baa50b63fa0f6fddb340f0a", "bef4ecab320f06d8554ea6380940ec79"),
        ("15d484375f8d13e6eb1aabb0c3f46965", "bb300cfdad3c16e7a12a480ee83cd310"),
    ),
)
AGAIN = "Delete it and download it again."


def read_digits(folder: Path, part: Part, source: Source = MNIST) -> tuple[np.ndarray, np.ndarray]:
    """Read one part of a data set, and verify the checksums of its files.

    Parameters
    ----------
    folder
        Folder with the gzip files.
    part
        ``train`` or ``test``.
    source
        The data set.

    Returns
    -------
    images, labels
        uint8 of shape (image, 28, 28), and int64 of shape (image,).

    Raises
    ------
    UserError
        If a file is missing, damaged, or not the published one.
    """
    images = np.frombuffer(_content(folder, source, part, "images"), dtype=np.uint8)
    labels = np.frombuffer(_content(folder, source, part, "labels"), dtype=np.uint8)
    return images.reshape(-1, SIDE, SIDE), labels.astype(np.int64)


def fetch_digits(folder: Path, source: Source = MNIST) -> None:
    """Download the missing files of a data set, and verify all files.

    Parameters
    ----------
    folder
        Folder for the gzip files. Files that are already there are not downloaded again.
    source
        The data set.

    Raises
    ------
    UserError
        If a file cannot be downloaded, or a file is not the published file.
    """
    for ((part, kind), name), (_, packed) in zip(FILES.items(), source.md5s, strict=True):
        if not (folder / name).is_file():
            download(f"{source.mirror}{name}", folder / name, packed)
        _content(folder, source, part, kind)


def fetch_mnist(*, files: list[Path]) -> None:
    """Download the missing files of MNIST into the folder of the named files, and verify all."""
    fetch_digits(files[0].parent)


def _content(folder: Path, source: Source, part: Part, kind: str) -> bytes:
    """Return the verified content of a file, without its header."""
    path = folder / FILES[part, kind]
    if not path.is_file():
        raise UserError(
            f"Expected {path.name} of {source.name} in {folder}, found no such file. Name the folder that has it."
        )
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"Cannot read {path}: {error}. {AGAIN}") from error
    # Somebody may have compressed the file again, so only its content is compared.
    expected, _ = source.md5s[list(FILES).index((part, kind))]
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if digest != expected:
        raise UserError(
            f"Expected in {path} the {part} {kind} of {source.name}, whose content has the MD5 {expected}, found "
            f"{digest}. {AGAIN}"
        )
    return content[HEADERS[kind] :]


LARGEST = 9
SEED = 0
"""Seed of the pairs, a public constant."""
PARTS: tuple[Part, ...] = ("train", "test")


def paired(labels: np.ndarray, part: Part, seed: int, *, once: bool) -> tuple[np.ndarray, np.ndarray]:
    """Pair images with label l as real parts with random images with label 9 - l as imaginary parts.

    Parameters
    ----------
    labels
        Labels of the images, 0 to 9, shape (image,).
    part
        Part of the images. Training and test images have separate random streams.
    seed
        Seed of the pairs.
    once
        Whether every image is used at most once. The rarer of two labels then limits the number of pairs: MNIST's
        training images give 5923 + 5851 + 5958 + 5918 + 5421 = 29,071. The two labels take turns as the real part, so
        they are equally frequent. Otherwise every image is a real part once, and imaginary parts are drawn with
        replacement.

    Returns
    -------
    real, imaginary
        Positions of the two images of each example, shape (example,): in the order of the images, or in random order
        with ``once``. The label of an example is that of its real part.
    """
    random = stream(seed, Purpose.PAIRING, PARTS.index(part), int(once))
    of_label = [np.flatnonzero(labels == label) for label in range(LARGEST + 1)]
    if not once:
        imaginary = np.empty(len(labels), dtype=np.int64)
        for members, others in zip(of_label, of_label[::-1], strict=True):
            if len(members):
                imaginary[members] = others[random.integers(len(others), size=len(members))]
        return np.arange(len(labels)), imaginary
    parts = []
    for label in range((LARGEST + 1) // 2):
        first, second = (random.permutation(of_label[digit]) for digit in (label, LARGEST - label))
        count = min(len(first), len(second))
        pairs = np.stack((first[:count], second[:count]))
        pairs[:, 1::2] = pairs[::-1, 1::2]
        parts.append(pairs)
    real, imaginary = np.concatenate(parts, axis=1)
    order = random.permutation(len(real))
    return real[order], imaginary[order]


def pair_digits(*, files: list[Path], examples: Path, table: Path, composite: str, sizes: dict[str, int]) -> None:
    """Write the examples of both parts, and one row for each: patient, record, part, scanner, sha256."""
    images: list[np.ndarray] = []
    pairs, names = [], []
    for part in PARTS:
        own_images, labels = read_digits(files[0].parent, part)
        # Test pairs are always drawn in the same way, so that accuracies can be compared.
        real, imaginary = paired(labels, part, SEED, once=composite == "once" and part == "train")
        count = sizes[part]
        if count > len(real):
            raise UserError(
                f"Expected cohort.{part}_patients to be at most {len(real)} for composite {composite}, found {count}."
            )
        before = sum(len(part_images) for part_images in images)
        pairs.append((real[:count] + before, imaginary[:count] + before, labels[real[:count]]))
        names += [(f"{part}-{number:05d}", part) for number in range(count)]
        images.append(own_images)
    real, imaginary, labels = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    arrays = {"images": np.concatenate(images), "real": real, "imaginary": imaginary, "labels": labels}
    rows = pd.DataFrame(names, columns=["record", "part"])
    Items(arrays, rows[["record"]]).write(examples, ("image", "row", "column"), "grey")
    values, _ = inputs(arrays, np.arange(len(rows)), plain=composite == "none")
    hashes = [hashlib.sha256(value.tobytes()).hexdigest() for value in values]
    rows = rows.assign(patient=rows["record"], scanner="", sha256=hashes)
    write_cohort(table, rows[["patient", "record", "part", "scanner", "sha256"]], sizes, "the examples")


def inputs(arrays: Mapping[str, np.ndarray], indices: np.ndarray, *, plain: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs of shape (example, 1, 28, 28) with parts in [0, 1], and labels.

    Parameters
    ----------
    arrays
        ``images`` (uint8, shape (image, 28, 28)), ``real`` and ``imaginary`` (positions of each example's two images),
        and ``labels`` (digit of the real part). So each image is in memory only once.
    indices
        Positions of the examples.
    plain
        Whether to return the real parts alone, as float32. Otherwise the inputs are complex64.
    """
    images, labels = arrays["images"], arrays["labels"][indices]
    real = images[arrays["real"][indices], None].astype(np.float32) / 255
    if plain:
        return real, labels
    values = np.empty(real.shape, dtype=np.complex64)
    values.real, values.imag = real, images[arrays["imaginary"][indices], None].astype(np.float32) / 255
    return values, labels


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
    rules = Path(__file__).parents[1] / "rules/phase_mnist.smk"
    of_patients = False

    def load(self, files: Sequence[Path], partition: pd.DataFrame, role: str, device: torch.device) -> LabelledItems:
        """Return the examples with one role (`zetadp.training.task.PipelineTask.load`)."""
        # The task's workflow rules name the file of features, so the name shows what the file contains.
        if files[0].name == FEATURES:
            return records_of(files, partition, role, device)
        arrays, take = ("images", "real", "imaginary", "labels"), partial(inputs, plain=self.composite == "none")
        return records_of(files, partition, role, device, arrays=arrays, take=take)

    def backbone(self, file: Path, device: torch.device) -> None:
        """Return None. The encoder only computes features, and no training starts from it."""

    @property
    def words(self) -> Words:
        """The texts for the model card (`zetadp.training.task.PipelineTask.words`)."""
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
            limits=("A test bed for methods: nothing here is about patients.",),
        )
