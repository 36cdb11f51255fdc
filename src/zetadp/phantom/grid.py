"""Positions of a simulated volume's voxels in space."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FIELD_OF_VIEW = (240.0, 240.0, 155.0)
"""Extent of the full volume in mm along x, y, z: that of the Decathlon brain task."""
SLICE_THICKNESS = 1.0
"""Distance of two axial slices in mm; a grid of fewer slices is the central slab of the full volume."""
CENTRE = (0.0, -17.0, 10.0)
"""Centre of the field of view in MNI coordinates (mm, right-anterior-superior)."""


def check_shape(shape: tuple[int, ...]) -> None:
    """Check the numbers of voxels along x, y, z of a simulated volume.

    Raises
    ------
    ValueError
        If there are not three, fewer than 8 in the plane, or more slices than the full volume has.
    """
    depth = int(FIELD_OF_VIEW[2] / SLICE_THICKNESS)
    if len(shape) != 3 or min(shape[:2]) < 8 or not 1 <= shape[2] <= depth:
        raise ValueError(f"Expected grid as (x, y, z) with x, y >= 8 and 1 <= z <= {depth}, found {shape}.")


@dataclass(frozen=True)
class VoxelGrid:
    """A regular grid of voxels around `CENTRE`.

    The first index runs from right to left, the second from anterior to posterior, the third from inferior to superior
    (LPS), as in the Decathlon brain task.

    Attributes
    ----------
    shape
        Voxels along x, y and z. In the plane they fill 240 mm x 240 mm; slices are 1 mm thick.
    """

    shape: tuple[int, int, int]

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
