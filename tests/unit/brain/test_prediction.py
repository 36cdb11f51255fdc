from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from decathlon_builder import volume, write_volume
from public_head import write_public_head
from torch import nn
from training_builder import NETWORKS, TINY, backbone, network

from zetadp.base.tensors import save_tensors
from zetadp.base.validation import UserError
from zetadp.brain.images import check_backbone, prepare, standardise
from zetadp.brain.prediction import predict_volume
from zetadp.mri.decathlon import SEQUENCES
from zetadp.mri.kspace import to_kspace, whiten
from zetadp.mri.volumes import read_centre_slices
from zetadp.training.pretrained import load_model, model_content

SLICES, SIZE = 5, 8
SHAPE = (21, 26, 11)


TASK = {"name": "brain_sequences", "slices": SLICES, "size": SIZE, "decision": "image"}


def finished(tmp_path, settings=TINY, task=TASK):
    """Return a model with weights that nobody trained, through its file."""
    weights = {key: value.detach() for key, value in network(settings).named_parameters()}
    content = model_content(settings, task, SIZE)
    save_tensors(tmp_path / "model.safetensors", weights, content)
    return load_model(tmp_path / "model.safetensors")


@pytest.fixture
def brain():
    return volume(SHAPE, len(SEQUENCES), np.random.default_rng(0))


class Recorder(nn.Module):
    """Keep what the network is given; answer that every image is of the class of its number modulo four."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, images):
        self.seen.append(images)
        return torch.nn.functional.one_hot(torch.arange(len(images)) % len(SEQUENCES), len(SEQUENCES)).float()


def recorded(model, path):
    recorder = Recorder()
    predict_volume(replace(model, network=recorder), path)
    return torch.cat(recorder.seen).numpy().reshape(-1, SLICES, SIZE, SIZE)


def test_input_is_prepared_as_in_training(tmp_path, brain):
    path = write_volume(tmp_path / "brain.nii.gz", brain, "LPS", slope=0.5, inter=-3.0)
    slices = read_centre_slices(path, SEQUENCES, SLICES, SIZE)
    kspace = recorded(finished(tmp_path), path)
    assert kspace.dtype == np.complex64
    # The stages resize with a sparse product, here with a dense one. They are equal to the rounding of intensities in
    # single precision, divided by the spread that whitening divides by.
    transformed = to_kspace(slices)
    rounding = 8 * np.finfo(np.float32).eps * np.abs(slices).max()
    spread = min(transformed.real.std(axis=(-2, -1)).min(), transformed.imag.std(axis=(-2, -1)).min())
    np.testing.assert_allclose(kspace, whiten(transformed), rtol=0, atol=rounding / spread)
    assert rounding / spread < 1e-3
    images = recorded(finished(tmp_path, NETWORKS["real image"]), path)
    np.testing.assert_allclose(images, standardise(slices), rtol=0, atol=rounding / slices.std(axis=(-2, -1)).min())


def test_a_backbone_of_other_sequences_is_refused_for_brains():
    other = replace(backbone(), sequences=SEQUENCES[::-1])
    assert check_backbone(backbone()).sequences == SEQUENCES
    with pytest.raises(UserError, match="T2w, T1gd"):
        prepare(np.ones((1, 4, 1, 8, 8), np.float32), "features", other)


def test_a_channel_is_classified_as_in_a_file_of_its_own_in_another_orientation(tmp_path, brain):
    model = finished(tmp_path, NETWORKS["complex pooled"])
    first = predict_volume(model, write_volume(tmp_path / "ras.nii.gz", brain, "RAS"))
    assert list(first["channel"]) == [0, 1, 2, 3]
    assert first["sequence"].isin(SEQUENCES).all()
    for channel in range(len(SEQUENCES)):
        row = predict_volume(model, write_volume(tmp_path / f"{channel}.nii.gz", brain[..., channel], "PIR"))
        expected = first.iloc[[channel]].assign(channel=0).reset_index(drop=True)
        pd.testing.assert_frame_equal(row, expected, atol=1e-6)


def test_slices_vote(tmp_path, brain):
    model = finished(tmp_path)

    class Scores(nn.Module):
        def forward(self, images):
            # In every channel three slices say T2w faintly, two say T1w loudly.
            slices = [3.0 * np.eye(4)[1], np.eye(4)[3], np.eye(4)[3], 3.0 * np.eye(4)[1], np.eye(4)[3]]
            return torch.tensor(np.array(slices * (len(images) // SLICES)))

    table = predict_volume(replace(model, network=Scores()), write_volume(tmp_path / "brain.nii", brain[..., :2]))
    assert list(table["sequence"]) == ["T2w", "T2w"]
    assert list(table["votes"]) == [0.6, 0.6]
    faint, loud = np.e / (np.e + 3), 1 / (np.exp(3) + 3)
    np.testing.assert_allclose(table["probability"], (3 * faint + 2 * loud) / 5)


def test_a_head_on_a_study_answers_for_two_to_four_sequences(tmp_path, brain):
    model = load_model(write_public_head(tmp_path / "study.safetensors", "study"))
    whole = volume((40, 40, 30), len(SEQUENCES), np.random.default_rng(0))
    write_volume(tmp_path / "whole.nii.gz", whole)
    for count in (2, 3, 4):
        write_volume(tmp_path / "some.nii.gz", whole[..., :count])
        assert predict_volume(model, tmp_path / "some.nii.gz")["channel"].tolist() == list(range(count))
    write_volume(tmp_path / "one.nii.gz", whole[..., :1])
    with pytest.raises(UserError, match=r"Expected 2 to 4 different sequences .* found 1 channel"):
        predict_volume(model, tmp_path / "one.nii.gz")


@pytest.mark.parametrize("decision", ["slice", "volume"])
def test_two_to_four_volumes_are_classified_together(tmp_path, brain, decision):
    model = finished(tmp_path, task={**TASK, "decision": decision})
    for count in (4, 3, 2, 1):
        write_volume(tmp_path / "brain.nii.gz", brain[..., :count])
        table = predict_volume(model, tmp_path / "brain.nii.gz")
        assert decision == "slice" or count == 1 or (table["votes"] == 1).all()
        by_itself = predict_volume(finished(tmp_path), tmp_path / "brain.nii.gz")
        # Where there are no others, nothing is known of what they are.
        assert table["probability"].equals(by_itself["probability"]) == (count == 1)
