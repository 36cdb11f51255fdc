r"""The brain of the simulated cohort: tissue fractions of the ICBM 152 atlas, sampled where a patient's voxels lie.

The maps are the ICBM 152 nonlinear symmetric template of 2009 (release a, 1 mm) as nilearn ships it. Fonov et al.,
NeuroImage 54 (2011) 313-327, doi:10.1016/j.neuroimage.2010.07.033. A random affine map plus a random smooth
displacement maps the space of a patient to that of the atlas. Random draws do not depend on the grid: a patient has
the same anatomy at any resolution.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from importlib import resources

import nibabel as nib
import numpy as np
from scipy import ndimage
from scipy.spatial.transform import Rotation

from zetadp.phantom.settings import CENTRE, FIELD_OF_VIEW, VoxelGrid


class Tissue(IntEnum):
    """Content of voxels, in the order of the rows of all fraction arrays."""

    CSF = 0
    GREY = 1
    WHITE = 2
    BLOOD = 3
    OEDEMA = 4
    CORE = 5
    RIM = 6


VENTRICLES = (0.0, -18.0, 14.0)
"""Middle of the lateral ventricles in MNI coordinates (mm)."""
VENTRICLE_AXES = (30.0, 50.0, 24.0)
"""Half-axes (mm) of an ellipsoid that holds the lateral and the third ventricle but neither cortex nor falx."""
FISSURE = 5.0
"""Distance from the midline (mm) over which the large veins lie."""
HEALTHY = 4
"""Number of tissues that every brain has; the rest are lesions."""


@dataclass(frozen=True)
class Atlas:
    """Fractions of the atlas on a 1 mm grid.

    Attributes
    ----------
    brain, grey, white, sulci
        Arrays (x, y, z) in [0, 1], float32: brain, grey matter, white matter, and the share of the cerebrospinal fluid
        that lies between gyri, where the vessels run, and not in the ventricles.
    origin
        MNI coordinates (mm) of the first voxel; axes run right, anterior and superior.
    """

    brain: np.ndarray
    grey: np.ndarray
    white: np.ndarray
    sulci: np.ndarray
    origin: np.ndarray


@lru_cache(maxsize=2)
def load_atlas(blur: tuple[float, float, float]) -> Atlas:
    """Read the tissue maps, smoothed for voxels that are larger than those of the atlas.

    Parameters
    ----------
    blur
        Standard deviation of the smoothing in mm along each axis.

    Returns
    -------
    The atlas, cached in memory.
    """
    folder = resources.files("nilearn") / "datasets" / "data"
    maps = {}
    for name in ("t1", "gm", "wm"):
        with resources.as_file(folder / f"mni_icbm152_{name}_tal_nlin_sym_09a_converted.nii.gz") as path:
            image = nib.Nifti1Image.from_filename(path)
            maps[name] = np.asarray(image.dataobj)
            origin = np.asarray(image.affine[:3, 3])
    # nilearn's T1 template is stripped of the skull: it is zero outside the brain.
    brain = (maps["t1"] > 0).astype(np.float32)
    grey, white = (brain * maps[name] / np.float32(255) for name in ("gm", "wm"))
    sulci = np.clip(4 * ndimage.gaussian_filter(grey, 4.0, truncate=2.5) - 0.4, 0, 1)
    # Ventricles and cisterns also touch grey matter, but contain no cortical veins.
    indices = np.ogrid[tuple(slice(0, n) for n in brain.shape)]
    reach = zip(indices, origin, VENTRICLES, VENTRICLE_AXES, strict=True)
    sulci[sum(((index + first - middle) / axis) ** 2 for index, first, middle, axis in reach) < 1] = 0
    brain, grey, white = (ndimage.gaussian_filter(values, blur, truncate=3.0) for values in (brain, grey, white))
    return Atlas(brain=brain, grey=grey, white=white, sulci=sulci, origin=origin)


def blur_of(voxel: tuple[float, float, float]) -> tuple[float, float, float]:
    """Return the Gaussian smoothing (mm) that stands for averaging 1 mm atlas voxels over a larger voxel."""
    x, y, z = (float(np.sqrt(max(size**2 - 1, 0.0) / 12)) for size in voxel)
    return x, y, z


def sample(values: np.ndarray, atlas: Atlas, points: np.ndarray) -> np.ndarray:
    """Interpolate an atlas map linearly at MNI coordinates ``points`` of shape (3, ...); zero outside the atlas."""
    index = points - atlas.origin.astype(np.float32).reshape((3,) + (1,) * (points.ndim - 1))
    return np.asarray(ndimage.map_coordinates(values, index, order=1, output=np.float32, cval=0.0))


@dataclass(frozen=True)
class Brain:
    """A healthy brain, to which lesions can be added.

    Attributes
    ----------
    inside
        Mask (x, y, z) of the voxels in the brain.
    points
        Coordinates (3, n) of these voxels, in mm, in the space in which lesions are described.
    healthy
        Fractions (4, n) of the healthy tissues in these voxels: cerebrospinal fluid, grey matter, white matter and
        blood, float32. They sum to one.
    white
        Function that returns the share of white matter (n,) at coordinates (3, n) of that space.
    """

    inside: np.ndarray
    points: np.ndarray
    healthy: np.ndarray
    white: Callable[[np.ndarray], np.ndarray]


def brain_of_atlas(points: np.ndarray, grid: VoxelGrid, cut: float, atrophy: float, vessels: float) -> Brain:
    """Return the brain that the atlas shows at given points.

    Parameters
    ----------
    points
        MNI coordinates (3, x, y, z) of the grid's voxels, in mm.
    grid
        The grid, whose voxels average the atlas.
    cut
        Share of the brain in a voxel above which it is inside. Tools that strip the skull cut a little inside or
        outside the surface.
    atrophy
        Share of the grey matter that fluid replaces where the two meet, in (-1, 1); negative fills the sulci.
    vessels
        Share of blood in the fluid between gyri, in [0, 1]; four times as much in the fissure between the hemispheres.
    """
    atlas = load_atlas(blur_of(grid.voxel))
    brain = sample(atlas.brain, atlas, points)
    inside = brain > cut
    points = points[:, inside]
    grey, white = sample(atlas.grey, atlas, points), sample(atlas.white, atlas, points)
    # Blurred maps lose weight at the edge of the brain; the mask has been cut already, so nothing there is air.
    weight = np.maximum(brain[inside], np.float32(1e-3))
    grey, white = np.clip(grey / weight, 0, 1), np.clip(white / weight, 0, 1)
    fluid = np.clip(1 - grey - white, 0, 1)
    lost = np.float32(atrophy) * grey * fluid
    grey, fluid = grey - lost, fluid + lost
    blood = share_of_blood(points[0], vessels) * sample(atlas.sulci, atlas, points) * fluid
    fractions = np.stack([fluid - blood, grey, white, blood])
    healthy = np.asarray(fractions / fractions.sum(axis=0), dtype=np.float32)
    return Brain(inside, points, healthy, white=lambda at: sample(atlas.white, atlas, at))


def share_of_blood(across: np.ndarray, vessels: float) -> np.ndarray:
    """Return the share of blood in the fluid between gyri, at distances (mm) from the midline.

    Veins and sinuses gather in the fissure between the hemispheres, where it is four times ``vessels``.
    """
    gathering = 1 + 3 * np.exp(-np.square(across / FISSURE) / 2)
    return np.asarray(np.minimum(vessels * gathering, 1))


SPLINE_VARIANCE = 151 / 315
"""Integral of the squared cubic B-spline: the mean variance that one axis leaves of independent unit coefficients."""
VENTRICLE_REACH = np.array([26.0, 42.0, 24.0])
"""Distances (mm along x, y, z) over which swelling of the ventricles pushes the tissue around them."""


def spline_weights(positions: np.ndarray, length: float, spacing: float) -> np.ndarray:
    """Return the matrix of uniform cubic B-splines at given positions.

    Parameters
    ----------
    positions
        Positions (n,) in mm, measured from the middle of an interval of the given length.
    length, spacing
        Length of the interval, and distance of two knots, in mm.

    Returns
    -------
    Array (n, knots), float32. Rows sum to one inside the interval.
    """
    knots = int(np.ceil(length / spacing)) + 3
    t = (positions + length / 2) / spacing + 1
    distance = np.abs(t[:, None] - np.arange(knots))
    inner = 2 / 3 - distance**2 + distance**3 / 2
    outer = np.clip(2 - distance, 0, None) ** 3 / 6
    return np.asarray(np.where(distance < 1, inner, outer), dtype=np.float32)


def smooth_field(rng: np.random.Generator, grid: VoxelGrid, spacing: float) -> np.ndarray:
    """Draw a smooth random scalar field of mean 0 and variance 1 (on average over space).

    Parameters
    ----------
    rng
        Source of the spline coefficients; their number depends on ``spacing`` only, not on the grid.
    grid
        The grid on which the field is evaluated.
    spacing
        Distance of two knots in mm: about the size of the smallest bump.

    Returns
    -------
    Array of the grid's shape, float32: a tensor product of cubic B-splines.
    """
    x, y, z = (
        spline_weights(axis - centre, length, spacing)
        for axis, centre, length in zip(grid.axes(), CENTRE, FIELD_OF_VIEW, strict=True)
    )
    coefficients = rng.standard_normal((x.shape[1], y.shape[1], z.shape[1]), dtype=np.float32)
    field = np.einsum("ai,ijk,bj,ck->abc", x, coefficients, y, z, optimize=True)
    return np.asarray(field * SPLINE_VARIANCE**-1.5, dtype=np.float32)


@dataclass(frozen=True)
class Variability:
    """Variation of shape between patients, as standard deviations unless stated otherwise.

    Attributes
    ----------
    rotation
        Rotation about each axis, in degrees: what remains after rigid registration to an atlas, as in the Decathlon
        brain task.
    scale
        Relative size along each axis, which rigid registration does not change.
    shift
        Displacement along each axis that remains after registration, in mm.
    displacements
        Pairs of (knot spacing, standard deviation), both in mm, of the smooth displacements that are added up.
    ventricles
        Lowest and highest swelling of the ventricles, as a fraction of their width.
    """

    rotation: float = 2.0
    scale: float = 0.05
    shift: float = 1.5
    displacements: tuple[tuple[float, float], ...] = ((60.0, 5.0), (25.0, 2.0))
    ventricles: tuple[float, float] = (-0.15, 0.4)


def atlas_coordinates(rng: np.random.Generator, grid: VoxelGrid, variability: Variability | None) -> np.ndarray:
    r"""Draw one patient's shape and return the coordinates of each voxel in the atlas.

    A voxel at :math:`p` shows the atlas at :math:`w(c + R\,S\,(p - c) + t + \sum_i d_i(p))`, with rotation
    :math:`R`, scaling :math:`S`, shift :math:`t`, smooth displacements :math:`d_i`, and the map :math:`w` that
    magnifies the neighbourhood of the ventricles.

    Returns
    -------
    Array (3, x, y, z) of MNI coordinates in mm, float32.
    """
    spread = variability or Variability()
    turn = Rotation.from_euler("xyz", rng.normal(0.0, spread.rotation, 3), degrees=True)
    matrix = turn.as_matrix() @ np.diag(np.exp(rng.normal(0.0, spread.scale, 3)))
    shift = rng.normal(0.0, spread.shift, 3)
    swelling = rng.uniform(*spread.ventricles)

    centre = np.array(CENTRE)
    x, y, z = (np.asarray(axis - middle, dtype=np.float32) for axis, middle in zip(grid.axes(), centre, strict=True))
    points = np.empty((3, *grid.shape), dtype=np.float32)
    for i in range(3):
        along = matrix[i].astype(np.float32)
        points[i] = along[0] * x[:, None, None] + along[1] * y[:, None] + along[2] * z
        points[i] += np.float32(centre[i] + shift[i])
        for spacing, size in spread.displacements:
            points[i] += np.float32(size) * smooth_field(rng, grid, spacing)
    return magnify_ventricles(points, swelling)


def magnify_ventricles(points: np.ndarray, swelling: float) -> np.ndarray:
    """Pull atlas coordinates (3, ...) toward the middle of the ventricles, so that these appear larger."""
    shape = (3,) + (1,) * (points.ndim - 1)
    from_middle = points - np.array(VENTRICLES, dtype=np.float32).reshape(shape)
    reach = np.square(from_middle / VENTRICLE_REACH.astype(np.float32).reshape(shape)).sum(axis=0)
    return np.asarray(points - np.float32(swelling) * np.exp(-reach / 2) * from_middle, dtype=np.float32)
