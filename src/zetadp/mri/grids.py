"""Grids of volumes: whether two are the same, and resampling onto the grid of another volume by the headers."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np

from zetadp.base.validation import UserError
from zetadp.mri.nifti import Volume

TOLERANCE = 1e-3
"""Largest difference of two affines that counts as the same grid, in millimetres."""
OVERLAP = 0.5
"""Least share of a grid that a volume must cover to be resampled onto it."""


def same_grid(first: Volume, second: Volume) -> bool:
    """Return whether two volumes have one grid."""
    same_shape = first.shape[:3] == second.shape[:3]
    return same_shape and np.allclose(first.affine, second.affine, rtol=0, atol=TOLERANCE)


def described(volume: Volume) -> str:
    """Return the grid of a volume in words, for messages."""
    spacing = np.linalg.norm(volume.affine[:3, :3], axis=0)
    sizes = " x ".join(f"{size:.3g}" for size in spacing)
    return f"shape {volume.shape[:3]}, voxels of {sizes} mm (affine {np.round(volume.affine, 3).tolist()})"


def resample(volume: Volume, values: np.ndarray, onto: Volume) -> np.ndarray:
    """Resample intensities onto the grid of another volume, by linear interpolation between voxels.

    Both headers must place their voxels in the space of one scanner. Nothing is registered: a person who moved between
    two sequences is not moved back. Outside the volume, the result has the lowest intensity.

    Parameters
    ----------
    volume
        Header of the volume.
    values
        Its intensities, shape (x, y, z). Whole numbers stay whole numbers.
    onto
        Header of the volume with the target grid.

    Raises
    ------
    UserError
        If a header leaves the orientation open, or if the volume covers less than half of the grid.
    """
    import nibabel as nib
    from nibabel.processing import resample_from_to

    for header in (volume, onto):
        if header.assumed:
            raise UserError(
                f"Expected a header that says where the voxels are, to resample {volume.path}, but {header.path} "
                f"{' and '.join(header.assumed)}. Correct the header, or register the volumes."
            )
    share = _measure_coverage(volume, onto)
    if share < OVERLAP:
        raise UserError(
            f"Expected {volume.path} to cover the grid of {onto.path}, found that it covers {share:.0%} of it by the "
            "headers. Register the volumes first."
        )
    image = nib.Nifti1Image(values.astype(np.float32), volume.affine)  # type: ignore[no-untyped-call]
    moved = resample_from_to(image, (onto.shape[:3], onto.affine), order=1, cval=float(values.min()))  # type: ignore[no-untyped-call]
    new = np.asarray(moved.dataobj)
    return np.rint(new).astype(values.dtype) if values.dtype.kind in "iu" else new


def join(
    headers: Mapping[str, Volume], values: dict[str, np.ndarray], onto: str | None, scan: str
) -> tuple[Volume, dict[str, str], list[str]]:
    """Bring the volumes of a scan to one grid.

    Parameters
    ----------
    headers
        Header of each volume, by the name of its sequence or file.
    values
        Intensities of each volume; those that are resampled are replaced.
    onto
        Name of the volume onto whose grid the others are resampled, or None to refuse other grids.
    scan
        Name of the scan, for messages.

    Returns
    -------
    The header of the common grid, a note on each volume that was resampled, and problems.
    """
    reasons: dict[str, str] = {}
    problems: list[str] = []
    first = headers.get(onto or "", next(iter(headers.values())))
    others = {name: header for name, header in headers.items() if not same_grid(header, first)}
    if others and onto not in headers:
        grids = "; ".join(f"{header.path} has {described(header)}" for header in (first, *others.values()))
        if onto is None:
            advice = "Resample by the headers with --resample, or register them first."
        else:
            advice = f"It has no {onto} to resample onto: name another sequence, or register them first."
        return first, reasons, [f"Expected one grid for all sequences of {scan}: {grids}. {advice}"]
    for name, header in others.items():
        try:
            values[name] = resample(header, values[name], first)
            reasons[name] = f"{name} resampled onto {onto}"
        except UserError as error:
            problems.append(str(error))
    return first, reasons, problems


def _measure_coverage(volume: Volume, onto: Volume) -> float:
    """Return the share of a grid that lies within a volume, to a few percent, from a sample of its voxels."""
    samples = np.array(list(product(*(np.linspace(0, length - 1, min(length, 16)) for length in onto.shape[:3]))))
    to_voxels = np.linalg.inv(volume.affine) @ onto.affine
    voxels = samples @ to_voxels[:3, :3].T + to_voxels[:3, 3]
    inside = (voxels >= -0.5) & (voxels <= np.array(volume.shape[:3]) - 0.5)
    return float(inside.all(axis=1).mean())
