"""Simulated examinations: complex images of the simulated cohort's brains, with receiver phase, coil shading and noise.

Brains, lesions, tissues and protocols are those of the simulated cohort (`zetadp.phantom.cohort`). The cohort's volumes
are magnitudes. An examination here holds the data that a scanner measures: k-space of a complex image.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.ndimage import distance_transform_edt, gaussian_filter

from papers.complex_dp.reconstruction.settings import Examinations
from papers.complex_dp.reconstruction.volumes import PARTS, KspaceVolume
from zetadp.base.randomness import Purpose, stream
from zetadp.base.storage import folder_written_whole
from zetadp.mri.kspace import to_kspace
from zetadp.phantom.anatomy import smooth_field
from zetadp.phantom.cohort import POPULATIONS
from zetadp.phantom.scanners import draw_tissues
from zetadp.phantom.settings import CHANNELS, VoxelGrid

if TYPE_CHECKING:
    from pathlib import Path

    from zetadp.phantom.scanners import Tissues

logger = logging.getLogger(__name__)

PLACE = 11
"""Number that separates the random streams of these patients from those of other simulated cohorts."""
APART = 4
"""Distance between two slices in millimetres."""
PHASE, PHASE_SPACING = 1.0, 120.0
"""Standard deviation of the receiver's smooth phase in radians, and how far apart it varies in millimetres."""
SHADING, COIL_SPACING = 0.3, 150.0
"""The same of the logarithm of the coil's smooth sensitivity."""


def examination(common: Examinations, seed: int, number: int, name: str = "phantom") -> KspaceVolume:
    """Simulate the examination of a patient.

    Parameters
    ----------
    common
        Settings of all examinations.
    seed, number
        Seed of all examinations, and number of the patient.
    name
        Prefix of the patient's name.

    Returns
    -------
    The volume. The same parameters always give the same volume.
    """
    random = stream(seed, Purpose.COHORT, PLACE, number)
    sequence = CHANNELS.index(str(random.choice(list(common.sequences))))
    clean = _image(common, random, sequence)
    grid = VoxelGrid((common.size, common.size, 1))
    phase = PHASE * smooth_field(random, grid, PHASE_SPACING)[..., 0].T + random.uniform(-np.pi, np.pi)
    coil = np.exp(SHADING * smooth_field(random, grid, COIL_SPACING)[..., 0].T)
    complete = _oversampled(clean * coil * np.exp(1j * phase))
    sigma = common.noise * np.abs(clean[clean != 0]).mean()
    parts = random.standard_normal((*complete.shape, 2), dtype=np.float32)
    image = complete + np.float32(sigma) * (parts[..., 0] + 1j * parts[..., 1])
    gain = np.float32(random.uniform(1e-5, 1e-4))
    image = (gain * image).astype(np.complex64)
    cropped = image[:, common.size // 2 : common.size // 2 + common.size]
    patient = f"{name}-{number:04d}"
    return KspaceVolume(patient, patient, to_kspace(image), np.abs(cropped))


def _image(common: Examinations, random: np.random.Generator, sequence: int) -> np.ndarray:
    """Return the signal of a head without phase, coil or noise, shape (slice, row, column)."""
    population = POPULATIONS[common.population]
    # The slices of a grid are a millimetre thick and lie a millimetre apart.
    grid = VoxelGrid((common.size, common.size, APART * (common.slices - 1) + 1))
    machine = population.scanner(random)
    brain = population.brain(random, grid)
    fractions = population.tissue(random, brain)
    tissues: Tissues = draw_tissues(random, machine.field_strength)
    present = tissues.after_contrast() if CHANNELS[sequence] == "t1gd" else tissues
    protocol = machine.protocols[sequence].jittered(random, 0.05)
    signal = np.abs(protocol.signal(present).astype(np.float32) @ fractions)
    volume = np.zeros(grid.shape, dtype=np.float32)
    volume[brain.inside] = signal / signal.mean()
    slices = np.moveaxis(volume[:, :, ::APART], (2, 1, 0), (0, 1, 2))
    if not common.scalp:
        return np.ascontiguousarray(slices)
    inside = np.moveaxis(brain.inside[:, :, ::APART], (2, 1, 0), (0, 1, 2))
    pixel = grid.voxel[0]
    skull, skin = random.uniform(6, 10), random.uniform(4, 7)
    bright = common.scalp * random.uniform(0.7, 1.3)
    return np.stack(
        [slice_ + bright * _ring(mask, skull, skin, pixel) for slice_, mask in zip(slices, inside, strict=True)]
    )


def _ring(inside: np.ndarray, skull: float, skin: float, pixel: float) -> np.ndarray:
    """Return the scalp around a brain: 1 where it lies, smooth at its borders."""
    # The surface of a head has no folds.
    filled = gaussian_filter(inside.astype(np.float32), 6 / pixel) > 0.4
    distance = distance_transform_edt(~filled) * pixel
    ring = (distance > skull) & (distance < skull + skin)
    return np.asarray(gaussian_filter(ring.astype(np.float32), 0.5))


def _oversampled(images: np.ndarray) -> np.ndarray:
    """Pad images with empty rows above and below, to twice as many rows."""
    rows = images.shape[1]
    return np.pad(images, ((0, 0), (rows // 2, rows - rows // 2), (0, 0)))


def simulate_volumes(*, volumes: Path, examinations: dict[str, Any], seed: int, sizes: dict[str, int]) -> None:
    """Write a folder in the layout of fastMRI, with one HDF5 file for each of the declared patients."""
    common, number = Examinations(**examinations), 0
    with folder_written_whole(volumes) as temporary:
        for part, name in PARTS.items():
            (temporary / name).mkdir(parents=True)
            for _ in range(sizes[part]):
                examination(common, seed, number).write(temporary / name)
                number += 1
    logger.info("%d examinations", number)
