"""A head on the shipped backbone answers where it is right often enough, and not on what it does not know."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace

import nibabel as nib
import numpy as np
import pytest
import torch
from commanded import ended
from public_head import write_public_head

from zetadp.brain.abstention import RIGHT, UNLIKE, abstention_for, mean_scores, threshold
from zetadp.brain.images import by_orders
from zetadp.mri.decathlon import SEQUENCES
from zetadp.nn.heads import head_scores
from zetadp.nn.settings import NetworkSettings
from zetadp.phantom.public import simulate_public_patient
from zetadp.training.pretrained import load_model

PATIENT = 450
"""A simulated patient to whom nothing was fitted, with two volumes of which the public head is unsure."""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    about = {"cohort": "clinic", "unit": "patient", "units": 9, "epsilon": "1", "delta": 1e-3, "noise": "os"}
    return write_public_head(tmp_path_factory.mktemp("head") / "model.safetensors", "study", **about, simulated=False)


@pytest.fixture(scope="module")
def model(path):
    return load_model(path)


@pytest.fixture
def alone(model):
    """Return the model as one that did not start from the public head, which then does not answer beside it."""
    return replace(model, settings=replace(model.settings, start="random"))


def write_slices(path, slices):
    """Write images, (channel, slice, row, column), as the volume of which they are the axial slices."""
    nib.save(nib.Nifti1Image(np.transpose(slices, (3, 2, 1, 0))[:, ::-1], np.eye(4)), path)
    return path


def scaled(model, factor):
    """Return a model whose scores are so many times as large."""
    network = deepcopy(model.network)
    for parameter in network.parameters():
        parameter *= factor
    return replace(model, network=network)


def test_mean_scores_are_the_means_of_what_the_model_gives_the_slices(path):
    study = load_model(path)
    study.network.affine.weight += 0.3 * torch.randn_like(study.network.affine.weight)  # so that two heads answer
    features = torch.randn(2, 4, 20, study.backbone.components, dtype=torch.complex64)
    centred = features - features.mean(dim=(1, 2), keepdim=True)
    expected = study.outputs(centred.flatten(0, 2)[:, None, None]).reshape(2, 4, 20, 4).mean(dim=2)
    both, public = mean_scores(study, features.mean(dim=2))
    torch.testing.assert_close(both, expected, rtol=1e-4, atol=1e-4)
    alone = head_scores(centred, study.public_head).mean(dim=2)
    torch.testing.assert_close(public, alone, rtol=1e-4, atol=1e-4)


def test_of_two_heads_an_answer_has_the_mean_of_what_they_say_of_volumes_that_all_differ(model):
    own = replace(abstention_for(model), temperatures=(1.0, 2.0))
    one, other = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    expected = (by_orders(one) + by_orders(other / 2)) / 2
    torch.testing.assert_close(own.probabilities([one, other]), expected)


def test_temperature_undoes_the_scale_of_scores(alone):
    found = []
    for each in (alone, scaled(alone, 3.0)):
        own = abstention_for(each)
        told = own.probabilities(mean_scores(each, own.public.features)).amax(dim=-1).flatten()
        found.append((own.temperatures[0], own.verdicts(own.public.features.flatten(0, 1), told)))
    assert found[1][0] == pytest.approx(3 * found[0][0], rel=0.03)  # of a grid
    assert np.mean([one == other for one, other in zip(found[0][1], found[1][1], strict=True)]) > 0.99


def test_the_card_says_that_a_model_abstains_exactly_where_it_does(model, alone, tmp_path):
    other = load_model(write_public_head(tmp_path / "features.safetensors"))
    changed = replace(model, backbone=replace(model.backbone, centre=model.backbone.centre + 1))
    for each, abstains in ((model, True), (alone, True), (other, False), (changed, False)):
        assert (abstention_for(each) is not None) == abstains
        limits = " ".join(each.words.limits)
        assert ("`zetadp predict` names no sequence if the model is unsure" in limits) == abstains
        assert ("It always answers" in limits) == (not abstains)
        assert "Not for clinical use" in limits


def test_a_head_that_knows_nothing_is_always_unsure(alone):
    network = deepcopy(alone.network)
    torch.nn.init.zeros_(network.affine.weight)
    with torch.no_grad():
        network.affine.bias.copy_(torch.tensor([1.0, 0, 0, 0]))
    assert abstention_for(replace(alone, network=network)).least == float("inf")


def test_the_threshold_is_the_least_with_enough_right_answers():
    random = np.random.default_rng(0)
    sure = random.random(2000)
    right = random.random(2000) < sure
    least = threshold(sure, right)
    assert right[sure >= least].mean() >= RIGHT
    lower = np.sort(sure)[::-1][np.searchsorted(-np.sort(sure)[::-1], -least) + 1 :]
    assert all(right[sure >= each].mean() < RIGHT for each in lower)
    assert threshold(sure, np.zeros(2000, dtype=bool)) == float("inf")
    # Of equal probabilities all are answered, also those that are wrong.
    assert threshold(np.full(40, 0.9), np.arange(40) < 30) == float("inf")
    # A few lucky answers are no reason to answer.
    assert threshold(sure, sure >= np.sort(sure)[-10]) == float("inf")


def test_one_volume_in_a_hundred_is_unlike_and_of_another_backbone_or_network_nothing_is_known(model):
    public = abstention_for(model).public
    assert 0.005 < (public.distances(public.features.flatten(0, 1)) > public.farthest).double().mean() < 0.015
    other = replace(model.backbone, centre=model.backbone.centre + 1e-3)
    assert abstention_for(replace(model, backbone=other)) is None
    assert abstention_for(replace(model, backbone=None)) is None
    assert abstention_for(replace(model, settings=NetworkSettings("head", "features", components=4))) is None


def test_predict_says_what_is_doubtful_and_shows_it_anyway_when_asked(path, tmp_path, capsys):
    brain = write_slices(tmp_path / "brain.nii", simulate_public_patient(2, PATIENT, 20, 32))
    # Four volumes of noise resemble each other, so without their mean little would be left to see.
    slices = np.abs(np.random.default_rng(0).normal(size=(4, 20, 32, 32))).astype(np.float32)
    noise = write_slices(tmp_path / "noise.nii", slices)
    _, out, err = ended(capsys, "predict", path, brain)
    assert [line.split()[1] for line in out.splitlines()[1:]] == [SEQUENCES[0], "-", "-", SEQUENCES[3]]
    assert "unsure: channel 1 may be T1" in err
    assert not {"unlike", "simulation"} & set(err.split())
    _, out, err = ended(capsys, "predict", path, noise)
    assert {line.split()[1] for line in out.splitlines()[1:]} == {"-"}
    assert "unlike: channel 0 looks like no image that the model knows." in err
    _, out, err = ended(capsys, "predict", path, noise, "--anyway")
    assert out.splitlines()[1].split()[1] in SEQUENCES
    assert "unlike: channel 0" in err
    _, out, _ = ended(capsys, "predict", path, noise, "--json")
    assert {(row["sequence"], row["doubt"]) for row in json.loads(out)} == {(None, UNLIKE)}
