"""Which images make a composite example, and simulated digits, from which the public network learns to read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from zetadp.base.storage import Items
from zetadp.base.validation import UserError
from zetadp.tasks.phase_mnist.digits import pair_digits, paired
from zetadp.tasks.phase_mnist.encoder import composite_features

SHARED = Path(__file__).parents[5] / "shared/data/mnist"
LABELS = np.random.default_rng(1).choice(10, size=5000, p=np.arange(1, 11) / 55)


@pytest.mark.parametrize("once", [False, True])
def test_labels_of_both_parts_add_up_to_nine_by_seed_and_part(once):
    real, imaginary = paired(LABELS, "train", 3, once=once)
    assert (LABELS[real] + LABELS[imaginary] == 9).all()
    assert all(map(np.array_equal, paired(LABELS, "train", 3, once=once), (real, imaginary)))
    for other in (paired(LABELS, "train", 4, once=once), paired(LABELS, "test", 3, once=once)):
        assert (imaginary != other[1]).mean() > 0.9


def test_every_image_is_used_once_at_most_where_that_is_asked():
    real, imaginary = paired(LABELS, "train", 3, once=True)
    assert np.bincount(np.concatenate((real, imaginary))).max() == 1
    count = np.bincount(LABELS)
    assert len(real) == sum(min(count[label], count[9 - label]) for label in range(5))
    found = np.bincount(LABELS[real])
    assert (abs(found - found[::-1]) <= 1).all()


def test_a_composite_feature_is_that_of_the_real_image_plus_i_times_that_of_the_imaginary_one():
    real, imaginary = (torch.nn.functional.normalize(torch.rand(5, 8)) for _ in range(2))
    values = composite_features(real, imaginary)
    assert values.shape == (5, 1, 1, 8)
    np.testing.assert_allclose(np.linalg.norm(values, axis=-1), 1, rtol=1e-5)
    np.testing.assert_allclose(values[:, 0, 0] * 2**0.5, real + 1j * imaginary, rtol=1e-5)
    assert not composite_features(real, None).imag.any()


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the files of MNIST in ../shared/data/mnist")
@pytest.mark.parametrize(("composite", "most"), [("drawn", 60000), ("once", 29071), ("none", 60000)])
def test_the_stage_pairs_the_official_digits(tmp_path, composite, most):
    files = [SHARED / "train-images-idx3-ubyte.gz"]
    outputs = {"examples": tmp_path / "examples.h5", "table": tmp_path / "index.csv"}
    pair_digits(files=files, **outputs, composite=composite, sizes={"train": 300, "test": 50})
    table = pd.read_csv(outputs["table"])
    assert table["part"].value_counts().to_dict() == {"train": 300, "test": 50}
    assert table["sha256"].nunique() == 350
    found = Items.read(outputs["examples"], ("real", "imaginary", "labels")).arrays
    assert set(found["labels"]) == set(range(10))
    # No training pair takes a test image, and the other way round.
    assert max(found["real"][:300].max(), found["imaginary"][:300].max()) < 60000
    assert min(found["real"][300:].min(), found["imaginary"][300:].min()) >= 60000
    with pytest.raises(UserError, match=f"at most {most}"):
        pair_digits(files=files, **outputs, composite=composite, sizes={"train": most + 1, "test": 50})
