"""Simulated examinations: complex images of the repository's phantom, with receiver phase, coil shading and noise.

Brains, lesions, tissues and protocols are those of the simulated cohort (`zetadp.cohort.phantom`). Unlike its volumes,
an examination here is what a scanner measures: k-space of a complex image, before any magnitude is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.ndimage import distance_transform_edt, gaussian_filter

from zetadp.cohort.deformation import smooth_field
from zetadp.cohort.grid import VoxelGrid
from zetadp.cohort.populations import POPULATIONS
from zetadp.cohort.scanners import CHANNELS
from zetadp.cohort.tissues import draw_tissues
from zetadp.kspace.fourier import to_kspace
from zetadp.randomness import Purpose, stream
from zetadp.tasks.reconstruction.volumes import Volume
from zetadp.validation import in_range, one_of, positive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zetadp.cohort.tissues import Tissues

PLACE = 11
"""Tells the streams of these patients from those of other simulated cohorts."""
APART = 4
"""Millimetres between two slices."""
PHASE_SPACING = 120.0
COIL_SPACING = 150.0


@dataclass(frozen=True)
class Examinations:
    """What a group of simulated examinations has in common.

    Attributes
    ----------
    population
        Whose brains they are (`zetadp.cohort.populations.POPULATIONS`).
    sequences
        Pulse sequences, of which each patient has one.
    size
        Rows and columns of an image; k-space has twice as many rows, as scanners sample them.
    slices
        Slices of an examination.
    noise
        Standard deviation of the noise in each part of an image, relative to the mean signal of the head.
    phase
        Standard deviation of the receiver's smooth phase, in radians.
    shading
        Standard deviation of the logarithm of the coil's smooth sensitivity.
    scalp
        Brightness of the scalp relative to the mean signal of the brain; 0 shows brains alone.
    """

    population: str = "standard"
    sequences: Sequence[str] = CHANNELS
    size: int = 96
    slices: int = 4
    noise: float = 0.05
    phase: float = 1.0
    shading: float = 0.3
    scalp: float = 0.0

    def __post_init__(self) -> None:
        """Check every setting."""
        one_of(POPULATIONS, population=self.population)
        for sequence in self.sequences:
            one_of(CHANNELS, sequences=sequence)
        in_range(16, 512, size=self.size)
        positive(slices=self.slices)
        in_range(0, 10, noise=self.noise, phase=self.phase, shading=self.shading, scalp=self.scalp)

    def patient(self, seed: int, number: int, name: str = "phantom") -> Volume:
        """Return the examination of a patient, a function of the settings, the seed and the patient's number."""
        random = stream(seed, Purpose.COHORT, PLACE, number)
        sequence = CHANNELS.index(str(random.choice(list(self.sequences))))
        clean = self._image(random, sequence)
        grid = VoxelGrid((self.size, self.size, 1))
        phase = self.phase * smooth_field(random, grid, PHASE_SPACING)[..., 0].T + random.uniform(-np.pi, np.pi)
        coil = np.exp(self.shading * smooth_field(random, grid, COIL_SPACING)[..., 0].T)
        complete = _oversampled(clean * coil * np.exp(1j * phase))
        sigma = self.noise * np.abs(clean[clean != 0]).mean()
        parts = random.standard_normal((*complete.shape, 2), dtype=np.float32)
        image = complete + np.float32(sigma) * (parts[..., 0] + 1j * parts[..., 1])
        gain = np.float32(random.uniform(1e-5, 1e-4))
        image = (gain * image).astype(np.complex64)
        shown = image[:, self.size // 2 : self.size // 2 + self.size]
        patient = f"{name}-{number:04d}"
        return Volume(patient, patient, f"AX{CHANNELS[sequence]}", to_kspace(image), np.abs(shown))

    def _image(self, random: np.random.Generator, sequence: int) -> np.ndarray:
        """Return the signal of a head without phase, coil or noise, shape (slice, row, column)."""
        population = POPULATIONS[self.population]
        # The slices of a grid are a millimetre thick and lie a millimetre apart.
        grid = VoxelGrid((self.size, self.size, APART * (self.slices - 1) + 1))
        machine = population.scanner(random)
        brain = population.brain(random, grid)
        fractions = population.tissue(random, brain, 0.9)
        tissues: Tissues = draw_tissues(random, machine.field_strength)
        present = tissues.after_contrast() if CHANNELS[sequence] == "t1gd" else tissues
        protocol = machine.protocols[sequence].jittered(random, 0.05)
        signal = np.abs(protocol.signal(present).astype(np.float32) @ fractions)
        volume = np.zeros(grid.shape, dtype=np.float32)
        volume[brain.inside] = signal / signal.mean()
        slices = np.moveaxis(volume[:, :, ::APART], (2, 1, 0), (0, 1, 2))
        if not self.scalp:
            return np.ascontiguousarray(slices)
        inside = np.moveaxis(brain.inside[:, :, ::APART], (2, 1, 0), (0, 1, 2))
        pixel = grid.voxel[0]
        skull, skin = random.uniform(6, 10), random.uniform(4, 7)
        bright = self.scalp * random.uniform(0.7, 1.3)
        return np.stack(
            [own + bright * _ring(mask, skull, skin, pixel) for own, mask in zip(slices, inside, strict=True)]
        )


def _ring(inside: np.ndarray, skull: float, skin: float, pixel: float) -> np.ndarray:
    """Return the scalp around a brain: 1 where it lies, smooth at its borders."""
    # The surface of a head has no folds.
    filled = gaussian_filter(inside.astype(np.float32), 6 / pixel) > 0.4
    distance = distance_transform_edt(~filled) * pixel
    ring = (distance > skull) & (distance < skull + skin)
    return np.asarray(gaussian_filter(ring.astype(np.float32), 0.5))


def _oversampled(images: np.ndarray) -> np.ndarray:
    """Return images between empty rows, twice as many in all."""
    rows = images.shape[1]
    return np.pad(images, ((0, 0), (rows // 2, rows - rows // 2), (0, 0)))
