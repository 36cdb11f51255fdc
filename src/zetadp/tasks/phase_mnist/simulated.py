"""Simulated handwritten digits: skeletons of strokes, bent and slanted at random, then drawn with a pen.

The skeletons are hand-written and use no image of any data set, so training on these digits costs no privacy. Images
are framed like those of MNIST: the digit fills a box of 20 pixels, and its centre of mass is in the middle of 28 x 28
pixels.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from zetadp.base.randomness import Purpose, stream
from zetadp.tasks.phase_mnist.digits import SIDE

BOX = 20.0
"""Side of the box that a digit fills, in pixels."""
POINTS = 96
"""Number of points along the strokes of a digit."""
WAVES = 3
"""Number of waves across the box in the finest displacement."""

# Several ways to write each digit. A point is x,y in per cent of a box, with y downwards. A stroke is a smooth curve
# through its points. Slashes separate strokes. A corner needs two strokes: one ends there and the next begins there.
SKELETONS: dict[int, tuple[str, ...]] = {
    0: (
        "50,0 15,15 3,50 15,85 50,100 85,85 97,50 85,15 50,0",
        "60,2 25,8 4,50 20,95 55,100 90,70 92,30 65,5 40,10",
        "80,10 40,0 8,35 10,80 45,100 85,80 95,35 70,2 50,12",
    ),
    1: (
        "50,0 50,50 50,100",
        "50,0 52,50 48,100",
        "50,0 47,50 50,100",
        "33,22 45,12 52,0 / 52,0 52,50 52,100",
        "30,22 52,0 / 52,0 52,100 / 25,100 80,100",
    ),
    2: (
        "8,25 25,5 55,0 85,16 82,42 50,72 5,100 / 5,100 50,97 97,100",
        "8,20 40,0 75,10 80,40 50,75 20,97 5,90 18,77 50,90 97,95",
        "5,15 45,0 85,12 80,40 45,70 12,98 3,88 20,80 50,95 80,100 100,85",
        "10,5 60,0 90,20 70,55 5,100 / 5,100 95,95",
    ),
    3: (
        "10,12 45,0 85,15 78,38 38,48 / 38,48 80,55 92,80 50,100 5,90",
        "10,10 50,0 85,20 65,42 50,47 85,60 88,85 50,100 5,92",
        "10,2 85,0 / 85,0 42,40 / 42,40 85,52 90,80 50,100 8,93",
        "15,8 55,0 80,20 60,42 40,50 55,47 85,68 65,95 5,100",
    ),
    4: (
        "20,0 10,30 6,55 30,60 92,52 / 82,5 75,50 68,100",
        "15,0 7,55 / 7,55 95,50 / 78,0 72,100",
        "65,0 30,35 3,65 / 3,65 97,63 / 65,0 66,50 64,100",
        "25,0 10,35 15,55 50,55 80,40 85,10 / 85,10 80,50 78,100",
    ),
    5: (
        "92,0 25,3 / 25,3 15,42 / 15,42 50,36 88,55 85,82 50,100 5,93",
        "95,3 50,2 28,15 20,38 50,46 80,65 65,93 30,100 3,88",
        "30,5 20,42 / 20,42 60,40 82,65 60,95 5,100 / 30,5 97,0",
        "100,0 60,5 35,20 30,38 60,50 70,75 45,100 10,97 2,85",
    ),
    6: (
        "75,0 35,20 10,55 14,87 48,100 82,86 80,62 48,53 14,75",
        "60,0 25,30 8,70 25,97 65,97 90,75 65,57 30,70 20,90",
        "35,0 15,40 10,75 35,100 75,92 88,72 60,58 30,72 28,90",
        "95,2 45,15 10,55 12,85 40,100 70,88 68,65 40,60 12,80",
    ),
    7: (
        "5,6 50,5 92,2 / 92,2 60,50 40,100",
        "5,6 92,3 / 92,3 60,50 45,100 / 30,52 88,48",
        "5,22 8,5 50,8 93,2 / 93,2 65,45 55,100",
        "3,15 35,2 75,3 90,15 75,50 60,100",
        "5,10 50,12 90,5 80,30 50,65 25,100",
    ),
    8: (
        "80,10 45,0 15,18 35,42 70,60 85,82 50,100 15,83 32,60 68,38 85,18 70,5",
        "50,0 15,10 15,35 50,46 83,33 82,10 50,0 / 50,46 10,60 10,88 50,100 90,87 88,60 50,46",
        "90,5 50,2 20,20 40,45 65,65 60,93 30,100 10,85 30,60 70,40 92,15",
        "50,45 20,25 40,0 80,5 85,25 50,50 20,75 30,97 60,100 75,80 50,45",
    ),
    9: (
        "82,18 50,0 15,12 10,38 42,50 75,35 85,12 / 85,12 82,55 72,100",
        "85,15 50,0 12,20 20,45 60,45 87,15 / 87,15 85,60 60,93 15,100",
        "90,10 50,0 15,20 15,45 50,45 90,10 / 90,10 65,55 45,100",
        "70,30 75,8 45,0 15,20 25,45 60,38 78,20 75,60 75,100",
    ),
}


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
    labels = random.permutation(np.arange(count) % len(SKELETONS))
    lines = np.stack([_skeleton(label, int(random.integers(len(SKELETONS[label])))) for label in labels.tolist()])
    lines = _bent(lines, random)
    width = np.exp(random.normal(np.log(2.6), 0.3, count)).clip(1.2, 5)
    return _drawn(_framed(lines, width), width, random), torch.from_numpy(labels)


@lru_cache
def _skeleton(label: int, way: int) -> np.ndarray:
    """Return points at equal distances along the strokes of one way to write a digit, shape (`POINTS`, 2)."""
    strokes = [stroke.split() for stroke in SKELETONS[label][way].split("/")]
    curves = [_smooth(np.array([[int(at) / 100 for at in point.split(",")] for point in stroke])) for stroke in strokes]
    lengths = [np.linalg.norm(np.diff(curve, axis=0), axis=1) for curve in curves]
    total = sum(length.sum() for length in lengths)
    counts = [max(2, round(POINTS * length.sum() / total)) for length in lengths]
    counts[-1] += POINTS - sum(counts)
    found = []
    for curve, length, count in zip(curves, lengths, counts, strict=True):
        along = np.concatenate(([0], length.cumsum()))
        wanted = np.linspace(0, along[-1], count)
        found.append(np.stack([np.interp(wanted, along, curve[:, axis]) for axis in (0, 1)], axis=1))
    return np.concatenate(found)


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
