from __future__ import annotations

import numpy as np
import pytest
from decathlon_builder import real_sample
from scipy.ndimage import gaussian_filter, shift

from zetadp.mri.decathlon import read_task
from zetadp.mri.index import THRESHOLD, near_duplicates
from zetadp.mri.volumes import read_centre_slices

SHAPE = (4, 10, 32, 32)


def cohort(number: int, seed: int = 0) -> np.ndarray:
    """Return smooth images: an anatomy that all share, and a third as much again of their own."""
    rng = np.random.default_rng(seed)

    def smooth() -> np.ndarray:
        field = gaussian_filter(rng.standard_normal(SHAPE), (0, 2, 3, 3))
        return field / field.std()

    shared = smooth()
    return np.stack([100 + 20 * (shared + smooth() / 3) for _ in range(number)]).astype(np.float32)


def names(number: int) -> list[str]:
    return [f"p{index:02d}" for index in range(number)]


CHANGES = {
    "exact": lambda images, rng: images,
    "rescaled": lambda images, rng: 3.7 * images - 250,
    "each sequence rescaled": lambda images, rng: images * np.array([0.1, 1, 5, 20])[:, None, None, None] + 7,
    "noise": lambda images, rng: images + 0.5 * images.std() * rng.standard_normal(images.shape),
    "shifted by a quarter of a pixel": lambda images, rng: shift(images, (0, 0, 0.25, -0.25), mode="nearest"),
    "blurred": lambda images, rng: gaussian_filter(images, (0, 0, 0.7, 0.7)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_copies_are_found_and_nobody_else(change):
    rng = np.random.default_rng(1)
    stack = cohort(30)
    stack[22] = CHANGES[change](stack[5], rng)
    found = near_duplicates(stack, names(30))
    assert found[["patient_a", "patient_b"]].to_numpy().tolist() == [["p05", "p22"]]
    assert THRESHOLD <= found["correlation"].item() <= 1 + 1e-5


def test_real_patients_are_told_apart_and_a_rescaled_copy_is_found():
    task = read_task(real_sample())
    images = [read_centre_slices(task.root / file, task.sequences) for file in task.training + task.test]
    stack = np.stack(images)
    assert near_duplicates(stack, names(3)).empty
    copy = np.round(0.3 * stack[:1] + 5)
    found = near_duplicates(np.concatenate([stack, copy]), names(4))
    assert found[["patient_a", "patient_b"]].to_numpy().tolist() == [["p00", "p03"]]
