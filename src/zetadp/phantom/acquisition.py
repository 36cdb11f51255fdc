"""From the signal of every voxel to stored intensities: slices, receive field, gain and noise."""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from zetadp.phantom.deformation import smooth_field
from zetadp.phantom.grid import SLICE_THICKNESS, VoxelGrid
from zetadp.phantom.physics import rician
from zetadp.phantom.scanners import Scanner

NOISE_VOXEL = 3.75
"""In-plane voxel size (mm) for which noise is stated."""
BIAS_SPACING = 90.0
"""Distance of the knots of the receive field, in mm."""
HEAD = 80.0
"""Distance (mm) from the middle of the head at which the sensitivity of a coil array is one."""


def acquire(
    signal: np.ndarray,
    inside: np.ndarray,
    grid: VoxelGrid,
    scanner: Scanner,
    channel: int,
    noise: float,
    rng: np.random.Generator,
) -> np.ndarray:
    """Turn the signal of the voxels in the brain into stored intensities.

    Parameters
    ----------
    signal
        Signed signal (n,) of the voxels in the brain.
    inside
        Mask (x, y, z) of these voxels on the grid.
    grid, scanner
        Positions of the voxels, and the scanner that acquires them.
    channel
        Index of the sequence in `scanners.CHANNELS`.
    noise
        Standard deviation of the noise of an average scanner in each part of the signal, relative to the mean signal,
        for voxels of `NOISE_VOXEL` in the plane.
    rng
        Source of receive field, gain and noise.

    Returns
    -------
    Array (n,), int16, all above zero.
    """
    bias = np.exp(scanner.bias * smooth_field(rng, grid, BIAS_SPACING)[inside])
    gain = rng.uniform(300, 3000)
    if scanner.thickness is not None:
        signal = _averaged_over_slices(signal, inside, scanner.thickness[channel])
    signal = signal * bias
    if scanner.array:
        signal = signal * np.exp(np.float32(scanner.array) * (_outwardness(grid, inside) - 1))
    signal = signal / np.abs(signal).mean()
    sigma = noise * scanner.noise * NOISE_VOXEL / np.sqrt(grid.voxel[0] * grid.voxel[1])
    if scanner.acceleration:
        uneven = 1 + np.float32(scanner.acceleration) * np.clip(1 - _outwardness(grid, inside), 0, 1)
        # Noise that varies over space: dividing the signal and multiplying the magnitude scales the noise alone.
        magnitude = rician(signal / uneven, sigma, rng) * uneven
    else:
        magnitude = rician(signal, sigma, rng)
    return np.asarray(np.clip(np.rint(gain * magnitude), 1, np.iinfo(np.int16).max), dtype=np.int16)


def _averaged_over_slices(signal: np.ndarray, inside: np.ndarray, thickness: float) -> np.ndarray:
    """Average over slices that are thicker than those of the grid; the neighbourhood of the brain is dark."""
    slices = round(thickness / SLICE_THICKNESS)
    volume = np.zeros(inside.shape, dtype=np.float32)
    volume[inside] = signal
    return np.asarray(ndimage.uniform_filter1d(volume, slices, axis=2, mode="nearest")[inside])


def _outwardness(grid: VoxelGrid, inside: np.ndarray) -> np.ndarray:
    """Return the squared distance from the axis of the head, in units of `HEAD`, of the voxels in the brain."""
    x, y, _ = (axis - axis.mean() for axis in grid.axes())
    squared = (np.square(x)[:, None] + np.square(y)[None, :]) / HEAD**2
    return np.asarray(np.broadcast_to(squared[:, :, None], inside.shape)[inside], dtype=np.float32)
