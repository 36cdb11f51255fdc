"""Settings of a simulated cohort: grid of voxels, scanners and population."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from zetadp.base.validation import Count, Filled, OneOf, Seed, Within, check_fields

CHANNELS = ("FLAIR", "T1w", "t1gd", "T2w")
"""Sequences in the order of the channels of the Decathlon brain task."""
DRAWN = "drawn"
"""Name of the population whose properties are drawn from the cohort's seed."""
FIXED = ("standard", "vendor", "healthy", "heavy", "procedural")
"""Names of the other populations (`zetadp.phantom.cohort`)."""
FIELD_OF_VIEW = (240.0, 240.0, 155.0)
"""Extent of the full volume in mm along x, y, z: that of the Decathlon brain task."""
SLICE_THICKNESS = 1.0
"""Distance of two axial slices in mm; a grid of fewer slices is the central slab of the full volume."""
CENTRE = (0.0, -17.0, 10.0)
"""Centre of the field of view in MNI coordinates (mm, right-anterior-superior)."""


@dataclass(frozen=True)
class VoxelGrid:
    """A regular grid of voxels around `CENTRE`.

    The first index runs from right to left, the second from anterior to posterior, the third from inferior to superior
    (LPS), as in the Decathlon brain task.

    Attributes
    ----------
    shape
        Voxels along x, y and z. In the plane they fill 240 mm x 240 mm, at least 8 each way; slices are 1 mm thick.
    """

    shape: tuple[int, int, int]

    def __post_init__(self) -> None:
        """Raise `ValueError` for another number of axes, a coarser plane, or more slices than the full volume has."""
        shape, depth = tuple(self.shape), int(FIELD_OF_VIEW[2] / SLICE_THICKNESS)
        if len(shape) != 3 or min(shape[:2]) < 8 or not 1 <= shape[2] <= depth:
            raise ValueError(f"Expected grid as (x, y, z) with x, y >= 8 and 1 <= z <= {depth}, found {shape}.")

    @property
    def voxel(self) -> tuple[float, float, float]:
        """Voxel size in mm along x, y, z."""
        return FIELD_OF_VIEW[0] / self.shape[0], FIELD_OF_VIEW[1] / self.shape[1], SLICE_THICKNESS

    @property
    def affine(self) -> np.ndarray:
        """Matrix (4, 4) from voxel index to world coordinates in mm (right-anterior-superior, the NIfTI convention)."""
        affine = np.diag([-self.voxel[0], -self.voxel[1], self.voxel[2], 1.0])
        affine[:3, 3] = [axis[0] for axis in self.axes()]
        return affine

    def axes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the world coordinates (mm) of the voxel centres along each axis."""
        x, y, z = (
            centre + sign * (np.arange(n) - (n - 1) / 2) * size
            for n, size, sign, centre in zip(self.shape, self.voxel, (-1, -1, 1), CENTRE, strict=True)
        )
        return x, y, z


@dataclass(frozen=True)
class Simulated:
    """The simulated cohort; used where source is simulated.

    Attributes
    ----------
    seed
        Another seed gives other patients and other scanners.
    grid
        Voxels along x, y and z. In the plane they fill 240 mm x 240 mm; slices are 1 mm thick, around the middle of the
        brain.
    scanners
        Scanners in the cohort, each with a random field strength and protocol.
    population
        standard; vendor (the same anatomies on scanners of another vendor); healthy (no tumours, ages 18 to 95); heavy
        (several large lesions, wide oedema, cavities); procedural (brains from implicit shapes, not derived from ICBM
        152); drawn (anatomy, lesions and scanners of a character that the seed decides).
    scanner_patients
        Training patients of each scanner, in blocks of consecutive numbers; null scans every patient at a random
        scanner, as test patients always are.
    """

    seed: Seed = 2026
    grid: Annotated[list[Annotated[int, Within(ge=8)]], Filled(3, 3)] = field(default_factory=lambda: [64, 64, 24])
    scanners: Count = 11
    population: Annotated[str, OneOf((*FIXED, DRAWN))] = "standard"
    scanner_patients: list[Count] | None = None

    def __post_init__(self) -> None:
        """Refuse settings that do not fit each other."""
        check_fields(self)
        self.voxels()
        if self.scanner_patients is not None and len(self.scanner_patients) != self.scanners:
            raise ValueError(
                f"Expected scanner_patients as one number for each of {self.scanners} scanners, found "
                f"{len(self.scanner_patients)}: {self.scanner_patients}."
            )

    def voxels(self) -> VoxelGrid:
        """Return the grid, or raise a ``ValueError`` if it is invalid."""
        x, y, z = self.grid
        return VoxelGrid((x, y, z))
