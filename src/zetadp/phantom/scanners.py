"""Scanners of the simulated cohort, one per centre, and how they turn the signal of voxels into stored intensities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from zetadp.phantom.anatomy import Tissue, smooth_field
from zetadp.phantom.physics import (
    T1,
    Acquisition,
    GradientEcho,
    PreparedFlair,
    Protocol,
    nulling_time,
    rician,
)
from zetadp.phantom.settings import CHANNELS, SLICE_THICKNESS, VoxelGrid

FLUID_T1 = 4300.0
"""T1 of cerebrospinal fluid (ms) for which centres set the inversion time of FLAIR."""
FLUID_T2 = 2000.0
"""T2 of cerebrospinal fluid (ms) for which they set the inversion time after T2 preparation."""
NOISE, NOISE_VOXEL = 0.03, 3.75
"""Noise of an average scanner, and the in-plane voxel size (mm) for which it is stated.

It is the standard deviation in each of the two parts of the signal, relative to the mean signal of the brain. Finer
voxels hold less signal and are noisier, so that an average over a given area is equally noisy on every grid.
"""
BIAS_SPACING = 90.0
"""Distance of the knots of the receive field, in mm."""
HEAD = 80.0
"""Distance (mm) from the middle of the head at which the sensitivity of a coil array is one."""


@dataclass(frozen=True)
class Scanner:
    """One centre's scanner.

    Attributes
    ----------
    field_strength
        1.5 or 3 tesla.
    protocols
        Nominal protocol of each of `CHANNELS`.
    bias
        Standard deviation of the logarithm of the receive field over space.
    noise
        Noise relative to that of the average scanner.
    array
        Logarithm of how much brighter the surface of the brain is than its middle, because coils near the head
        receive most from it. Zero if the scanner corrects for this.
    acceleration
        Geometry factor of parallel imaging less one: the relative increase of noise in the middle of the brain over
        that at its surface. Pruessmann et al., Magn. Reson. Med. 42 (1999) 952-962.
    thickness
        Thickness in mm of the slices in which each of `CHANNELS` is acquired, before resampling to the grid.
    """

    field_strength: float
    protocols: tuple[Acquisition, ...]
    bias: float
    noise: float
    array: float = 0.0
    acceleration: float = 0.0
    thickness: tuple[float, ...] = (SLICE_THICKNESS,) * len(CHANNELS)


def draw_scanner(rng: np.random.Generator) -> Scanner:
    """Draw a scanner with the protocols of its centre.

    Ranges cover usual clinical protocols of brain tumour imaging: Ellingson et al., Neuro-Oncology 17 (2015)
    1188-1198, doi:10.1093/neuonc/nov095. A centre acquires T1 weighting by spin echo or with inversion, and with
    the same parameters before and after contrast, as that consensus asks.
    """
    field_strength = float(rng.choice([1.5, 3.0]))
    # At 3 T the longer T1 leaves a spin echo less contrast, so most centres invert there.
    inverted = bool(rng.random() < (0.7 if field_strength > 2 else 0.3))
    t1 = _t1_weighted(rng, float(T1[field_strength][Tissue.GREY]), inverted=inverted)
    tr = rng.uniform(7000, 11000)
    flair = Protocol(tr=tr, te=rng.uniform(95, 140), ti=nulling_time(FLUID_T1, tr) * rng.uniform(0.92, 1.04))
    t2 = Protocol(tr=rng.uniform(2800, 6500), te=rng.uniform(75, 120))
    return Scanner(
        field_strength=field_strength,
        protocols=(flair, t1, t1, t2),
        bias=float(rng.uniform(0.05, 0.25)),
        noise=float(rng.uniform(0.5, 1.5)),
    )


def _t1_weighted(rng: np.random.Generator, grey_t1: float, *, inverted: bool) -> Protocol:
    if inverted:
        # The signal of grey matter must be past zero, or its magnitude would exceed that of white matter.
        tr = rng.uniform(1700, 2400)
        return Protocol(tr=tr, te=rng.uniform(3, 12), ti=nulling_time(grey_t1, tr) * rng.uniform(1.25, 1.6))
    return Protocol(tr=rng.uniform(400, 750), te=rng.uniform(8, 18))


def draw_vendor_scanner(rng: np.random.Generator) -> Scanner:
    """Draw a scanner whose protocols lie outside the ranges of `draw_scanner`.

    T1 weighting is by a spoiled gradient echo, FLAIR by a short three-dimensional train after T2 preparation, T2
    weighting by late echoes at short repetition, in thick slices. The receive field is that of a coil array close to
    the head, and noise gathers in the middle, where parallel imaging amplifies it.
    """
    t1 = _gradient_echo(rng)
    tr, preparation = rng.uniform(4800, 5600), rng.uniform(110, 170)
    flair = PreparedFlair(
        tr=tr,
        te=rng.uniform(68, 88),
        ti=nulling_time(FLUID_T1, tr, np.exp(-preparation / FLUID_T2)) * rng.uniform(0.95, 1.03),
        preparation=preparation,
    )
    t2 = Protocol(tr=rng.uniform(2000, 2600), te=rng.uniform(130, 170))
    return Scanner(
        field_strength=float(rng.choice([1.5, 3.0])),
        protocols=(flair, t1, t1, t2),
        bias=float(rng.uniform(0.02, 0.1)),
        noise=float(rng.uniform(0.5, 1.2)),
        array=float(rng.uniform(0.4, 0.9)),
        acceleration=float(rng.uniform(0.5, 1.5)),
        # Inversion and gradient echoes are read as volumes; T2w is still a stack of slices.
        thickness=(float(rng.integers(1, 3)), 1.0, 1.0, float(rng.integers(3, 6))),
    )


def _gradient_echo(rng: np.random.Generator) -> Acquisition:
    """Draw a fast gradient echo, or a slower one with a larger flip angle."""
    if rng.random() < 0.5:
        return GradientEcho(tr=rng.uniform(7, 11), te=rng.uniform(2.5, 4.6), flip=rng.uniform(15, 22))
    return GradientEcho(tr=rng.uniform(22, 30), te=rng.uniform(3, 6), flip=rng.uniform(26, 34))


def acquire(
    signal: np.ndarray,
    inside: np.ndarray,
    grid: VoxelGrid,
    scanner: Scanner,
    channel: int,
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
        Index of the sequence in `CHANNELS`.
    rng
        Source of receive field, gain and noise.

    Returns
    -------
    Array (n,), int16, all above zero.
    """
    bias = np.exp(scanner.bias * smooth_field(rng, grid, BIAS_SPACING)[inside])
    gain = rng.uniform(300, 3000)
    outward = _outwardness(grid, inside)
    signal = _averaged_over_slices(signal, inside, scanner.thickness[channel]) * bias
    signal = signal * np.exp(np.float32(scanner.array) * (outward - 1))
    signal = signal / np.abs(signal).mean()
    sigma = NOISE * scanner.noise * NOISE_VOXEL / np.sqrt(grid.voxel[0] * grid.voxel[1])
    # Noise that varies over space: dividing the signal and multiplying the magnitude scales the noise alone.
    uneven = 1 + np.float32(scanner.acceleration) * np.clip(1 - outward, 0, 1)
    magnitude = rician(signal / uneven, sigma, rng) * uneven
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
