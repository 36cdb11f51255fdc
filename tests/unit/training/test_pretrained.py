from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from training_builder import CLASSES, NETWORKS, SIZE, backbone, network, patients

from zetadp.base.tensors import load_tensors, save_tensors
from zetadp.base.validation import UserError
from zetadp.brain.images import prepared_inputs
from zetadp.mri.kspace import to_kspace
from zetadp.nn.heads import head_scores
from zetadp.nn.models import NetworkSettings, build
from zetadp.training.pretrained import BACKBONE, FinishedModel, load_model, model_content, starting_weights
from zetadp.training.task import task_of

TASK = {"name": "brain_sequences", "slices": 20, "size": SIZE, "decision": "image"}


def saved(path, name: str, **changes: object) -> torch.nn.Module:
    model = network(NETWORKS[name])
    content = model_content(NETWORKS[name], TASK, SIZE) | changes
    save_tensors(path, {key: value.detach() for key, value in model.named_parameters()}, content)
    return model


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "head"])
def test_a_model_that_was_saved_gives_the_same_scores(tmp_path, name):
    model = saved(tmp_path / "model.safetensors", name)
    found = load_model(tmp_path / "model.safetensors")
    assert found.settings == NETWORKS[name]
    assert (found.task, found.task_name, found.inputs) == (task_of(TASK), "brain_sequences", SIZE)
    assert not found.network.training
    assert not any(p.requires_grad for p in found.network.parameters())
    images, _ = patients(1, 3, domain=NETWORKS[name].domain)
    assert torch.equal(found.network(images[0]), model(images[0]))


def head_file(folder, **how):
    """Write the model of a head with its backbone; return the path, the head and the backbone."""
    public, settings, path = backbone(), NetworkSettings("head", components=2, **how), folder / "model.safetensors"
    head = build(settings, 4, 4, np.random.default_rng(1))
    tensors = dict(head.named_parameters()) | {f"{BACKBONE}{key}": value for key, value in public.tensors().items()}
    content = model_content(settings, TASK, 4) | {"public": public.content()}
    save_tensors(path, {key: value.detach() for key, value in tensors.items()}, content)
    return path, head, public


@pytest.mark.parametrize(
    ("domain", "start", "beside"),
    [("study", "public", True), ("study", "random", False), ("features", "public", False)],
)
def test_a_head_on_a_study_that_started_from_the_public_head_has_it_beside(tmp_path, domain, start, beside):
    path, head, public = head_file(tmp_path, domain=domain, start=start, taper=0.7)
    found = load_model(path)
    items = torch.randn(2 * 4 * 20, 1, 1, 4, dtype=torch.complex64)
    own = head(items).detach()
    expected = found.task.combine_scores(own, head_scores(items[:, 0, 0], public.heads[2])) if beside else own
    torch.testing.assert_close(found.outputs(items), expected)
    assert torch.allclose(found.outputs(items), own) != beside


def test_a_file_that_is_no_model_is_a_users_error(tmp_path):
    path = tmp_path / "run.partial"
    save_tensors(path, {"weights": torch.zeros(3)}, {"round": 1, "fingerprint": "abc"})
    with pytest.raises(UserError, match=r"Expected .*run\.partial to be a trained model"):
        load_model(path)
    with pytest.raises(UserError, match=r"Cannot read .*absent\.safetensors: no such file\. Check the path"):
        load_model(tmp_path / "absent.safetensors")
    torch.save({"weights": torch.zeros(3)}, tmp_path / "model.pt")
    with pytest.raises(UserError, match=r"Cannot read .*model\.pt: it is damaged, or not a safetensors file"):
        load_model(tmp_path / "model.pt")
    save_tensors(tmp_path / "model.safetensors", {}, {})
    with pytest.raises(UserError, match=rf"found the folder {tmp_path}\. .*{tmp_path}/model\.safetensors"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"network": asdict(replace(NETWORKS["complex hidden"], hidden=7))},
        {"network": asdict(NETWORKS["linear"])},
        {"network": {"family": "quaternion"}},
        {"network": {"depth": 3}},
        {"inputs": 2 * SIZE},
    ],
)
def test_weights_that_do_not_fit_the_network_are_a_users_error(tmp_path, changes):
    path = tmp_path / "model.safetensors"
    saved(path, "complex hidden", **changes)
    with pytest.raises(UserError, match=r"Expected .*model\.safetensors to be a trained model"):
        load_model(path)


def test_a_head_brings_its_backbone(tmp_path):
    path, head, public = head_file(tmp_path, domain="features")
    found = load_model(path)
    slices = np.random.default_rng(1).random((3, SIZE, SIZE)).astype(np.float32)
    features = public.features(to_kspace(slices))
    expected = head(torch.from_numpy(features).unsqueeze(1))
    torch.testing.assert_close(found.network(prepared_inputs(slices, "features", found.backbone)), expected)
    assert found.inputs == 4


def test_a_public_network_of_another_task_is_refused(tmp_path):
    path, _, _ = head_file(tmp_path, domain="features")
    tensors, content = load_tensors(path)
    save_tensors(path, tensors, content | {"task": {"name": "phase_mnist"}})
    with pytest.raises(UserError, match=r"Expected .*model\.safetensors to be a trained model"):
        load_model(path)


@pytest.mark.parametrize(("components", "taper"), [(2, 0.0), (0, 0.0), (2, 1.5)])
def test_a_head_starts_as_the_public_head(components, taper):
    public = backbone()
    settings = NetworkSettings("head", "features", components=components, start="public", taper=taper)
    trained = build(settings, CLASSES, 4, np.random.default_rng(1))
    start = FinishedModel(trained, settings, task_of(TASK), "brain_sequences", 4, public).public_start(public)
    features = torch.randn(5, 1, 1, 4, dtype=torch.complex64)
    expected = head_scores(features[:, 0, 0], public.heads[components or 4])
    torch.testing.assert_close(start(features), expected)
    assert not torch.allclose(trained(features), expected)


@pytest.mark.parametrize("trained", ["all", "norms"])
def test_a_whole_network_starts_as_the_backbone(trained):
    public = backbone()
    settings = replace(public.settings, trained=trained, start="public")
    finished = network(settings, 5)
    for parameter in finished.parameters():
        parameter.data += 0.1  # updates of a trained network are not those it began with
    images, _ = patients(1, 6)
    start = FinishedModel(finished, settings, task_of(TASK), "brain_sequences", SIZE).public_start(public)
    torch.testing.assert_close(start(images[0]), public.network(images[0]))


def test_a_public_start_without_a_backbone_is_refused_and_not_taken_for_a_random_one():
    network = NetworkSettings(family="head", domain="features", start="public")
    with pytest.raises(UserError, match="no public backbone"):
        starting_weights(network, None)
    assert starting_weights(replace(network, start="random"), None) is None
