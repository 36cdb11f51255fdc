from __future__ import annotations

import numpy as np
import pytest
from decathlon_builder import real_sample
from scipy.ndimage import gaussian_filter, shift

from zetadp.mri.decathlon import read_task
from zetadp.mri.duplicates import THRESHOLD, near_duplicates
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


def test_distinct_patients_stay_far_below_the_threshold():
    everyone = near_duplicates(cohort(40), names(40), threshold=-1)
    assert len(everyone) == 40 * 39 // 2
    assert everyone["correlation"].max() < THRESHOLD / 2
    assert everyone["correlation"].is_monotonic_decreasing


def test_shared_anatomy_alone_is_no_reason():
    # Raw correlation of any two of these patients is high; only what is their own may count.
    stack = cohort(20)
    raw = np.corrcoef(stack.reshape(20, -1))
    assert raw[np.triu_indices(20, k=1)].min() > THRESHOLD
    assert near_duplicates(stack, names(20)).empty


def test_correlation_is_that_of_the_definition():
    stack = cohort(5)[:, :, :5, ::2, ::2]  # already 16 x 16 pixels and 5 slabs: nothing is averaged
    flat = stack.reshape(5, 4, -1).astype(float)
    flat = (flat - flat.mean(axis=2, keepdims=True)) / flat.std(axis=2, keepdims=True)
    own = (flat - flat.mean(axis=0)).reshape(5, -1)
    own /= np.linalg.norm(own, axis=1, keepdims=True)
    for row in near_duplicates(stack, names(5), threshold=-1).itertuples():
        a, b = int(row.patient_a[1:]), int(row.patient_b[1:])
        np.testing.assert_allclose(row.correlation, own[a] @ own[b], atol=1e-5)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_too_few_patients_to_tell(number):
    stack = np.repeat(cohort(1), number, axis=0)
    found = near_duplicates(stack, names(number))
    assert found.empty
    assert list(found.columns) == ["patient_a", "patient_b", "correlation"]


def test_constant_images_are_no_duplicates_by_division_by_zero():
    stack = cohort(6)
    stack[0, 1] = 4.0
    assert near_duplicates(stack, names(6)).empty
    assert near_duplicates(np.zeros_like(stack), names(6)).empty


def test_names_must_fit_the_stack():
    with pytest.raises(ValueError, match="Expected a stack"):
        near_duplicates(cohort(3), names(4))


def test_real_patients_are_told_apart_and_a_rescaled_copy_is_found():
    task = read_task(real_sample())
    images = [read_centre_slices(task.root / file, task.sequences) for file in task.training + task.test]
    stack = np.stack(images)
    assert near_duplicates(stack, names(3)).empty
    copy = np.round(0.3 * stack[:1] + 5)
    found = near_duplicates(np.concatenate([stack, copy]), names(4))
    assert found[["patient_a", "patient_b"]].to_numpy().tolist() == [["p00", "p03"]]
