"""Scanner effects that do not change the pulse sequence, as variations for training on public images.

All but the flip act in k-space, where they arise: a shift of the patient is a phase ramp, lower resolution is a filter,
a shorter scan leaves lines out, and receiver noise is complex. Only the magnitude of the image is returned, as in the
volumes that hospitals store. The magnitude removes the receiver's phase, so that phase is not varied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from zetadp.base.constraints import Share, Within, check_fields
from zetadp.mri.fourier import to_image, to_kspace


@dataclass(frozen=True)
class AugmentationSettings:
    """Strength of the variations.

    Attributes
    ----------
    flip
        Chance that left and right are exchanged.
    shift
        Largest shift along each axis, in pixels, fractions included.
    blurred, blur
        Chance of lower resolution, and the largest standard deviation of its Gaussian in pixels.
    undersampled, lines
        Chance that phase-encoding lines, rows of k-space, are left out, and their largest share outside the centre.
    noisy, noise
        Chance of noise, and its largest standard deviation in each part, as a fraction of the image's mean magnitude.
    """

    flip: Share = 0.5
    shift: Annotated[float, Within(ge=0, le=100)] = 1.5
    blurred: Share = 0.4
    blur: Annotated[float, Within(ge=0, le=100)] = 0.5
    undersampled: Share = 0.1
    lines: Share = 0.3
    noisy: Share = 0.5
    noise: Annotated[float, Within(ge=0, le=100)] = 0.06

    def __post_init__(self) -> None:
        """Check every setting."""
        check_fields(self)


def augment(images: np.ndarray, settings: AugmentationSettings, generator: np.random.Generator) -> np.ndarray:
    """Return variations of images, each drawn by itself.

    Parameters
    ----------
    images
        Magnitude images of shape (image, row, column).
    settings
        How strongly they are varied.
    generator
        Source of all draws.

    Returns
    -------
    float32 magnitude images of the same shape.
    """
    count, rows, columns = images.shape
    draw = generator.random((9, count, 1, 1), dtype=np.float32)
    images = np.where(draw[0] < settings.flip, images[..., ::-1], images).astype(np.float32)
    down, across = (_frequencies(side) for side in (rows, columns))
    down = down[:, None]
    # Unitary transform: noise in k-space has the same variance in the image.
    kspace = to_kspace(images)
    kspace = kspace * np.exp(-2j * np.pi * 2 * settings.shift * (down * (draw[1] - 0.5) + across * (draw[2] - 0.5)))
    width = (draw[3] < settings.blurred) * draw[4] * settings.blur
    kspace = kspace * np.exp(-2 * (np.pi * width) ** 2 * (down**2 + across**2))
    share = (draw[5] < settings.undersampled) * draw[6] * settings.lines
    # The centre holds the contrast, and every protocol measures it.
    dropped = (generator.random((count, rows, 1), dtype=np.float32) < share) & (np.abs(down) > 1 / 8)
    kspace = np.where(dropped, 0, kspace)
    level = (draw[7] < settings.noisy) * draw[8] * settings.noise * images.mean(axis=(1, 2), keepdims=True)
    parts = generator.standard_normal((2, *kspace.shape), dtype=np.float32)
    return np.asarray(np.abs(to_image(kspace + level * (parts[0] + 1j * parts[1]))), dtype=np.float32)


def _frequencies(side: int) -> np.ndarray:
    """Return the spatial frequency of each index of centred k-space, in cycles a pixel."""
    return np.asarray((np.arange(side) - side // 2) / side, dtype=np.float32)
