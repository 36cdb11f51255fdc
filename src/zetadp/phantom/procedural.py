"""A brain built from smooth implicit shapes, without an atlas, to test models that were trained on ICBM 152.

Points are in mm, right-anterior-superior, with the origin near the anterior commissure. Positions and sizes are round
numbers for an adult brain, none of them fitted to an atlas; the thickness of the cortex is about that of Fischl and
Dale, PNAS 97 (2000) 11050-11055, doi:10.1073/pnas.200033797. Sulci are level sets of a random field: every brain has
different sulci.

Shapes are implicit: functions return the depth of a point below a surface, and the share of a voxel inside it. Points
are arrays (3, n). Distances are exact, or correct to first order near the surface, where they matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from zetadp.phantom.anatomy import share_of_blood

WAVES = 64
"""Number of plane waves that make up the field whose level sets are the sulci."""
CHUNK = 100_000
"""Voxels computed at once, to bound memory."""
CEREBRUM = (0.0, -17.0, 10.0)
"""Middle of the cerebrum."""
TEMPORAL, TEMPORAL_AXES = (42.0, -14.0, -16.0), (22.0, 46.0, 24.0)
"""Middle and half-axes of the right temporal lobe."""
CEREBELLUM, CEREBELLUM_AXES = (0.0, -62.0, -38.0), (52.0, 34.0, 24.0)
STEM = ((0.0, -24.0, -8.0), (0.0, -34.0, -66.0))
CALLOSUM, CALLOSUM_AXES = (-6.0, 8.0), (46.0, 26.0)
"""Middle and half-axes, along y and z, of the region where the hemispheres are connected, without a fissure."""
HORNS = (
    # Frontal horn and body; atrium; occipital horn; temporal horn: points (x, y, z, radius) of the right side.
    ((7.0, 32.0, 3.0, 2.0), (9.0, 22.0, 9.0, 4.5), (9.0, 4.0, 19.0, 5.0), (12.0, -18.0, 23.0, 5.0)),
    ((12.0, -18.0, 23.0, 5.0), (22.0, -37.0, 15.0, 6.5)),
    ((22.0, -37.0, 15.0, 6.5), (25.0, -56.0, 9.0, 4.0), (24.0, -72.0, 7.0, 1.5)),
    ((22.0, -37.0, 15.0, 6.5), (32.0, -30.0, -4.0, 3.0), (34.0, -16.0, -16.0, 2.0)),
)
THIRD_VENTRICLE, THIRD_VENTRICLE_AXES = (0.0, -11.0, 0.0), (2.2, 14.0, 11.0)
CAUDATE = ((13.0, 18.0, 5.0, 6.0), (15.0, 6.0, 15.0, 5.0), (18.0, -14.0, 22.0, 3.0))
NUCLEI = (
    # Centre, half-axes and share of grey matter: putamen, pallidum, thalamus.
    ((27.0, 3.0, 3.0), (5.0, 16.0, 11.0), 0.95),
    ((20.0, -2.0, 1.0), (4.0, 9.0, 7.0), 0.5),
    ((11.0, -18.0, 8.0), (8.5, 13.0, 8.5), 0.75),
)
OBLIQUENESS = 0.55
"""Share of the way to the surface that points are moved before sulci are computed; with 1, all sulci would be flat."""
INSULA = 40.0
"""Distance of the insula from the midline."""


@dataclass(frozen=True)
class ProceduralBrain:
    """Shape of one brain; lengths in mm.

    Attributes
    ----------
    axes
        Half-axes (3,) of the cerebrum: right to left, front to back, and up; downward it is about half as long.
    power, taper
        Exponent of the superellipsoid (two is an ellipsoid), and the relative narrowing from back to front.
    frequencies, phases
        Wave vectors (3, `WAVES`) in radians per mm, and phases (`WAVES`,), of the field that folds the cortex.
    depth, width, thickness
        Depth of the sulci, half their width, and thickness of the cortex.
    ventricles
        Size of the ventricles relative to the usual one, of the left and of the right side.
    vessels
        Share of blood in the fluid between gyri; four times as much in the fissure between the hemispheres.
    """

    axes: np.ndarray
    power: float
    taper: float
    frequencies: np.ndarray
    phases: np.ndarray
    depth: float
    width: float
    thickness: float
    ventricles: tuple[float, float]
    vessels: float

    def below_surface(self, points: np.ndarray) -> np.ndarray:
        """Return the depth (mm) of points (3, n) below the surface of the stripped brain; negative outside."""
        pieces = [np.max(self._depths(piece), axis=0) for piece in _pieces(points)]
        return np.concatenate(pieces).astype(np.float32)

    def fractions(self, points: np.ndarray, voxel: float) -> np.ndarray:
        """Return the fractions of cerebrospinal fluid, grey matter, white matter and blood.

        Parameters
        ----------
        points
            Points (3, n) inside the brain.
        voxel
            Size (mm) of the voxels over which fractions are averaged.

        Returns
        -------
        Array (4, n) that sums to one over the tissues, float32.
        """
        return np.concatenate([self._fractions(piece, voxel) for piece in _pieces(points)], axis=1)

    def _fractions(self, points: np.ndarray, voxel: float) -> np.ndarray:
        cerebrum, cerebellum, stem = self._depths(points)
        # Share of a voxel that is not fluid, and share that is neither fluid nor cortex. Every surface reduces both.
        tissue, deep = np.ones(points.shape[1]), np.ones(points.shape[1])
        for signed, present, half, ribbon in self._surfaces(points, cerebrum, cerebellum):
            tissue *= 1 - present * share_covered(signed, half, voxel)
            deep *= 1 - present * share_covered(signed, half + ribbon, voxel)
        core = share_inside(stem, voxel)
        tissue, deep = np.maximum(tissue, core), np.maximum(deep, 0.8 * core)
        grey, white = np.clip(tissue - deep, 0, 1), np.minimum(deep, tissue)
        nuclei = self._nuclei(points, voxel)
        grey, white = grey + nuclei * white, white * (1 - nuclei)
        ventricles = self._ventricles(points, voxel)
        grey, white = grey * (1 - ventricles), white * (1 - ventricles)
        fluid = np.clip(1 - grey - white, 0, 1)
        blood = share_of_blood(points[0], self.vessels) * np.clip(fluid - ventricles, 0, 1)
        return np.stack([fluid - blood, grey, white, blood]).astype(np.float32)

    def _depths(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the depth below the surface of cerebrum, cerebellum and brain stem."""
        x, y, z = (coordinate - middle for coordinate, middle in zip(points, CEREBRUM, strict=True))
        wide = self.axes[0] * (1 - self.taper * y / self.axes[1])
        high = np.where(z > 0, self.axes[2], 0.55 * self.axes[2])
        cerebrum = superellipsoid((x / wide, y / self.axes[1], z / high), (wide, self.axes[1], high), self.power)
        mirrored = (np.abs(points[0]), points[1], points[2])
        cerebrum = np.maximum(cerebrum, ellipsoid(mirrored, TEMPORAL, TEMPORAL_AXES))
        cerebellum = ellipsoid(points, CEREBELLUM, CEREBELLUM_AXES)
        stem = -capsule(points, np.array(STEM[0]), np.array(STEM[1]), 13.0, 11.0)
        return cerebrum, cerebellum, stem

    def _surfaces(
        self, points: np.ndarray, cerebrum: np.ndarray, cerebellum: np.ndarray
    ) -> list[tuple[np.ndarray, np.ndarray, float, float]]:
        """Return the sheets of fluid: signed distance, presence in [0, 1], half thickness, thickness of the cortex."""
        is_cerebrum = (cerebrum >= cerebellum).astype(float)
        side, y, z = np.abs(points[0]), points[1], points[2]
        squared_radius = np.square((y - CALLOSUM[0]) / CALLOSUM_AXES[0]) + np.square(
            (z - CALLOSUM[1]) / CALLOSUM_AXES[1]
        )
        # Distance into the region where a fissure separates the hemispheres, outside the corpus callosum.
        separation = (np.sqrt(squared_radius) - 1) * 25
        opening = share_inside(side - INSULA, 4.0) * share_inside(22 - np.abs(y + 6) / 1.4, 4.0)
        insular = share_inside(20 - np.abs(y - 2), 4.0) * share_inside(13 - np.abs(z - 4 + 0.25 * y), 4.0)
        # The cortex folds on the outer surface and, less deeply, in the fissure between the hemispheres.
        medial = np.where(separation > 0, 2 * side, np.inf)
        sulci = is_cerebrum * share_inside(self.depth - np.minimum(cerebrum, medial), 4.0)
        folds = zeros_of_waves(self._outward(points, cerebrum), self.frequencies, self.phases)
        folia = zeros_of_waves(points, 4.0 * self.frequencies, self.phases)
        return [
            (cerebrum, is_cerebrum, 2 * self.width, self.thickness),
            (folds, sulci, self.width, self.thickness),
            (points[0], is_cerebrum * share_inside(separation, 4.0), 1.2 * self.width, self.thickness),
            (side - INSULA, is_cerebrum * insular, 1.5 * self.width, self.thickness),
            (0.97 * (z - 4 + 0.25 * y), is_cerebrum * opening, 1.5 * self.width, self.thickness),
            (cerebellum, 1 - is_cerebrum, self.width, 1.5),
            (folia, (1 - is_cerebrum) * share_inside(14 - cerebellum, 4.0), 0.3, 1.2),
        ]

    def _outward(self, points: np.ndarray, depth: np.ndarray) -> np.ndarray:
        """Move points toward the surface, so that sulci run inward from it at a slight angle."""
        middle = np.array(CEREBRUM)[:, None]
        from_middle = points - middle
        distance = np.maximum(np.linalg.norm(from_middle, axis=0), 1.0)
        moved = middle + from_middle * (1 + OBLIQUENESS * np.clip(depth, 0, None) / distance)
        return np.asarray(moved)

    def _nuclei(self, points: np.ndarray, voxel: float) -> np.ndarray:
        """Return the share of white matter that the deep nuclei replace by grey matter."""
        mirrored = np.concatenate([np.abs(points[:1]), points[1:]])
        share = share_inside(-tube(mirrored, CAUDATE, 1.0), voxel)
        for centre, axes, grey in NUCLEI:
            share = np.maximum(share, grey * share_inside(ellipsoid(mirrored, centre, axes), voxel))
        return np.asarray(share)

    def _ventricles(self, points: np.ndarray, voxel: float) -> np.ndarray:
        """Return the share of fluid in the lateral and the third ventricle."""
        mirrored = np.concatenate([np.abs(points[:1]), points[1:]])
        size = np.where(points[0] < 0, *self.ventricles)
        outside = np.min([tube(mirrored, horn, size) for horn in HORNS], axis=0)
        # A septum of about a millimetre separates the two sides.
        lateral = share_inside(-outside, voxel) * (1 - 0.7 * share_covered(points[0], 0.7, voxel))
        third = share_inside(ellipsoid((points[0] / size, *points[1:]), THIRD_VENTRICLE, THIRD_VENTRICLE_AXES), voxel)
        return np.asarray(np.maximum(lateral, third))


def _pieces(points: np.ndarray) -> list[np.ndarray]:
    return [points[:, first : first + CHUNK] for first in range(0, max(points.shape[1], 1), CHUNK)]


def draw_procedural_brain(rng: np.random.Generator) -> ProceduralBrain:
    """Draw the brain of one adult."""
    direction = rng.standard_normal((3, WAVES))
    direction /= np.linalg.norm(direction, axis=0)
    # There is one sulcus per half wave, so neighbouring sulci are about 8 to 11 mm apart.
    wave_length = rng.uniform(17, 22) * np.exp(rng.normal(0, 0.2, WAVES))
    size = np.exp(rng.normal(0, 0.35))
    left, right = size * np.exp(rng.normal(0, 0.08, 2))
    return ProceduralBrain(
        axes=np.array([65.0, 84.0, 63.0]) * np.exp(rng.normal(0, 0.025, 3)),
        power=float(rng.uniform(2.1, 2.6)),
        taper=float(rng.uniform(0.03, 0.14)),
        frequencies=direction * 2 * np.pi / wave_length,
        phases=rng.uniform(0, 2 * np.pi, WAVES),
        depth=float(rng.uniform(20, 27)),
        width=float(rng.uniform(0.6, 1.05)),
        thickness=float(rng.uniform(2.7, 3.4)),
        ventricles=(float(left), float(right)),
        vessels=float(rng.uniform(0.1, 0.22)),
    )


def share_inside(depth: np.ndarray, voxel: float) -> np.ndarray:
    """Return the share of a voxel on the inner side of a plane at the given depth."""
    return np.asarray(np.clip(depth / voxel + 0.5, 0, 1))


def share_covered(distance: np.ndarray, half: float, voxel: float) -> np.ndarray:
    """Return the share of a voxel that a sheet covers.

    Parameters
    ----------
    distance
        Signed distance of the voxel's middle from the middle of the sheet.
    half
        Half the thickness of the sheet.
    voxel
        Size of the voxel, which lies parallel to the sheet.
    """
    low, high = distance - voxel / 2, distance + voxel / 2
    return np.asarray((np.clip(high, -half, half) - np.clip(low, -half, half)) / voxel)


def zeros_of_waves(points: np.ndarray, frequencies: np.ndarray, phases: np.ndarray) -> np.ndarray:
    """Return the signed distance to the zeros of a sum of plane waves, to first order."""
    angle = frequencies.T.astype(np.float32) @ points.astype(np.float32) + phases.astype(np.float32)[:, None]
    slope = np.linalg.norm(frequencies.astype(np.float32) @ np.sin(angle), axis=0)
    # Where the field is flat the zeros are far, however small its value is.
    least = 0.3 * np.sqrt(np.square(frequencies).sum() / 2)
    return np.asarray(np.cos(angle).sum(axis=0) / np.maximum(slope, least), dtype=float)


def superellipsoid(reduced: tuple[np.ndarray, ...], axes: tuple[np.ndarray | float, ...], power: float) -> np.ndarray:
    """Return the depth, to first order, below the surface where the coordinates over the half-axes have norm one."""
    norm = np.maximum(sum(np.abs(coordinate) ** power for coordinate in reduced) ** (1 / power), 0.05)
    slope = np.sqrt(
        sum(
            ((np.abs(coordinate) / norm) ** (power - 1) / axis) ** 2
            for coordinate, axis in zip(reduced, axes, strict=True)
        )
    )
    return np.asarray((1 - norm) / np.maximum(slope, 1e-3))


def ellipsoid(points: Iterable[np.ndarray], centre: tuple[float, ...], axes: tuple[float, ...]) -> np.ndarray:
    """Return the depth, to first order, below the surface of an ellipsoid."""
    reduced = tuple((coordinate - middle) / axis for coordinate, middle, axis in zip(points, centre, axes, strict=True))
    return superellipsoid(reduced, axes, 2.0)


def capsule(
    points: np.ndarray, start: np.ndarray, end: np.ndarray, first: np.ndarray | float, last: np.ndarray | float
) -> np.ndarray:
    """Return the distance from a rod that tapers from one radius to another; negative within."""
    along = end - start
    t = np.clip((points - start[:, None]).T @ along / (along @ along), 0, 1)
    nearest = start[:, None] + along[:, None] * t
    return np.asarray(np.linalg.norm(points - nearest, axis=0) - (first + (last - first) * t))


def tube(points: np.ndarray, knots: tuple[tuple[float, ...], ...], size: np.ndarray | float) -> np.ndarray:
    """Return the distance from a chain of rods with points (x, y, z, radius); negative within."""
    rods = [capsule(points, np.array(a[:3]), np.array(b[:3]), a[3] * size, b[3] * size) for a, b in pairwise(knots)]
    return np.asarray(np.min(rods, axis=0))
