"""The public encoder of images, scattering and a network that learnt simulated digits only, and these digits.

Simulated digits are skeletons of strokes, bent and slanted at random, then drawn with a pen. The skeletons
(``strokes.csv``) are hand-written and use no image of any data set, so training on these digits costs no privacy.
Images are framed like those of MNIST: the digit fills a box of 20 pixels, and its centre of mass is in the middle of
28 x 28 pixels.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional

from papers.complex_dp.encoder import PublicEncoder, learn
from papers.complex_dp.phase_mnist.task import SIDE
from papers.complex_dp.scattering import normalised, scattering_of_images
from zetadp.base.randomness import Purpose, stream
from zetadp.base.storage import Items

if TYPE_CHECKING:
    from collections.abc import Iterator

    from papers.complex_dp.encoder import Extract

BATCH = 64
RATE = 3e-3
SMOOTHING = 0.05
CHUNK = 25 * BATCH
"""Number of digits that are simulated together."""


class DigitEncoder(PublicEncoder):
    """An encoder of images of shape (image, 28, 28) in [0, 1].

    Its parts are scattering coefficients, and the hidden layer of a network that classifies digits.
    """

    of = "digits"
    # The network sees each digit once; their number is a multiple of `CHUNK`.
    recipe: ClassVar = {"seed": 0, "axes_from": 20_000, "scattering": 150, "learned": 64, "digits": 128_000}
    component_keys = ("scattering", "learned")
    widths = (24, 48, 96)
    flat = 96 * 9
    hidden_units = 128
    outputs = 10

    def maps(self) -> tuple[Extract, ...]:
        """Return the functions that compute scattering coefficients and the network's hidden layer."""
        return lambda images: normalised(scattering_of_images(images)), self.hidden_layer

    def learn_simulated(self, random: np.random.Generator) -> Tensor:
        """Train the network on simulated digits, and return further simulated digits."""
        seed, chunks = self.recipe["seed"], self.recipe["digits"] // CHUNK

        def losses() -> Iterator[Tensor]:
            for number in range(chunks):
                images, labels = simulated_digits(CHUNK, seed, number)
                for part, targets in zip(images.split(BATCH), labels.split(BATCH), strict=True):  # type: ignore[no-untyped-call]
                    moved = torch.roll(part, tuple(random.integers(-1, 2, 2).tolist()), (1, 2))
                    grey = moved * torch.from_numpy(random.uniform(0.7, 1, (BATCH, 1, 1))).float()
                    yield functional.cross_entropy(self(grey), targets, label_smoothing=SMOOTHING)

        learn(self, RATE, self.recipe["digits"] // BATCH, losses())
        return simulated_digits(self.recipe["axes_from"], seed, chunks)[0]

    def features(self, items: np.ndarray) -> np.ndarray:
        """Return features as `PublicEncoder.features`, for uint8 images of shape (image, 28, 28)."""
        return super().features(items.astype(np.float32) / 255)

    @classmethod
    def encode_pairs(cls, *, examples: Path, encoder: Path, features: Path, composite: str) -> None:
        """Write complex features of every example, each image encoded once."""
        items = Items.read(examples, ("images", "real", "imaginary", "labels"))
        images, real, imaginary, labels = items.arrays.values()
        parts = [real] if composite == "none" else [real, imaginary]
        used, positions = np.unique(np.concatenate(parts), return_inverse=True)
        encoded = torch.from_numpy(cls.load(encoder).features(images[used])[:, 0, 0].real)
        first, *second = (encoded[part] for part in np.split(positions, len(parts)))
        values = composite_features(first, second[0] if second else None)
        Items({"values": values, "labels": labels}, items.names).write(
            features, ("example", "channel", "row", "component"), "1"
        )


def composite_features(real: Tensor, imaginary: Tensor | None) -> np.ndarray:
    """Join the features of both parts of examples to complex features of norm one.

    Parameters
    ----------
    real, imaginary
        Features of norm one for the real and the imaginary parts, shape (example, component). The imaginary part is
        None for plain digits.

    Returns
    -------
    complex64, shape (example, 1, 1, component).
    """
    features = real.to(torch.complex64) if imaginary is None else torch.complex(real, imaginary) / 2**0.5
    return np.asarray(features[:, None, None].numpy())


BOX = 20.0
"""Side of the box that a digit fills, in pixels."""
POINTS = 96
"""Number of points along the strokes of a digit."""
WAVES = 3
"""Number of waves across the box in the finest displacement."""


@lru_cache
def skeletons() -> dict[int, list[str]]:
    """Return several ways to write each digit.

    A point is x,y in per cent of a box, with y downwards. A stroke is a smooth curve through its points. Slashes
    separate strokes. A corner needs two strokes: one ends there and the next begins there.
    """
    table = pd.read_csv(Path(__file__).with_name("strokes.csv"))
    return {int(str(digit)): rows.tolist() for digit, rows in table.groupby("digit")["strokes"]}


def simulated_digits(count: int, seed: int, *place: int) -> tuple[Tensor, Tensor]:
    """Simulate digits. All classes are equally frequent.

    Parameters
    ----------
    count
        Number of digits.
    seed
        Seed of all draws.
    *place
        Non-negative integers that separate different uses of one seed.

    Returns
    -------
    images, labels
        float32 in [0, 1] of shape (image, 28, 28), and int64 of shape (image,).
    """
    random = stream(seed, Purpose.PRETRAINING, *place)
    labels = random.permutation(np.arange(count) % len(skeletons()))
    lines = np.stack([_skeleton(label, int(random.integers(len(skeletons()[label])))) for label in labels.tolist()])
    lines = _bent(lines, random)
    width = np.exp(random.normal(np.log(2.6), 0.3, count)).clip(1.2, 5)
    return _drawn(_framed(lines, width), width, random), torch.from_numpy(labels)


@lru_cache
def _skeleton(label: int, way: int) -> np.ndarray:
    """Return points at equal distances along the strokes of one way to write a digit, shape (`POINTS`, 2)."""
    strokes = [stroke.split() for stroke in skeletons()[label][way].split("/")]
    curves = [_smooth(np.array([[int(at) / 100 for at in point.split(",")] for point in stroke])) for stroke in strokes]
    lengths = [np.linalg.norm(np.diff(curve, axis=0), axis=1) for curve in curves]
    total = sum(length.sum() for length in lengths)
    counts = [max(2, round(POINTS * length.sum() / total)) for length in lengths]
    counts[-1] += POINTS - sum(counts)
    parts = []
    for curve, length, count in zip(curves, lengths, counts, strict=True):
        along = np.concatenate(([0], length.cumsum()))
        distances = np.linspace(0, along[-1], count)
        parts.append(np.stack([np.interp(distances, along, curve[:, axis]) for axis in (0, 1)], axis=1))
    return np.concatenate(parts)


def _smooth(points: np.ndarray) -> np.ndarray:
    """Return a Catmull-Rom curve through points, shape (point, 2)."""
    before, after = 2 * points[0] - points[1], 2 * points[-1] - points[-2]
    p = np.concatenate((before[None], points, after[None]))
    t = np.linspace(0, 1, 25)[:, None]
    pieces = [
        0.5 * (2 * b + (c - a) * t + (2 * a - 5 * b + 4 * c - d) * t**2 + (3 * b - a - 3 * c + d) * t**3)
        for a, b, c, d in zip(p, p[1:], p[2:], p[3:], strict=False)
    ]
    return np.concatenate(pieces)


def _bent(lines: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Bend, slant, turn and stretch lines. All displacements are smooth, so strokes that touch stay together."""
    count = len(lines)
    centred = lines - 0.5
    moved = centred.copy()
    for wave in range(1, WAVES + 1):
        for _ in range(2):
            direction = random.uniform(0, 2 * np.pi, (count, 1))
            phase = random.uniform(0, 2 * np.pi, (count, 1))
            along = centred[..., 0] * np.cos(direction) + centred[..., 1] * np.sin(direction)
            size = random.normal(0, 0.055 / wave, (count, 1, 2))
            moved += size * np.sin(wave * np.pi * along + phase)[..., None]
    slant, turn = random.normal(0.12, 0.25, count), random.normal(0, 0.1, count)
    stretch = np.exp(random.normal(np.log(0.72), 0.2, count))
    x = moved[..., 0] * stretch[:, None] - slant[:, None] * moved[..., 1]
    y = moved[..., 1]
    sine, cosine = np.sin(turn)[:, None], np.cos(turn)[:, None]
    turned: np.ndarray = np.stack((x * cosine - y * sine, x * sine + y * cosine), axis=2)
    return turned


def _framed(lines: np.ndarray, width: np.ndarray) -> np.ndarray:
    """Scale digits to the box, including the width of the pen."""
    low, high = lines.min(axis=1, keepdims=True), lines.max(axis=1, keepdims=True)
    scale = (BOX - width) / (high - low).max(axis=(1, 2))
    framed: np.ndarray = (lines - (low + high) / 2) * scale[:, None, None]
    return framed


def _drawn(lines: np.ndarray, width: np.ndarray, random: np.random.Generator) -> Tensor:
    """Draw lines with a round pen. Widths are in pixels; the centre of mass moves to the middle of the image."""
    count = len(lines)
    points = torch.from_numpy(lines).float()
    edge = torch.from_numpy(random.uniform(0.6, 1.6, (count, 1))).float()
    half = torch.from_numpy(width).float()[:, None] / 2
    grid = torch.arange(SIDE) - (SIDE - 1) / 2
    pixels = torch.stack(torch.meshgrid(grid, grid, indexing="xy"), dim=2).reshape(-1, 2)

    def ink() -> Tensor:
        parts = [torch.cdist(pixels, part).amin(dim=2) for part in points.split(256)]  # type: ignore[no-untyped-call]
        return ((half - torch.cat(parts)) / edge + 0.5).clamp(0, 1)

    images = ink()
    weight = images / images.sum(dim=1, keepdim=True)
    points = points - (weight @ pixels)[:, None]
    return ink().reshape(count, SIDE, SIDE)
