"""Load images of MNIST and Fashion-MNIST and their public features, for the benchmarks of released rows.

Missing official files are downloaded to resources/digits. The encoder is that of the scenario mnist.yaml. If it is not
in resources/public-digits, it is trained again (6 minutes). Features are stored in results/release_mnist. A smoke needs
none of these files: its images are simulated digits for both data sets, its encoder learns from few of them, and both
are stored with its tables.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from papers.complex_dp.encoder import unit
from papers.complex_dp.phase_mnist.encoder import CHUNK, DigitEncoder, simulated_digits
from papers.complex_dp.phase_mnist.task import FASHION, MNIST, fetch_digits, read_digits
from papers.complex_dp.scattering import normalised, scattering_of_images
from papers.sizes import SMOKE, by_size, current, stored
from zetadp.base.randomness import Purpose, stream
from zetadp.base.storage import written_whole

if TYPE_CHECKING:
    from papers.complex_dp.phase_mnist.task import Part

SOURCES = {"mnist": MNIST, "fashion": FASHION}
NAMES = {"mnist": "MNIST", "fashion": "Fashion-MNIST"}
IMAGES = Path("resources/digits")
ENCODER = by_size(Path("resources/public-digits"), smoke=stored("public-digits")) / "encoder.safetensors"
KEPT = stored("release_mnist")
PASS = 1000
SIMULATED = 600
"""Number of simulated digits that replace a part of a data set in a smoke."""
TESTED = by_size(2000, smoke=200)
"""Number of training images, the last of each data set, that replace test images where no test image may be read."""


class SmallEncoder(DigitEncoder):
    """The encoder of a smoke, which learns from as few digits as it can."""

    recipe: ClassVar = DigitEncoder.recipe | {"axes_from": 400, "digits": CHUNK}


def described(cohort: str) -> str:
    """Return what a table says about its people: those of a smoke are simulated digits."""
    return by_size(cohort, smoke=f"{SIMULATED} simulated digits")


@lru_cache
def images(data: str, part: Part) -> tuple[np.ndarray, np.ndarray]:
    """Return images, uint8 of shape (image, 28, 28), and labels of shape (image,)."""
    if current() == SMOKE:
        digits, labels = simulated_digits(SIMULATED, 1, list(SOURCES).index(data), int(part == "test"))
        return (255 * digits).byte().numpy(), labels.numpy()
    fetch_digits(IMAGES / data, SOURCES[data])
    return read_digits(IMAGES / data, part, SOURCES[data])


@lru_cache
def encoder() -> DigitEncoder:
    """Return the public encoder, which has seen simulated digits only."""
    kind = by_size(DigitEncoder, smoke=SmallEncoder)
    if not ENCODER.is_file():
        ENCODER.parent.mkdir(parents=True, exist_ok=True)
        with torch.enable_grad():  # the caller may have disabled gradients
            kind.make(encoder=ENCODER)
    return kind.load(ENCODER)


@lru_cache(maxsize=4)
def features(data: str, kind: str, part: Part) -> np.ndarray:
    """Return features of norm at most one, float32 of shape (image, component).

    Parameters
    ----------
    data, part
        The images.
    kind
        One of four kinds. ``pixels`` are scaled to norm one. ``scattering`` are 3,969 coefficients as in the paper,
        normalised by group within each image. ``axes`` are the first 150 principal components of these coefficients on
        simulated digits, partly whitened. ``encoder`` adds 64 components of a network that classifies simulated
        digits.
    """
    if kind == "axes":
        values = features(data, "encoder", part)[:, : len(encoder().parts[0].variances)]
        return values / np.linalg.norm(values, axis=1, keepdims=True)
    path = KEPT / f"{data}-{kind}-{part}.npy"
    if not path.is_file():
        values = images(data, part)[0]
        # Scattering takes longest, and the encoder needs it as well.
        coefficients = features(data, "scattering", part) if kind == "encoder" else None
        starts = range(0, len(values), PASS)
        parts = [_features(kind, values[at : at + PASS], _rows(coefficients, at)) for at in starts]
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as temporary, temporary.open("wb") as file:
            np.save(file, torch.cat(parts).numpy())
    return np.load(path)


def _rows(coefficients: np.ndarray | None, start: int) -> torch.Tensor | None:
    return None if coefficients is None else torch.from_numpy(coefficients[start : start + PASS])


@torch.no_grad()
def _features(kind: str, raw: np.ndarray, coefficients: torch.Tensor | None) -> torch.Tensor:
    pixels = torch.from_numpy(raw.astype(np.float32) / 255)
    if kind == "scattering":
        values = normalised(scattering_of_images(pixels))
        return values / values.shape[1] ** 0.5  # every group has variance one, or less where an image is empty
    if kind == "pixels" or coefficients is None:
        return unit(pixels.flatten(1))
    scattered, learned = encoder().parts
    known = (coefficients * coefficients.shape[1] ** 0.5 - scattered.centre) @ scattered.axes
    return unit(torch.cat((scattered.scaled(known), learned.scaled(learned.components(pixels))), dim=1))


def split(classes: int, people: int, seed: int) -> tuple[torch.Tensor, ...]:
    """Return features and labels of people, equally many of each class, and of the test people."""
    random, parts = stream(seed, Purpose.IMAGES, classes, people), []
    for number in range(classes):
        data, label = ("mnist", number) if number < 10 else ("fashion", number - 10)
        labels = images(data, "train")[1]
        there = np.flatnonzero(labels == label)
        trained = random.permutation(there[there < len(labels) - TESTED])[: people // classes]
        tests = there[there >= len(labels) - TESTED]
        x = torch.from_numpy(features(data, "encoder", "train"))
        parts.append((x[trained], torch.full((len(trained),), number), x[tests], torch.full((len(tests),), number)))
    x, labels, tests, test_labels = (torch.cat(part) for part in zip(*parts, strict=True))
    return x, labels, tests, test_labels
