from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest
import torch
from training_builder import NETWORKS, SIZE, backbone, network, patients

from zetadp.core.checkpoint import Checkpoint
from zetadp.dataset import standardise
from zetadp.kspace.fourier import to_kspace
from zetadp.kspace.whitening import whiten
from zetadp.nn.models import NetworkSettings, build
from zetadp.pretrained import BACKBONE, load_model, model_content
from zetadp.tensors import save_tensors
from zetadp.validation import UserError

SEQUENCES = ("FLAIR", "T1w", "T1gd", "T2w")


def saved(path, name: str, **changes: object) -> torch.nn.Module:
    model = network(NETWORKS[name])
    content = model_content(asdict(NETWORKS[name]), SEQUENCES, 20, SIZE) | changes
    save_tensors(path, {key: value.detach() for key, value in model.named_parameters()}, content)
    return model


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "head"])
def test_a_model_that_was_saved_gives_the_same_scores(tmp_path, name):
    model = saved(tmp_path / "model.safetensors", name)
    found = load_model(tmp_path / "model.safetensors")
    assert found.settings == NETWORKS[name]
    assert (found.sequences, found.size, found.slices) == (SEQUENCES, SIZE, 20)
    assert not found.network.training
    assert not any(p.requires_grad for p in found.network.parameters())
    images, _ = patients(1, 3, domain=NETWORKS[name].domain)
    assert torch.equal(found.network(images[0]), model(images[0]))


def test_input_is_prepared_as_the_network_was_trained(tmp_path):
    slices = np.random.default_rng(0).random((2, 3, SIZE, SIZE)).astype(np.float32)
    for name, expected in (("complex pooled", whiten(to_kspace(slices))), ("real image", standardise(slices))):
        saved(tmp_path / "model.safetensors", name)
        found = load_model(tmp_path / "model.safetensors").prepare(slices)
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == (torch.float32 if name == "real image" else torch.complex64)
    whitened = whiten(to_kspace(slices))
    saved(tmp_path / "model.safetensors", "complex pooled")
    np.testing.assert_array_equal(load_model(tmp_path / "model.safetensors").prepare(whitened), whitened)


def test_a_file_that_is_no_model_is_a_users_error(tmp_path):
    path = tmp_path / "run.partial"
    Checkpoint(1, "abc", {"weights": torch.zeros(3)}, pd.DataFrame(), "0").save(path)
    with pytest.raises(UserError, match=r"Expected .*run\.partial to be a trained model"):
        load_model(path)
    with pytest.raises(UserError, match="Cannot read"):
        load_model(tmp_path / "absent.safetensors")


@pytest.mark.parametrize(
    "changes",
    [
        {"network": asdict(replace(NETWORKS["complex hidden"], hidden=7))},
        {"network": asdict(NETWORKS["linear"])},
        {"network": {"family": "quaternion"}},
        {"network": {"depth": 3}},
        {"size": 2 * SIZE},
    ],
)
def test_weights_that_do_not_fit_the_network_are_a_users_error(tmp_path, changes):
    path = tmp_path / "model.safetensors"
    saved(path, "complex hidden", **changes)
    with pytest.raises(UserError, match=r"Expected .*model\.safetensors to be a trained model"):
        load_model(path)


def head_file(folder, name="model.safetensors", **changes):
    """Write the model of a head with its backbone; return the path, the head and the backbone."""
    public = backbone()
    settings = NetworkSettings("head", "features", components=2, start="public")
    head = build(settings, 4, 4, np.random.default_rng(0))
    head.load_state_dict(public.start(settings))
    tensors = dict(head.state_dict()) | {f"{BACKBONE}{key}": value for key, value in public.tensors().items()}
    content = model_content(asdict(settings), SEQUENCES, 20, SIZE) | {"public": public.content()} | changes
    save_tensors(folder / name, tensors, content)
    return folder / name, head, public


def test_a_head_brings_its_backbone_and_takes_slices_kspace_and_features(tmp_path):
    path, head, public = head_file(tmp_path)
    found = load_model(path)
    slices = np.random.default_rng(1).random((3, SIZE, SIZE)).astype(np.float32)
    kspace = whiten(to_kspace(slices))
    features = public.features(kspace)
    expected = head(torch.from_numpy(features).unsqueeze(1))
    for values in (slices, kspace, features):
        torch.testing.assert_close(found.network(found.prepare(values).unsqueeze(1)), expected)
    assert found.size == SIZE


def test_a_head_without_its_backbone_is_refused(tmp_path):
    path, _, _ = head_file(tmp_path, public={})
    with pytest.raises(UserError, match="trained model of this version"):
        load_model(path)
