"""The public simulation: patients as varied as physics allows, for training networks before private data are used.

No data of a person are used, so learning from them costs no privacy. Atlas and signal equations are those of the
simulated cohort (`phantom`); distributions and random streams are not. Orientation, shape, lesions, field strength,
protocols and faults of the image are drawn from wide ranges, so that a hospital is just one more variation. This is
domain randomisation: Tobin et al., IROS (2017), doi:10.1109/IROS.2017.8202133; for brain images Billot et al., Med.
Image Anal. 86 (2023) 102789, doi:10.1016/j.media.2023.102789.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import ndimage

from zetadp.mri.slicing import centre_slices, resize_area
from zetadp.phantom.anatomy import (
    Tissue,
    smooth_field,
)
from zetadp.phantom.head import draw_head, draw_head_tissues, suppress_fat
from zetadp.phantom.public_brains import draw_anatomy
from zetadp.phantom.scanners import (
    DENSITY,
    FLUID_T1,
    T1,
    T2,
    UPTAKE,
    Acquisition,
    GradientEcho,
    Protocol,
    Tissues,
    nulling_time,
    rician,
)
from zetadp.phantom.settings import CHANNELS, VoxelGrid

Anatomy = Callable[[np.random.Generator, VoxelGrid], tuple[np.ndarray, np.ndarray]]
"""Function that draws a brain on a grid: the mask (x, y, z) of its voxels, and the tissue fractions (7, n) in them."""
GRID = VoxelGrid((64, 64, 24))
"""The voxels of all public patients."""
BIAS_SPACINGS = (60.0, 80.0, 100.0, 120.0)
"""Distances of the knots of the receive field, in mm."""
WHOLE, CRUDE = 0.4, 0.2
"""Share of the patients whose volumes show the whole head, and of those with a crude mask; the others are stripped."""
REMNANTS, REMNANT_SPACING = 0.15, 40.0
"""Share of the other images with patches of skull or scalp, and distance (mm) of the knots of the field of patches."""
PALE = 0.4
"""Share of the patients whose brain takes up less contrast agent than is usual."""
FIELD_STRENGTHS = (0.5, 4.0)
"""Lowest and highest field strength, in tesla."""
T1_GROWTH = np.log(T1[3.0] / T1[1.5]) / np.log(2)
"""Power of the field strength with which T1 of each tissue grows, from its values at 1.5 T and 3 T.

Over clinical fields T1 follows a power law: Rooney et al., Magn. Reson. Med. 57 (2007) 308-318, doi:10.1002/mrm.21122.
"""
T2_GROWTH = np.log(T2[3.0] / T2[1.5]) / np.log(2)
"""Power of the field strength with which T2 of each tissue grows, in the same way."""
LONG_TR = 20.0
"""Repetition time (ms) above which a gradient echo gets a larger flip angle; else it would lose its T1 weighting."""


def simulate_public_patient(
    seed: int,
    number: int,
    slices: int = 20,
    size: int = 32,
    anatomy: Anatomy = draw_anatomy,
    scanner: np.random.Generator | None = None,
) -> np.ndarray:
    """Simulate the images of one public patient.

    Parameters
    ----------
    seed
        Seed of all random draws, together with the number.
    number
        Number of the patient, from 0.
    slices
        Number of centre slices.
    size
        Rows and columns of an image, by area averaging.
    anatomy
        Function that draws a brain.
    scanner
        Generator of scanner and protocol. Patients of one hospital share them if it has the same seed for all. By
        default, every patient has a separate scanner.

    Returns
    -------
    Array (sequence, slice, row, column), float32, in units of the mean signal of the brain; orientation as
    `mri.volumes.read_centre_slices` returns it, sequences as in `settings.CHANNELS`. It depends on the arguments
    only, not on other patients.
    """
    # This generator differs from that of the cohort and of training (Philox, `zetadp.base.randomness`), so that no
    # choice of seeds gives a public patient and a private one the same numbers.
    rng = np.random.Generator(np.random.PCG64([seed, number]))
    inside, fractions = anatomy(rng, GRID)
    scanner = scanner or rng
    tissues = draw_public_tissues(scanner)
    protocols = draw_protocols(scanner, tissues)
    thickness, sharpness = scanner.uniform(0, 2.0), scanner.uniform(0, 0.7)
    kind = rng.random()
    head = draw_head(rng, GRID, inside) if kind < WHOLE + CRUDE else None
    around = draw_head_tissues(rng, tissues.relaxivity)
    visible = head.visible(rng) if head is not None and kind < CRUDE else np.ones(GRID.shape, dtype=bool)
    images = np.empty((len(CHANNELS), slices, size, size), dtype=np.float32)
    for index, (sequence, protocol) in enumerate(protocols.items()):
        present_tissues, outer = (
            properties.after_contrast() if sequence == "t1gd" else properties for properties in (tissues, around)
        )
        signal = np.zeros(GRID.shape, dtype=np.float32)
        signal[inside] = protocol.signal(present_tissues).astype(np.float32) @ fractions
        mask = inside
        if head is not None:
            layers = suppress_fat(rng, protocol.signal(outer), sequence)
            signal += np.tensordot(layers, head.fractions, 1)
            mask = visible & (inside | (head.fractions.sum(axis=0) > 0.05))
        image = _apply_receive_field(rng, signal, inside) * visible
        if head is None:
            mask = inside | _add_remnants(rng, image, inside)
        image = _blur(rng, image, sharpness, thickness)
        image = _add_noise(rng, image, mask if kind < CRUDE or kind >= WHOLE + CRUDE else None)
        image = _saturate(rng, image, mask)
        # From left-posterior-superior voxels to (slice, row, column) with anterior up and left on the left.
        images[index] = resize_area(np.transpose(image[::-1, :, centre_slices(GRID.shape[2], slices)], (2, 1, 0)), size)
    return images


def _apply_receive_field(rng: np.random.Generator, signal: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Return the signal (x, y, z) under a receive field, scaled to a mean magnitude of one in the brain."""
    depth = float(np.exp(rng.uniform(*np.log((0.02, 0.45)))))
    field = smooth_field(rng, GRID, float(rng.choice(BIAS_SPACINGS)))
    shaded = signal * np.exp(depth * field)
    return np.asarray(shaded / np.abs(shaded[inside]).mean(), dtype=np.float32)


def _add_remnants(rng: np.random.Generator, image: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Add patches of skull or scalp around the brain to some images (in place), and return their mask."""
    if rng.random() >= REMNANTS:
        return np.zeros_like(inside)
    around = ndimage.binary_dilation(inside, iterations=int(rng.integers(1, 3))) & ~inside
    patches = np.asarray(around & (smooth_field(rng, GRID, REMNANT_SPACING) > rng.uniform(-0.5, 1.5)))
    image[patches] = rng.uniform(0.3, 2.0)
    return patches


def _blur(rng: np.random.Generator, image: np.ndarray, sharpness: float, thickness: float) -> np.ndarray:
    """Blur most images as motion, coarse resolution and thick slices do.

    Parameters
    ----------
    rng
        Random generator of the differences between the images of a patient.
    image
        Signal (x, y, z).
    sharpness, thickness
        Standard deviation in the plane and across slices, in voxels, the same for all images of a patient.
    """
    if rng.random() >= 0.6:
        return image
    deviations = (sharpness * rng.uniform(0.5, 1.0), sharpness, thickness)
    return np.asarray(ndimage.gaussian_filter(image, deviations, truncate=3.0))


def _add_noise(rng: np.random.Generator, image: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """Return magnitudes with noise of the receiver, everywhere or, in nine masked images of ten, in the mask alone."""
    noisy = rician(image, float(np.exp(rng.uniform(np.log(0.004), np.log(0.12)))), rng)
    return np.where(mask, noisy, 0) if rng.random() < 0.9 and mask is not None else noisy


def _saturate(rng: np.random.Generator, image: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Saturate the brightest voxels of some images, as conversions between file formats do."""
    if rng.random() >= 0.3:
        return image
    return np.asarray(np.minimum(image, np.quantile(image[mask], rng.uniform(0.97, 0.999))))


def draw_public_tissues(rng: np.random.Generator) -> Tissues:
    """Draw one patient's tissues, at a random field strength that is uniform on a logarithmic scale.

    The spread around the published means is about twice that of patients. Relaxation times vary by 10 % in each healthy
    tissue, by 25 % in each lesion, and by 8 % in all together. The uptake of contrast agent varies by 45 % in all
    together, and by another 35 % in each tissue.
    """
    field_strength = float(np.exp(rng.uniform(*np.log(FIELD_STRENGTHS))))
    count = len(Tissue)
    spread = np.where(np.arange(count) < Tissue.OEDEMA, 0.10, 0.25)
    times = []
    for at_1_5, growth in ((T1[1.5], T1_GROWTH), (T2[1.5], T2_GROWTH)):
        deviation = np.exp(rng.normal(0, 1, count) * spread + rng.normal(0, 0.08))
        times.append(at_1_5 * (field_strength / 1.5) ** growth * deviation)
    density = DENSITY * np.exp(rng.normal(0, 0.05, count))
    # Blood that flows through the slice loses a part of its signal.
    density[Tissue.BLOOD] *= rng.uniform(0.3, 1)
    pale = rng.uniform(0.1, 1) if rng.random() < PALE else 1.0
    return Tissues(
        t1=times[0],
        t2=times[1],
        density=density,
        uptake=UPTAKE * pale * np.exp(rng.normal(0, 0.45) + rng.normal(0, 0.35, count)),
        relaxivity=rng.uniform(2.5, 5.5),
    )


def draw_protocols(rng: np.random.Generator, tissues: Tissues) -> dict[str, Acquisition]:
    """Draw a protocol for each sequence, in the order of `settings.CHANNELS`."""
    before = draw_t1_weighted(rng, tissues)
    # Two scans in five are repeated after the injection with another protocol, as happens in practice.
    after = before if rng.random() < 0.6 else draw_t1_weighted(rng, tissues)
    protocols: dict[str, Acquisition] = {
        "FLAIR": draw_flair(rng, tissues),
        "T1w": before,
        "t1gd": after,
        "T2w": Protocol(tr=rng.uniform(2200, 9000), te=rng.uniform(65, 140)),
    }
    return {name: protocols[name] for name in CHANNELS}


def draw_t1_weighted(rng: np.random.Generator, tissues: Tissues) -> Acquisition:
    """Draw a T1-weighted protocol: a spin echo, an inversion recovery or a spoiled gradient echo."""
    kind = rng.random()
    if kind < 0.4:
        return Protocol(tr=rng.uniform(350, 900), te=rng.uniform(6, 25))
    if kind < 0.75:
        tr, te = rng.uniform(1500, 3000), rng.uniform(2, 25)
        # Past the zero of grey matter, or its magnitude would rise above that of white matter.
        past = rng.uniform(1.15, 1.8)
        return Protocol(tr=tr, te=te, ti=nulling_time(tissues.t1[Tissue.GREY], tr) * past)
    tr, te, flip = rng.uniform(6, 40), rng.uniform(2, 8), rng.uniform(12, 45)
    return GradientEcho(tr=tr, te=te, flip=rng.uniform(25, 70) if tr > LONG_TR else flip)


def draw_flair(rng: np.random.Generator, tissues: Tissues) -> Protocol:
    """Draw a FLAIR protocol whose inversion time nulls about the patient's own fluid, or fluid of the usual T1."""
    tr = rng.uniform(5000, 12000)
    nulled = nulling_time(tissues.t1[Tissue.CSF] if rng.random() < 0.5 else FLUID_T1, tr)
    return Protocol(tr=tr, ti=nulled * rng.uniform(0.88, 1.06), te=rng.uniform(65, 160))
