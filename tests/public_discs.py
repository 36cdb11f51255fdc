"""Simple public images, which a small backbone learns in seconds."""

from __future__ import annotations

import numpy as np

from zetadp.brain.settings import BackboneTraining
from zetadp.nn.models import NetworkSettings

SEQUENCES = ("FLAIR", "T1w", "T1gd", "T2w")
NETWORK = NetworkSettings(widths=(8, 16), convolutions=1, head="pooled", groups=4, transform="fourier")
SETTINGS = BackboneTraining(steps=40, batch=32, learning_rate=0.01, warmup=5, components=(2, 8, 16))


def public(patients: int, seed: int = 0, size: int = 16) -> np.ndarray:
    """Return images whose classes differ in the contrast of a disc and a spot, at random places."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[:size, :size]
    images = np.empty((patients, 4, 3, size, size), dtype=np.float32)
    for index in np.ndindex(images.shape[:3]):
        x, y = size / 2 + random.uniform(-1, 1, 2)
        distance = np.hypot(rows - x, columns - y)
        spot = (distance < 2) * (index[1] / 2)
        images[index] = (distance < 6) + spot + 0.05 * random.random((size, size))
    return images * 37
