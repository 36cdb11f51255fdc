"""Which images make a composite example, and simulated digits, from which the public network learns to read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from zetadp.base.validation import UserError
from zetadp.tasks.items import Items
from zetadp.tasks.phase_mnist import encoder
from zetadp.tasks.phase_mnist.digits import disjoint_pairs, drawn_pairs, pair_digits, read_digits
from zetadp.tasks.phase_mnist.encoder import DigitEncoder, DigitEncoderSettings, composite_features
from zetadp.tasks.phase_mnist.simulated import BOX, POINTS, _skeleton, simulated_digits, skeletons
from zetadp.tasks.phase_mnist.task import inputs

SHARED = Path(__file__).parents[5] / "shared/data/mnist"
LABELS = np.random.default_rng(1).choice(10, size=5000, p=np.arange(1, 11) / 55)
KINDS = pytest.mark.parametrize("make", [drawn_pairs, disjoint_pairs])


def values_of(pairs, images):
    """Return the examples that pairs make of images, shape (example, 1, 28, 28)."""
    arrays = {"images": images, "real": pairs.real, "imaginary": pairs.imaginary, "labels": pairs.labels}
    return inputs(arrays, np.arange(len(pairs.labels)), plain=False)[0]


@KINDS
@pytest.mark.parametrize("part", ["train", "test"])
def test_the_labels_of_both_parts_add_up_to_nine(make, part):
    pairs = make(LABELS, part, seed=3)
    assert (pairs.labels == LABELS[pairs.real]).all()
    assert (LABELS[pairs.real] + LABELS[pairs.imaginary] == 9).all()


@KINDS
def test_a_pairing_is_a_function_of_seed_and_part(make):
    first, again = make(LABELS, "train", seed=3), make(LABELS, "train", seed=3)
    assert (first.real == again.real).all()
    assert (first.imaginary == again.imaginary).all()
    for other in (make(LABELS, "train", seed=4), make(LABELS, "test", seed=3)):
        assert (first.imaginary != other.imaginary).mean() > 0.9


def test_every_image_is_once_a_real_part_and_any_of_the_other_label_an_imaginary_one():
    pairs = drawn_pairs(LABELS, "train", seed=3)
    assert (pairs.real == np.arange(len(LABELS))).all()
    # Drawn uniformly with replacement: of n images drawn m times, (1 - 1/n)^m are never drawn.
    for label in range(10):
        own = np.flatnonzero(label == LABELS)
        uses = np.bincount(pairs.imaginary, minlength=len(LABELS))[own]
        drawn = (9 - label == LABELS).sum()
        assert uses.sum() == drawn
        never = (1 - 1 / len(own)) ** drawn
        assert abs((uses == 0).mean() - never) < 6 * np.sqrt(never * (1 - never) / len(own)) + 1 / len(own)


def test_every_image_is_used_once_at_most_in_disjoint_pairs():
    pairs = disjoint_pairs(LABELS, "train", seed=3)
    used = np.concatenate((pairs.real, pairs.imaginary))
    assert len(set(used)) == len(used)
    assert np.bincount(used).max() == 1
    count = np.bincount(LABELS)
    assert len(pairs.labels) == sum(min(count[label], count[9 - label]) for label in range(5))
    found = np.bincount(pairs.labels)
    assert (abs(found - found[::-1]) <= 1).all()


def test_disjoint_pairs_of_the_training_images_are_29071():
    if not SHARED.is_dir():
        pytest.skip(f"needs {SHARED}")
    _, labels = read_digits(SHARED, "train")
    assert len(disjoint_pairs(labels, "train", seed=0).labels) == 29_071


def test_examples_hold_both_images_between_zero_and_one():
    images = np.random.default_rng(0).integers(0, 256, (5000, 28, 28), dtype=np.uint8)
    pairs = drawn_pairs(LABELS, "train", seed=0)
    examples = values_of(pairs, images)[:, 0]
    assert examples.dtype == np.complex64
    assert examples.shape == (5000, 28, 28)
    assert (np.rint(examples.real * 255) == images).all()
    assert (np.rint(examples.imag * 255) == images[pairs.imaginary]).all()
    assert examples.real.max() == examples.imag.max() == 1


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
    pair_digits(files=files, **outputs, composite=composite, seed=0, sizes={"train": 300, "test": 50})
    table = pd.read_csv(outputs["table"])
    assert table["part"].value_counts().to_dict() == {"train": 300, "test": 50}
    assert table["sha256"].nunique() == 350
    found = Items.read(outputs["examples"], ("real", "imaginary", "labels")).arrays
    assert set(found["labels"]) == set(range(10))
    # No training pair takes a test image, and the other way round.
    assert max(found["real"][:300].max(), found["imaginary"][:300].max()) < 60000
    assert min(found["real"][300:].min(), found["imaginary"][300:].min()) >= 60000
    with pytest.raises(UserError, match=f"at most {most}"):
        pair_digits(files=files, **outputs, composite=composite, seed=0, sizes={"train": most + 1, "test": 50})


@pytest.fixture(scope="module")
def digits():
    return simulated_digits(400, 0)


def test_digits_are_framed_as_those_of_mnist(digits):
    images, labels = digits
    assert images.shape == (400, 28, 28)
    assert images.min() == 0
    assert (images.amax(dim=(1, 2)) > 0.7).all()
    assert (torch.bincount(labels) == 40).all()
    grid = torch.arange(28.0)
    ink = images.sum(dim=(1, 2))
    for axis in (1, 2):
        centre = (images.sum(dim=axis) * grid).sum(dim=1) / ink
        assert (centre - 13.5).abs().max() < 0.6
        extent = [int(line.nonzero().max() - line.nonzero().min()) + 1 for line in (images > 0.5).any(dim=axis)]
        assert max(extent) <= BOX + 2
        # The larger side of every digit fills the box.
    sides = torch.stack([(images > 0.3).any(dim=axis).sum(dim=1) for axis in (1, 2)]).amax(dim=0)
    assert sides.min() >= BOX - 4


@pytest.mark.parametrize("label", range(10))
def test_points_lie_along_the_whole_of_every_way_to_write_a_digit(label):
    for way in range(len(skeletons()[label])):
        line = _skeleton(label, way)
        assert line.shape == (POINTS, 2)
        assert line[:, 1].min() < 0.1
        assert line[:, 1].max() > 0.9
        assert -0.15 < line.min() < line.max() < 1.15


def test_the_network_learns_to_read_digits_that_it_has_not_seen(monkeypatch):
    monkeypatch.setattr(encoder.DigitNetwork, "widths", (4, 8, 8))
    monkeypatch.setattr(encoder.DigitNetwork, "flat", 8 * 9)
    monkeypatch.setattr(encoder, "BATCH", 16)
    monkeypatch.setattr(encoder, "CHUNK", 800)
    network, _ = DigitEncoder.learned(DigitEncoderSettings(digits=1600, axes_from=10))
    images, labels = simulated_digits(300, 99)
    assert not any(parameter.requires_grad for parameter in network.parameters())
    assert (network(images).argmax(dim=1) == labels).float().mean() > 0.4  # by chance 0.1
