"""Which images make a composite example: a public table of indices, a function of labels and seed alone.

An example has an image with label l as its real part and one with label 9 - l as its imaginary part; its label is l
(Ziller et al., *Complex-valued deep learning with differential privacy*).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from zetadp.randomness import Purpose, stream

if TYPE_CHECKING:
    from zetadp.tasks.phase_mnist.digits import Part

LARGEST = 9
PARTS: tuple[Part, ...] = ("train", "test")


@dataclass(frozen=True)
class Pairs:
    """Composite examples of the images of one part.

    Attributes
    ----------
    real, imaginary
        Position of each example's images, shape (example,).
    labels
        Class of each example, that of its real part.
    """

    real: np.ndarray
    imaginary: np.ndarray
    labels: np.ndarray


def drawn_pairs(labels: np.ndarray, part: Part, seed: int) -> Pairs:
    """Pair every image, as real part, with one of the other label, drawn with replacement.

    Parameters
    ----------
    labels
        Labels of the images of the part, 0 to 9.
    part
        Of which part they are; training and test have streams of their own.
    seed
        Seed of the pairing, a public constant.
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

    Of the two labels the rarer one limits: MNIST's training images give 5923 + 5851 + 5958 + 5918 + 5421 = 29,071
    examples, and those of the more frequent label that remain are left out. Which of the two images is the real part,
    and with it the label, alternates, so that labels l and 9 - l are equally frequent.

    Parameters
    ----------
    labels, part, seed
        As of `drawn_pairs`.
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
