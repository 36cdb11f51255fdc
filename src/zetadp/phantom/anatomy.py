"""The brain of the simulated cohort: tissue fractions of the ICBM 152 atlas, sampled where a patient's voxels lie.

The maps are the ICBM 152 nonlinear symmetric template of 2009 (release a, 1 mm) as nilearn ships it. Fonov et al.,
NeuroImage 54 (2011) 313-327, doi:10.1016/j.neuroimage.2010.07.033.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from importlib import resources

import nibabel as nib
import numpy as np
from scipy import ndimage


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
    """Fractions of the atlas on its own 1 mm grid.

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
def load_atlas(blur: tuple[float, float, float] = (0.0, 0.0, 0.0)) -> Atlas:
    """Read the tissue maps, smoothed for voxels that are larger than those of the atlas.

    Parameters
    ----------
    blur
        Standard deviation of the smoothing in mm along each axis.

    Returns
    -------
    The atlas, kept in memory for the next call.
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
    places = np.ogrid[tuple(slice(0, n) for n in brain.shape)]
    reach = zip(places, origin, VENTRICLES, VENTRICLE_AXES, strict=True)
    sulci[sum(((index + first - middle) / axis) ** 2 for index, first, middle, axis in reach) < 1] = 0
    brain, grey, white = (ndimage.gaussian_filter(each, blur, truncate=3.0) for each in (brain, grey, white))
    return Atlas(brain=brain, grey=grey, white=white, sulci=sulci, origin=origin)


def blur_of(voxel: tuple[float, float, float]) -> tuple[float, float, float]:
    """Return the Gaussian smoothing (mm) that stands for averaging 1 mm atlas voxels over a larger voxel."""
    x, y, z = (float(np.sqrt(max(size**2 - 1, 0.0) / 12)) for size in voxel)
    return x, y, z


def sample(values: np.ndarray, atlas: Atlas, place: np.ndarray) -> np.ndarray:
    """Interpolate an atlas map linearly at MNI coordinates ``place`` of shape (3, ...); zero outside the atlas."""
    index = place - atlas.origin.astype(np.float32).reshape((3,) + (1,) * (place.ndim - 1))
    return np.asarray(ndimage.map_coordinates(values, index, order=1, output=np.float32, cval=0.0))


def healthy_fractions(
    atlas: Atlas, place: np.ndarray, atrophy: float, vessels: float, brain: np.ndarray | None = None
) -> np.ndarray:
    """Return the fractions of cerebrospinal fluid, grey matter, white matter and blood.

    Parameters
    ----------
    atlas
        The tissue maps.
    place
        MNI coordinates (3, n) of voxels inside the brain, in mm.
    atrophy
        Share of the grey matter that fluid replaces where the two meet, in (-1, 1); negative fills the sulci.
    vessels
        Share of blood in the fluid between gyri, in [0, 1]; four times as much in the fissure between the hemispheres.
    brain
        The atlas's map of the brain (n,) in the same voxels, if the caller has sampled it already.

    Returns
    -------
    Array (4, n) that sums to one over the tissues, float32.
    """
    grey, white = sample(atlas.grey, atlas, place), sample(atlas.white, atlas, place)
    # Blurred maps lose weight at the edge of the brain; the mask has been cut already, so nothing there is air.
    inside = np.maximum(sample(atlas.brain, atlas, place) if brain is None else brain, np.float32(1e-3))
    grey, white = np.clip(grey / inside, 0, 1), np.clip(white / inside, 0, 1)
    fluid = np.clip(1 - grey - white, 0, 1)
    lost = np.float32(atrophy) * grey * fluid
    grey, fluid = grey - lost, fluid + lost
    # Veins and sinuses gather in the fissure between the hemispheres.
    gathered = 1 + 3 * np.exp(-np.square(place[0] / np.float32(FISSURE)) / 2)
    blood = np.minimum(vessels * gathered, 1) * sample(atlas.sulci, atlas, place) * fluid
    fractions = np.stack([fluid - blood, grey, white, blood])
    return np.asarray(fractions / fractions.sum(axis=0), dtype=np.float32)
