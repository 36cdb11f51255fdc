"""What public weights reach alone is measured on the network that training starts from."""

from __future__ import annotations

import json
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from training_builder import CLASSES, SEQUENCES, SIZE, backbone, network, patients

from zetadp.base.storage import ImageStack, write_stack
from zetadp.base.tensors import save_tensors
from zetadp.base.validation import UserError
from zetadp.core.pretrained import BACKBONE, FinishedModel, load_model, model_content
from zetadp.core.start import public_start, starting_weights
from zetadp.core.task import task_of
from zetadp.nn.heads import head_scores
from zetadp.nn.models import NetworkSettings, build

TASK = {"name": "brain_sequences", "slices": 3, "size": SIZE}
EVALUATE = Path(__file__).parents[3] / "scripts/evaluate.py"


@pytest.mark.parametrize(("components", "taper"), [(2, 0.0), (0, 0.0), (2, 1.5)])
def test_a_head_starts_as_the_public_head(components, taper):
    public = backbone()
    settings = NetworkSettings("head", "features", components=components, start="public", taper=taper)
    trained = build(settings, CLASSES, 4, np.random.default_rng(1))
    start = public_start(FinishedModel(trained, settings, task_of(TASK), "brain_sequences", 4, public), public)
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
    start = public_start(FinishedModel(finished, settings, task_of(TASK), "brain_sequences", SIZE), public)
    torch.testing.assert_close(start(images[0]), public.network(images[0]))


@pytest.mark.parametrize("start", ["public", "random"])
def test_evaluation_writes_what_the_public_head_reaches_on_the_test_patients(tmp_path, start):
    public = backbone()
    settings = NetworkSettings("head", "features", components=2, start=start)
    head = build(settings, CLASSES, 4, np.random.default_rng(1))
    tensors = dict(head.state_dict()) | {f"{BACKBONE}{key}": value for key, value in public.tensors().items()}
    content = model_content(settings, TASK, 4) | {"public": public.content()}
    save_tensors(tmp_path / "model.safetensors", tensors, content)
    public.save(tmp_path / "backbone.safetensors")

    random = np.random.default_rng(2)
    values = random.standard_normal((2, 6, CLASSES, 3, 1, 4)).astype(np.float32)
    features = (values[0] + 1j * values[1]).astype(np.complex64)
    names = tuple(f"P{number}" for number in range(6))
    axes = ("patient", "sequence", "slice", "row", "component")
    write_stack(tmp_path / "features.h5", ImageStack(features, names, SEQUENCES, axes, "1", {}))
    roles = ["train", "train", "test", "test", "test", "test"]
    rows = {"patient": names, "record": names, "part": roles, "scanner": "", "role": roles, "node": "server"}
    pd.DataFrame(rows).to_csv(tmp_path / "partition.csv", index=False)
    runpy.run_path(str(EVALUATE))["evaluate"](
        model=tmp_path / "model.safetensors",
        images=[tmp_path / "features.h5"],
        partition=tmp_path / "partition.csv",
        backbone=[tmp_path / "backbone.safetensors"],
        predictions=tmp_path / "predictions.csv",
        metrics=tmp_path / "metrics.json",
        name={"network": "pretrained", "arm": "federated", "epsilon": "1", "seed": 0},
        device="cpu",
    )
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    test = torch.from_numpy(features[2:, :, :, 0])
    right = head_scores(test, public.heads[2]).argmax(dim=-1) == torch.arange(CLASSES)[:, None]
    if start == "public":
        assert metrics["public_start"] == pytest.approx(float(right.double().mean()), abs=1e-12)
        assert metrics["public_start"] != metrics["accuracy"]
    else:
        assert "public_start" not in metrics
    assert load_model(tmp_path / "model.safetensors").settings == settings


def test_a_public_start_without_a_backbone_is_refused_and_not_taken_for_a_random_one():
    network = NetworkSettings(family="head", domain="features", start="public")
    with pytest.raises(UserError, match="no public backbone"):
        starting_weights(network, None)
    assert starting_weights(replace(network, start="random"), None) is None
