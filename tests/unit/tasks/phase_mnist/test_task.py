"""Examples of digits through their stages: paired, encoded, loaded for a network."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from zetadp.base.tensors import save_tensors
from zetadp.base.validation import UserError
from zetadp.core.task import pipeline_task_of, site_task_of
from zetadp.tasks.phase_mnist import PhaseMnist
from zetadp.tasks.phase_mnist.encoder import DigitEncoder, DigitEncoderSettings, composite_features
from zetadp.tasks.phase_mnist.task import FEATURES, Examples, read_examples, write_features

SCRIPTS = Path(__file__).parents[4] / "scripts"
CPU = torch.device("cpu")


def examples(count: int = 6, seed: int = 0) -> Examples:
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (10, 28, 28), dtype=np.uint8)
    real, imaginary = random.integers(0, 10, (2, count))
    names = tuple(f"train-{number:05d}" for number in range(count))
    return Examples(images, real, imaginary, random.integers(0, 10, count), names)


def partition(names: tuple[str, ...]) -> pd.DataFrame:
    """Return a table in another order than the file's."""
    roles = ["train" if number % 2 else "test" for number in range(len(names))]
    return pd.DataFrame({"patient": names, "record": names, "role": roles, "node": "node-01"})[::-1]


@pytest.mark.parametrize(("composite", "kind"), [("drawn", torch.complex64), ("none", torch.float32)])
def test_a_network_is_given_the_examples_that_the_partition_names(tmp_path, composite, kind):
    made = examples()
    made.write(tmp_path / "examples.h5")
    held = PhaseMnist(composite=composite).load([tmp_path / "examples.h5"], partition(made.names), "train", CPU)
    assert list(held.items["record"]) == ["train-00005", "train-00003", "train-00001"]
    assert held.records.inputs.dtype == kind
    for row, place in enumerate((5, 3, 1)):
        image = held.records.inputs[row, 0]
        real = image.real if composite == "drawn" else image
        np.testing.assert_allclose(real, made.images[made.real[place]] / 255, rtol=1e-6)
        if composite == "drawn":
            np.testing.assert_allclose(image.imag, made.images[made.imaginary[place]] / 255, rtol=1e-6)
        assert held.records.targets[row] == made.labels[place]
    assert held.units() == [[2], [1], [0]]  # in the order of names


def test_features_are_found_by_the_name_of_their_file(tmp_path):
    made = examples()
    values = np.arange(12, dtype=np.complex64).reshape(6, 1, 1, 2)
    write_features(tmp_path / FEATURES, values, made.labels, made.names)
    held = PhaseMnist().load([tmp_path / FEATURES], partition(made.names), "test", CPU)
    np.testing.assert_array_equal(held.records.inputs, values[[4, 2, 0]])


def test_examples_that_are_missing_or_no_examples_are_a_users_error(tmp_path):
    made = examples()
    made.write(tmp_path / "examples.h5")
    more = partition((*made.names, "train-00099"))
    with pytest.raises(UserError, match="found fewer"):
        PhaseMnist().load([tmp_path / "examples.h5"], more, "test", CPU)
    (tmp_path / "other.h5").write_text("no")
    with pytest.raises(UserError, match="Cannot read the examples"):
        read_examples(tmp_path / "other.h5")


def test_settings_are_checked_by_name():
    assert pipeline_task_of({"name": "phase_mnist", "composite": "once"}).outputs == 10
    with pytest.raises(ValueError, match="composite"):
        pipeline_task_of({"name": "phase_mnist", "composite": "twice"})
    with pytest.raises(UserError, match="reads the folder of a hospital, found phase_mnist"):
        site_task_of({"name": "phase_mnist"})
    with pytest.raises(UserError, match="multiple of 1600, found 100"):
        DigitEncoderSettings(digits=100)


def test_an_encoder_comes_back_from_its_file_and_treats_every_image_by_itself(tmp_path):
    encoder = DigitEncoder.fit(DigitEncoderSettings(digits=1600, axes_from=400, scattering=5, learned=3))
    encoder.save(tmp_path / "encoder.safetensors")
    again = DigitEncoder.load(tmp_path / "encoder.safetensors")
    images = examples().images
    found = encoder.features(images)
    assert found.shape == (10, 8)
    torch.testing.assert_close(again.features(images), found)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(10))
    changed = images.copy()
    changed[1:] = 255 - changed[1:]
    torch.testing.assert_close(encoder.features(changed)[0], found[0])
    values = composite_features(found[:5], found[5:])
    assert values.shape == (5, 1, 1, 8)
    np.testing.assert_allclose(np.abs(np.linalg.norm(values, axis=-1)), 1, rtol=1e-5)
    np.testing.assert_allclose(values[:, 0, 0].imag * 2**0.5, found[5:], rtol=1e-5)
    assert not composite_features(found, None).imag.any()
    save_tensors(tmp_path / "other.safetensors", {"a": torch.zeros(1)}, {})
    with pytest.raises(UserError, match="encoder of digits"):
        DigitEncoder.load(tmp_path / "other.safetensors")


SHARED = Path(__file__).parents[5] / "shared/data/mnist"


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the files of MNIST in ../shared/data/mnist")
@pytest.mark.parametrize(("composite", "most"), [("drawn", 60000), ("once", 29071), ("none", 60000)])
def test_the_stage_pairs_the_official_digits(tmp_path, composite, most):
    main = runpy.run_path(str(SCRIPTS / "pair_digits.py"))["main"]
    files = [SHARED / "train-images-idx3-ubyte.gz"]
    outputs = {"examples": tmp_path / "examples.h5", "table": tmp_path / "index.csv"}
    main(files=files, **outputs, composite=composite, seed=0, sizes={"train": 300, "test": 50})
    table = pd.read_csv(outputs["table"])
    assert table["part"].value_counts().to_dict() == {"train": 300, "test": 50}
    assert table["sha256"].nunique() == 350
    found = read_examples(outputs["examples"])
    assert found.labels.min() == 0
    assert found.labels.max() == 9
    # No training pair takes a test image, and the other way round.
    assert max(found.real[:300].max(), found.imaginary[:300].max()) < 60000
    assert min(found.real[300:].min(), found.imaginary[300:].min()) >= 60000
    with pytest.raises(UserError, match=f"at most {most}"):
        main(files=files, **outputs, composite=composite, seed=0, sizes={"train": most + 1, "test": 50})
