"""The public simulation: patients drawn as broadly as physics allows, on which networks are trained before real ones.

Nothing here is the data of a person, so learning from it costs no privacy. Atlas and signal equations are those of the
simulated cohort (`phantom`); distributions and random streams are not. Orientation, shape, lesions, field strength,
protocols and faults of the image are drawn from wide ranges, so that a hospital is just one more variation. This is
domain randomisation: Tobin et al., IROS (2017), doi:10.1109/IROS.2017.8202133; for brain images Billot et al., Med.
Image Anal. 86 (2023) 102789, doi:10.1016/j.media.2023.102789.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from zetadp.mri.slicing import centre_slices, resize_area
from zetadp.phantom.anatomy import blur_of, healthy_fractions, load_atlas, sample
from zetadp.phantom.deformation import Variability, atlas_coordinates, smooth_field
from zetadp.phantom.grid import VoxelGrid, check_shape
from zetadp.phantom.lesions import add_tumours, draw_lesions, hollowed
from zetadp.phantom.physics import rician
from zetadp.phantom.public_protocols import draw_field_strength, draw_public_tissues, draw_signals
from zetadp.phantom.scanners import CHANNELS

Anatomy = Callable[[np.random.Generator, VoxelGrid], tuple[np.ndarray, np.ndarray]]
"""Function that draws a brain on a grid: the mask (x, y, z) of its voxels, and the tissue fractions (7, n) in them."""
SHAPES = Variability(
    rotation=5.0,
    scale=0.08,
    shift=4.0,
    displacements=((60.0, 7.0), (25.0, 3.5), (14.0, 1.0)),
    ventricles=(-0.3, 0.9),
)
"""Variation of orientation, size and shape between patients."""
SLAB = 12.0
"""Largest distance (mm) of the middle slice from its usual height, up or down."""
BIAS_SPACINGS = (60.0, 80.0, 100.0, 120.0)
"""Distances of the knots of the receive field, in mm."""
REMNANT_SPACING = 40.0
"""Distance of the knots of the field that decides where skull and scalp remain, in mm."""


@dataclass(frozen=True)
class PublicSettings:
    """Settings of the public patients.

    Attributes
    ----------
    seed
        Decides everything that is random.
    patients
        Number of patients; they are numbered from 0.
    grid
        Voxels along x, y, z over 240 mm x 240 mm, with slices of 1 mm.
    hospitals
        0 gives every patient a scanner of its own, for training. With another number, the patients of one hospital
        share scanner and protocol, as in a cohort: on such public patients, settings of private training are chosen.
    """

    seed: int = 1
    patients: int = 3000
    grid: tuple[int, int, int] = (64, 64, 24)
    hospitals: int = 0

    def __post_init__(self) -> None:
        """Refuse impossible settings; turn the lists of configuration files into tuples."""
        object.__setattr__(self, "grid", tuple(self.grid))
        for name, low in (("seed", 0), ("patients", 1), ("hospitals", 0)):
            value = getattr(self, name)
            if value < low:
                raise ValueError(f"Expected {name} >= {low}, found {value}.")
        check_shape(self.grid)


def public_name(number: int) -> str:
    """Return the identifier of a public patient.

    Examples
    --------
    >>> public_name(7)
    'public-0007'
    """
    return f"public-{number:04d}"


def simulate_public_patient(
    settings: PublicSettings, number: int, slices: int = 20, size: int = 32, anatomy: Anatomy | None = None
) -> np.ndarray:
    """Simulate the images of one public patient.

    Parameters
    ----------
    settings
        The public simulation.
    number
        Number of the patient, from 0.
    slices
        Number of centre slices.
    size
        Rows and columns of an image, by area averaging.
    anatomy
        Function that draws a brain; by default `draw_anatomy`.

    Returns
    -------
    Array (sequence, slice, row, column), float32, in units of the mean signal of the brain; orientation as
    `mri.volumes.read_centre_slices` returns it, sequences as in `scanners.CHANNELS`. It depends on the arguments
    only: on every call it is the same, whichever other patients are simulated.
    """
    rng = public_stream(settings, number)
    grid = VoxelGrid(settings.grid)
    inside, fractions = (anatomy or draw_anatomy)(rng, grid)
    scanner = scanner_stream(settings, number) if settings.hospitals else rng
    tissues = draw_public_tissues(scanner, draw_field_strength(scanner))
    signals = draw_signals(scanner, tissues)
    thickness, sharpness = scanner.uniform(0, 2.0), scanner.uniform(0, 0.7)
    images = np.empty((len(CHANNELS), slices, size, size), dtype=np.float32)
    for index, signal in enumerate(signals):
        shown = np.zeros(grid.shape, dtype=np.float32)
        shown[inside] = _shaded(rng, signal @ fractions, inside, grid)
        mask = inside | _add_remnants(rng, shown, inside, grid)
        shown = _blurred(rng, shown, sharpness, thickness)
        shown = _noisy(rng, shown, mask)
        shown = _clipped(rng, shown, mask)
        # From left-posterior-superior voxels to (slice, row, column) with anterior up and left on the left.
        images[index] = resize_area(np.transpose(shown[::-1, :, centre_slices(grid.shape[2], slices)], (2, 1, 0)), size)
    return images


def public_stream(settings: PublicSettings, number: int) -> np.random.Generator:
    """Return the one stream of a public patient.

    Its generator (PCG64) is not the one of the cohort and of training (Philox, `zetadp.base.randomness`), so that no
    choice of seeds gives a public patient and a private one the same numbers.
    """
    if not 0 <= number < settings.patients:
        raise ValueError(f"Expected a patient number from 0 to {settings.patients - 1}, found {number}.")
    return np.random.Generator(np.random.PCG64([settings.seed, number]))


def scanner_stream(settings: PublicSettings, number: int) -> np.random.Generator:
    """Return the stream of the scanner of a patient's hospital, which all patients of the hospital share."""
    return np.random.Generator(np.random.PCG64([settings.seed, number % settings.hospitals, 1]))


def draw_anatomy(rng: np.random.Generator, grid: VoxelGrid) -> tuple[np.ndarray, np.ndarray]:
    """Draw a brain with or without lesions.

    Returns
    -------
    Mask (x, y, z) of the brain, and the tissue fractions (7, n) in its voxels.
    """
    atlas = load_atlas(blur_of(grid.voxel))
    place = atlas_coordinates(rng, grid, SHAPES)
    place[2] += np.float32(rng.uniform(-SLAB, SLAB))
    # The skull is stripped with a larger or a smaller margin.
    inside = sample(atlas.brain, atlas, place) > rng.uniform(0.25, 0.75)
    place = place[:, inside]
    # From the full brain of the young to the wide sulci of the old, and beyond.
    healthy = healthy_fractions(atlas, place, atrophy=rng.uniform(-0.6, 0.95), vessels=rng.uniform(0.05, 0.4))
    tumours = draw_lesions(rng, lambda at: sample(atlas.white, atlas, at))
    fractions = add_tumours(healthy, place, tumours)
    if tumours and rng.random() < 0.15:
        fractions = hollowed(fractions)
    return inside, fractions


def _shaded(rng: np.random.Generator, signal: np.ndarray, inside: np.ndarray, grid: VoxelGrid) -> np.ndarray:
    """Return the signal (n,) of the brain under a receive field, scaled to a mean magnitude of one."""
    depth = rng.uniform(0.03, 0.45)
    field = smooth_field(rng, grid, float(rng.choice(BIAS_SPACINGS)))
    shaded = signal * np.exp(depth * field[inside])
    return np.asarray(shaded / np.abs(shaded).mean(), dtype=np.float32)


def _add_remnants(rng: np.random.Generator, shown: np.ndarray, inside: np.ndarray, grid: VoxelGrid) -> np.ndarray:
    """Add patches of skull or scalp around the brain to some images (in place), and return their mask."""
    if rng.random() >= 0.15:
        return np.zeros_like(inside)
    around = ndimage.binary_dilation(inside, iterations=int(rng.integers(1, 3))) & ~inside
    patches = np.asarray(around & (smooth_field(rng, grid, REMNANT_SPACING) > rng.uniform(-0.5, 1.5)))
    shown[patches] = rng.uniform(0.3, 2.0)
    return patches


def _blurred(rng: np.random.Generator, shown: np.ndarray, sharpness: float, thickness: float) -> np.ndarray:
    """Blur most images as motion, coarse resolution and thick slices do.

    Parameters
    ----------
    rng
        Random generator, for what differs between the images of a patient.
    shown
        Signal (x, y, z).
    sharpness, thickness
        Standard deviation in the plane and across slices, in voxels, the same for all images of a patient.
    """
    if rng.random() >= 0.6:
        return shown
    deviations = (sharpness * rng.uniform(0.5, 1.0), sharpness, thickness)
    return np.asarray(ndimage.gaussian_filter(shown, deviations, truncate=3.0))


def _noisy(rng: np.random.Generator, shown: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return magnitudes with noise of the receiver; one image in ten has noise outside the brain, too."""
    noisy = rician(shown, float(np.exp(rng.uniform(np.log(0.004), np.log(0.12)))), rng)
    return np.where(mask, noisy, 0) if rng.random() < 0.9 else noisy


def _clipped(rng: np.random.Generator, shown: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Saturate the brightest voxels of some images, as conversions between file formats do."""
    if rng.random() >= 0.3:
        return shown
    return np.asarray(np.minimum(shown, np.quantile(shown[mask], rng.uniform(0.97, 0.999))))
