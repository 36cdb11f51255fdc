"""Tiny cohorts in the Decathlon layout, for tests."""

from __future__ import annotations

import json
from pathlib import Path

import nibabel as nib
import numpy as np

CHANNELS = ("FLAIR", "T1w", "t1gd", "T2w")


def volume(shape: tuple[int, int, int], channels: int, rng: np.random.Generator) -> np.ndarray:
    """Return integers of shape (x, y, z, channel), different in every voxel line and every channel."""
    levels = 200 + 300 * np.arange(channels)
    return (levels + rng.integers(0, 150, size=(*shape, channels))).astype(np.int16)


def oriented_affine(codes: str, shape: tuple[int, int, int]) -> np.ndarray:
    """Return a 1 mm affine for an array of the given shape whose axes run along ``codes``, such as ``LPS``."""
    ornt = nib.orientations.axcodes2ornt(tuple(codes))
    return nib.orientations.inv_ornt_aff(ornt, shape)


def write_volume(
    path: Path, array: np.ndarray, orientation: str = "RAS", slope: float = 1.0, inter: float = 0.0
) -> Path:
    """Write an array given with axes (right, anterior, superior, ...) to a file that stores it in ``orientation``."""
    target = nib.orientations.axcodes2ornt(tuple(orientation))
    canonical = nib.orientations.axcodes2ornt(("R", "A", "S"))
    stored = nib.orientations.apply_orientation(array, nib.orientations.ornt_transform(canonical, target))
    spatial = nib.orientations.inv_ornt_aff(nib.orientations.ornt_transform(canonical, target), array.shape[:3])
    image = nib.Nifti1Image(stored, spatial)
    if (slope, inter) != (1.0, 0.0):
        image.header.set_slope_inter(slope, inter)
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(image, path)
    return path


def write_tiny_task(
    root: Path,
    n_train: int = 3,
    n_test: int = 2,
    *,
    shape: tuple[int, int, int] = (12, 14, 9),
    channels: tuple[str, ...] = CHANNELS,
    orientation: str = "LPS",
    seed: int = 0,
) -> Path:
    """Write a task with ``n_train`` and ``n_test`` records named BRATS_001 and on; return its folder.

    Parameters
    ----------
    shape
        Lengths of the axes right, anterior, superior.
    channels
        Names of the channels, in file order, as ``modality`` spells them.
    orientation
        Codes of the axes as they are stored.
    """
    files = []
    for number in range(n_train + n_test):
        folder = "imagesTr" if number < n_train else "imagesTs"
        name = f"{folder}/BRATS_{number + 1:03d}.nii.gz"
        array = volume(shape, len(channels), np.random.default_rng([seed, number]))
        write_volume(root / name, array, orientation)
        files.append(f"./{name}")
    write_dataset_json(root, files[:n_train], files[n_train:], channels)
    return root


def write_dataset_json(
    root: Path, training: list[str], test: list[str], channels: tuple[str, ...] = CHANNELS, /, **changes: object
) -> Path:
    """Write ``dataset.json`` with the official keys; ``changes`` replaces some of them."""
    content = {
        "name": "BRATS",
        "description": "made by a test",
        "tensorImageSize": "4D",
        "modality": {str(index): name for index, name in enumerate(channels)},
        "labels": {"0": "background"},
        "numTraining": len(training),
        "numTest": len(test),
        "training": [{"image": file, "label": file.replace("images", "labels")} for file in training],
        "test": test,
    } | changes
    path = root / "dataset.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def real_sample() -> Path:
    """Return the folder of the real patients; skip the test where it is absent."""
    import pytest

    root = Path(__file__).resolve().parents[1] / ".." / "shared" / "data" / "decathlon_sample" / "Task01_BrainTumour"
    if not root.is_dir():
        pytest.skip("no ../shared/data/decathlon_sample beside the repository")
    return root.resolve()
