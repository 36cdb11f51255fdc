from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from public_discs import NETWORK, SETTINGS, public

from zetadp.base.epsilon import Target
from zetadp.base.runfolder import RunName
from zetadp.base.validation import UserError
from zetadp.brain.backbone import SHIFTS, load_backbone, shift_images, shipped_backbone
from zetadp.brain.images import by_orders
from zetadp.brain.pretraining import (
    EVERY,
    draw_batch,
    pretrain,
    public_accuracy,
    read_study,
)
from zetadp.mri.kspace import to_image, to_kspace, whiten
from zetadp.nn.activations import ConjMish
from zetadp.nn.heads import head_scores
from zetadp.nn.models import NetworkSettings
from zetadp.phantom.public import simulate_public_patient
from zetadp.training.plan import NodeConstants, Plan
from zetadp.training.pretrained import backbone_of, with_public
from zetadp.training.settings import TrainingSettings


@pytest.fixture(scope="module")
def images():
    return public(40)


@pytest.fixture(scope="module")
def made(images):
    return pretrain(NETWORK, SETTINGS, images, public(10, 1))


def test_it_learns_the_same_again_and_says_how_well_on_patients_it_never_saw(made, images):
    accuracy = made.provenance["held_out_accuracy"]
    assert set(accuracy) == {"2", "8", "16"}
    assert accuracy["16"] > 0.8
    assert made.provenance["held_out_patients"] == 10
    again = pretrain(NETWORK, SETTINGS, images, public(10, 1))
    assert all(torch.equal(value, again.tensors()[name]) for name, value in made.tensors().items())


def test_batches_hold_every_sequence_equally_and_depend_on_step_and_seed_alone(images):
    inputs, labels = draw_batch(images, SETTINGS, 3)
    assert inputs.shape == (32, 16, 16)
    assert inputs.dtype == np.complex64
    assert np.bincount(labels).tolist() == [8] * 4
    assert np.array_equal(draw_batch(images, SETTINGS, 3)[0], inputs)
    assert not np.array_equal(draw_batch(images, SETTINGS, 4)[0], inputs)
    assert not np.array_equal(draw_batch(images, replace(SETTINGS, seed=2), 3)[0], inputs)


def test_the_rate_rises_and_falls_to_one_hundredth():
    rates = [SETTINGS.rate(step) for step in range(SETTINGS.steps)]
    assert rates[0] == pytest.approx(SETTINGS.learning_rate / 5, rel=0.01)
    assert max(rates) <= SETTINGS.learning_rate
    assert rates[-1] < 0.02 * SETTINGS.learning_rate


def test_other_networks_batches_starts_and_sizes_are_refused(made, images):
    for network in (replace(NETWORK, family="real", transform="none"), replace(NETWORK, head="hidden")):
        with pytest.raises(UserError, match="family complex with head pooled"):
            pretrain(network, SETTINGS, images, images)
    with pytest.raises(UserError, match="multiple of 4"):
        pretrain(NETWORK, replace(SETTINGS, batch=30), images, images)
    with pytest.raises(UserError, match=r"one of 2, 8, 16 components, found 5"):
        made.start(NetworkSettings(family="head", domain="features", components=5, start="public"))
    with pytest.raises(UserError, match="convolutions 1"):
        made.start(replace(NETWORK, convolutions=2, start="public"))
    with pytest.raises(UserError, match="slices of 16 x 16"):
        made.features(np.zeros((2, 8, 8), dtype=np.complex64))


HELD_OUT = 8


@pytest.fixture(scope="module")
def kinds():
    """Two kinds of public patients; of the second, images are upside down."""
    return {"atlas": public(40), "shapes": public(40, 5)[..., ::-1, :]}


@pytest.fixture(scope="module")
def study(made, kinds):
    return read_study(made, kinds, (2, 16), HELD_OUT)


def test_statistics_are_means_and_deviations_of_every_activation(made):
    images = torch.from_numpy(whiten(to_kspace(public(2)))).reshape(-1, 1, 16, 16)
    seen = []

    def keep(_module, _inputs, output):
        seen.append(output)

    hooks = [m.register_forward_hook(keep) for m in made.network.blocks if isinstance(m, ConjMish)]
    made.network.features(images.requires_grad_())  # with gradients no activation is passed by
    for hook in hooks:
        hook.remove()
    expected = []
    for stacked in seen:
        real, imaginary = (part.detach().numpy() for part in stacked.chunk(2, 1))
        size = np.abs(real + 1j * imaginary).astype(np.float64)
        deviation = size.std((2, 3), ddof=1)
        expected += [real.mean((2, 3)), imaginary.mean((2, 3)), size.mean((2, 3)), deviation]
    with torch.no_grad():
        found = made.network.layer_statistics(images)
    assert found.shape == (len(images), 4 * (8 + 16))
    assert np.allclose(found, np.concatenate(expected, 1), rtol=1e-4, atol=1e-4)


def test_heads_on_a_study_classify_both_kinds_of_patients_by_uncorrelated_components(study, kinds):
    for images in kinds.values():
        assert public_accuracy(study, images[:HELD_OUT])["16"] > 0.85
    assert study.provenance["held_out_accuracy"].keys() == kinds.keys()
    assert study.provenance["layers"]["patients"] == {"atlas": 32, "shapes": 32}
    learnt = np.concatenate([images[HELD_OUT:, :, ::EVERY] for images in kinds.values()])
    real = study.record_features(to_kspace(learnt)).reshape(-1, study.components).view(np.float32)
    assert study.components == 16
    assert np.allclose(real.mean(0), 0, atol=1e-3)
    # Directions in which public images hardly vary are shrunk; the first ones are not.
    assert np.allclose(np.cov(real[:, :6].T), np.eye(6), atol=0.05)


def test_nothing_is_learnt_from_patients_that_are_held_out(study, made, kinds):
    others = {name: np.concatenate([images[:HELD_OUT] * 0 + 1, images[HELD_OUT:]]) for name, images in kinds.items()}
    again = read_study(made, others, (2, 16), HELD_OUT)
    assert all(torch.equal(value, again.tensors()[name]) for name, value in study.tensors().items())
    assert again.provenance["held_out_accuracy"] != study.provenance["held_out_accuracy"]


def test_features_of_a_study_are_less_the_mean_of_its_own_record_alone(study, tmp_path):
    kspace = to_kspace(public(3))
    found = study.record_features(kspace)
    np.testing.assert_allclose(found.mean(axis=(1, 2)), 0, atol=1e-3)
    assert np.array_equal(study.record_features(kspace[[1]])[0], found[1])
    raw = replace(study, centred=False).record_features(kspace)
    assert abs(raw.mean(axis=(1, 2))).max() > 0.1
    np.testing.assert_allclose(found, raw - raw.mean(axis=(1, 2), keepdims=True), atol=1e-3)
    study.save(tmp_path / "study.safetensors")
    again = load_backbone(tmp_path / "study.safetensors")
    assert np.array_equal(again.record_features(kspace), found)
    assert (again.provenance, again.settings) == (study.provenance, study.settings)
    assert {n: w.shape for n, (w, _) in again.heads.items()} == {2: (4, 2), 16: (4, 16)}


@pytest.mark.parametrize("domain", ["features", "study"])
def test_a_plan_finds_the_shipped_backbone_of_its_network(domain):
    network = NetworkSettings("head", domain, components=8, start="public")
    run, nodes = RunName("a", "federated", Target(8), 0), (NodeConstants("a", 2, 1),)
    plan = Plan(run, network, TrainingSettings(1), nodes, delta=0.1, task={"name": "brain_sequences"})
    found = backbone_of(with_public(plan, load_backbone(shipped_backbone(network))), None)
    assert found.layers == found.centred == (domain == "study")
    assert found.components == 64


def test_images_are_no_unit_where_they_change_each_other():
    network = NetworkSettings("head", "study", components=8)
    nodes = (NodeConstants("a", 2, 1),)
    with pytest.raises(UserError, match="unit patient for domain study"):
        Plan(RunName("a", "federated", Target(8), 0), network, TrainingSettings(1), nodes, delta=0.1, unit="image")


def test_features_do_not_depend_on_the_scale_of_intensities(study):
    kspace = to_kspace(public(2))[0]
    np.testing.assert_allclose(study.features(1000 * kspace), study.features(kspace), atol=1e-4)


@pytest.mark.parametrize("shift", SHIFTS)
def test_an_image_is_moved_by_whole_pixels(shift):
    images = public(1)[0, :, 0].astype(np.float32)
    kspace = shift_images(torch.from_numpy(to_kspace(images)), shift)
    np.testing.assert_allclose(to_image(kspace.numpy()).real, np.roll(images, shift, (-2, -1)), atol=1e-4)


def test_features_are_means_over_shifts(study):
    images = public(1)[0].astype(np.float32)
    alone = replace(study, shifts=1)
    shifted = [alone.features(to_kspace(np.roll(images, shift, (-2, -1)))) for shift in SHIFTS[: study.shifts]]
    assert study.shifts > 1
    np.testing.assert_allclose(
        study.features(to_kspace(images)), np.mean(shifted, axis=0), atol=1e-3
    )  # one shift fewer differs by 6


def test_heads_that_are_moved_by_a_pixel_keep_their_answers():
    """Of the shipped network, for public patients whom it never saw."""
    backbone = load_backbone(shipped_backbone(NetworkSettings("head", "study", components=64)))
    answers = {}
    for number in range(12):
        images = simulate_public_patient(77, number, 5, 32)
        for shift in ((0, 0), (1, 0), (0, 1), (-1, 1)):
            features = torch.from_numpy(backbone.features(to_kspace(np.roll(images, shift, (-2, -1)))))
            scores = head_scores(features.reshape(4, 5, -1)[..., :64].mean(1), backbone.heads[64])
            answers.setdefault(shift, []).append(by_orders(scores).argmax(-1))
    kept = [torch.stack(answers[shift]) == torch.stack(answers[0, 0]) for shift in answers]
    assert min(float(same.float().mean()) for same in kept) >= 0.9
