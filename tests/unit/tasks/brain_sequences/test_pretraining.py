from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from public_discs import NETWORK, SEQUENCES, SETTINGS, public

from zetadp.base.validation import UserError
from zetadp.nn.backbone import load_backbone
from zetadp.nn.models import NetworkSettings, build
from zetadp.tasks.brain_sequences.pretraining import PublicImages, draw_batch, pretrain


@pytest.fixture(scope="module")
def images():
    return public(40)


@pytest.fixture(scope="module")
def made(images, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretraining")
    return pretrain(NETWORK, SETTINGS, PublicImages(images, public(10, 1), SEQUENCES), checkpoint=folder / "checkpoint")


def test_it_learns_and_says_how_well_on_patients_it_never_saw(made):
    accuracy = made.provenance["held_out_accuracy"]
    assert set(accuracy) == {"2", "8", "16"}
    assert accuracy["16"] > 0.8
    assert made.provenance["held_out_patients"] == 10


def test_public_heads_are_the_best_of_their_kind(made, images):
    """A head that starts elsewhere and is trained to the end has no lower loss on the images it was fitted on."""
    features, labels = features_of(made, images[::2])
    for components in (2, 16):
        settings = NetworkSettings(family="head", domain="features", components=components, start="public")
        head = build(settings, 4, 16, np.random.default_rng(0))
        head.load_state_dict(made.start(settings))

        def loss(head=head):
            return torch.nn.functional.cross_entropy(head(features), labels)

        before = float(loss().detach())
        optimiser = torch.optim.LBFGS(head.parameters(), max_iter=100, line_search_fn="strong_wolfe")

        def closure(head=head, optimiser=optimiser):
            optimiser.zero_grad()
            value = torch.nn.functional.cross_entropy(head(features), labels)
            value.backward()
            return value

        optimiser.step(closure)
        assert float(loss().detach()) > before - 0.02


def features_of(backbone, images):
    from zetadp.mri.kspace import to_kspace, whiten

    found = torch.from_numpy(backbone.features(whiten(to_kspace(images))))
    labels = torch.arange(4).repeat_interleave(3).repeat(len(images))
    return found.flatten(0, 2).unsqueeze(1), labels


def test_an_interrupted_training_ends_with_the_same_bits(images, made, tmp_path, monkeypatch):
    settings = replace(SETTINGS, checkpoint_seconds=0)
    calls = []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 17:
            raise KeyboardInterrupt
        return draw_batch(*arguments)

    monkeypatch.setattr("zetadp.tasks.brain_sequences.pretraining.draw_batch", interrupted)
    path = tmp_path / "checkpoint"
    with pytest.raises(KeyboardInterrupt):
        pretrain(NETWORK, settings, PublicImages(images, public(10, 1), SEQUENCES), checkpoint=path)
    assert path.exists()
    again = pretrain(NETWORK, settings, PublicImages(images, public(10, 1), SEQUENCES), checkpoint=path)
    assert len(calls) == 17 + 40 - 16
    assert all(torch.equal(value, again.tensors()[name]) for name, value in made.tensors().items())
    # What was learned stays until somebody has written it.
    once_more = pretrain(NETWORK, settings, PublicImages(images, public(10, 1), SEQUENCES), checkpoint=path)
    assert len(calls) == 17 + 40 - 16
    assert all(torch.equal(value, once_more.tensors()[name]) for name, value in made.tensors().items())


def test_a_checkpoint_of_other_images_is_not_continued(images, tmp_path, monkeypatch):
    path = tmp_path / "checkpoint"
    settings = replace(SETTINGS, steps=4, checkpoint_seconds=0)

    def stop(*arguments):
        if arguments[2] == 2:
            raise KeyboardInterrupt
        return draw_batch(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr("zetadp.tasks.brain_sequences.pretraining.draw_batch", stop)
        with pytest.raises(KeyboardInterrupt):
            pretrain(NETWORK, settings, PublicImages(images, images[:2], SEQUENCES), checkpoint=path)
    kept = path.read_bytes()
    other = pretrain(NETWORK, settings, PublicImages(images[:30], images[:2], SEQUENCES), checkpoint=path)
    fresh = pretrain(NETWORK, settings, PublicImages(images[:30], images[:2], SEQUENCES), checkpoint=tmp_path / "fresh")
    assert kept
    assert all(torch.equal(value, fresh.tensors()[name]) for name, value in other.tensors().items())


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


def test_a_backbone_is_read_as_it_was_written(made, images, tmp_path):
    made.save(tmp_path / "backbone.safetensors")
    again = load_backbone(tmp_path / "backbone.safetensors")
    values = (images[0] + 0j).astype(np.complex64)
    assert np.array_equal(again.features(values), made.features(values))
    assert again.provenance == made.provenance
    assert again.settings == made.settings
    assert {n: w.shape for n, (w, _) in again.heads.items()} == {2: (4, 2), 8: (4, 8), 16: (4, 16)}


def test_features_of_an_image_do_not_depend_on_the_others(made, images):
    values = (images[:3] + 0j).astype(np.complex64)
    together = made.features(values)
    assert together.shape == (3, 4, 3, 1, 16)
    np.testing.assert_allclose(together[1], made.features(values[1]), rtol=1e-4, atol=1e-4)


def test_features_are_those_before_the_head(made):
    """The head of the network on unprojected features gives the network's own scores."""
    kspace = torch.randn(5, 1, 16, 16, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    stacked = made.network.features(kspace)
    real, imaginary = made.network.head(stacked).chunk(2, dim=1)
    torch.testing.assert_close(made.network(kspace), torch.hypot(real, imaginary))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"family": "real", "transform": "none"}, "family complex with head pooled"),
        ({"head": "hidden"}, "family complex with head pooled"),
    ],
)
def test_other_networks_make_no_backbone(images, tmp_path, change, words):
    with pytest.raises(UserError, match=words):
        pretrain(
            replace(NETWORK, **change), SETTINGS, PublicImages(images, images, SEQUENCES), checkpoint=tmp_path / "c"
        )


def test_a_batch_that_cannot_be_shared_by_the_sequences_is_refused(images, tmp_path):
    with pytest.raises(UserError, match="multiple of 4"):
        pretrain(
            NETWORK, replace(SETTINGS, batch=30), PublicImages(images, images, SEQUENCES), checkpoint=tmp_path / "c"
        )


def test_starts_of_another_shape_and_slices_of_another_size_are_refused(made):
    with pytest.raises(UserError, match=r"one of 2, 8, 16 components, found 5"):
        made.start(NetworkSettings(family="head", domain="features", components=5, start="public"))
    with pytest.raises(UserError, match="convolutions 1"):
        made.start(replace(NETWORK, convolutions=2, start="public"))
    assert made.start(replace(NETWORK, start="public")).keys() == made.network.state_dict().keys()
    with pytest.raises(UserError, match="slices of 16 x 16"):
        made.features(np.zeros((2, 8, 8), dtype=np.complex64))
