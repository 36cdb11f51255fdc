"""The way of a GPU without one, on PyTorch's meta device, whose tensors hold no numbers.

Code that mixes devices raises there. So does code that asks the device for a number, which would make a GPU wait. Three
things may wait, and come after what is called here: the bytes of messages, the count of patients left out, and metrics.
These tests cannot see plain copies to the device, which also make the processor wait, unlike those of
`zetadp.base.tensors.to_device`.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from ledger_builder import DECLARATION, poisson
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import TensorDataset

from zetadp.account.ledger import Ledger
from zetadp.base.tensors import Layout, to_device
from zetadp.brain.pretraining import _step
from zetadp.brain.settings import BackboneNetwork, BackboneTraining
from zetadp.config.load import load_config
from zetadp.mechanism.clipping import clipped_sums
from zetadp.mechanism.contributions import Contributors, Gradient
from zetadp.mechanism.grid import Grid
from zetadp.mechanism.release import NodeMechanism
from zetadp.mri.decathlon import SEQUENCES
from zetadp.nn.models import NetworkSettings, build
from zetadp.nn.settings import BY_NOISE, FEATURES
from zetadp.own.looked_up import LookedUp
from zetadp.training.evaluation import ITEMS_AT_ONCE, outputs_of, watched_on_device
from zetadp.training.records import LabelledItems, Node, choose_items, items_of
from zetadp.training.round import noise_meanwhile
from zetadp.training.server import Server
from zetadp.training.settings import OptimiserSettings
from zetadp.training.task import Classification

ROOT = Path(__file__).parents[2]
CONFIG = load_config(yaml.safe_load((ROOT / "config.yaml").read_text()))
# A taper that follows from a plan's noise has a number in every plan.
NETWORKS = {
    name: replace(network.settings, taper=1.0 if network.settings.taper == BY_NOISE else network.settings.taper)
    for name, network in CONFIG.networks.items()
}
BACKBONE = NetworkSettings(**asdict(BackboneNetwork()))
PRETRAINED = {"backbone": BACKBONE, "complex": NETWORKS["complex"]}
SIDE = CONFIG.task.chosen.size
META = torch.device("meta")
PATIENTS, CLASSES = 3, len(SEQUENCES)
CLIPS = (0.37, 0.5)
"""A grid truncates in another way where the clip is a power of two."""


class OneDevice(TorchDispatchMode):
    """Refuses what PyTorch allows although a GPU waits for it: indices in the processor's memory."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        tensors = (leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor) and leaf.ndim)
        devices = {tensor.device.type for tensor in tensors}
        assert len(devices) < 2, f"{func} mixes devices: {sorted(devices)}"
        return func(*args, **(kwargs or {}))


def on_meta(name: str) -> tuple[torch.nn.Module, Layout, LabelledItems]:
    """Return a network of the default configuration and records as it sees them, on the device without numbers."""
    settings = NETWORKS[name]
    shape = (1, BACKBONE.widths[-1]) if settings.domain in FEATURES else (SIDE, SIDE)
    model = build(settings, CLASSES, shape[-1], np.random.default_rng(0)).to(META)
    images = CONFIG.images_of_a_patient
    kind = torch.float32 if settings.domain == "image" else torch.complex64
    labels = torch.arange(CLASSES).repeat_interleave(images // CLASSES).repeat(2 * PATIENTS)
    inputs = torch.empty(len(labels), 1, *shape, dtype=kind, device=META)
    records = LabelledItems(inputs, labels.to(META), labels.numpy())
    return model, Layout.of(model), records


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_private_round_waits_for_no_device(name, exact, clip, tmp_path):
    model, layout, records = on_meta(name)
    each = CONFIG.training_of(name).images_per_patient
    grid = Grid.choose(clip, noise_multiplier=1.0, population=PATIENTS, dimension=layout.dimension) if exact else None
    with Ledger(tmp_path / "ledger.jsonl") as ledger, OneDevice():
        ledger.start(DECLARATION)
        constants = {"population": PATIENTS, "expected": PATIENTS, "noise_multiplier": 1.0, "clip": clip}
        events = [poisson(f"node-{place}", **constants) for place in range(2)]
        nodes = [
            Node(
                NodeMechanism(event, ledger=ledger, grid=grid, seed=None if exact else 0, node_index=place),
                items_of([[PATIENTS * place + patient] for patient in range(PATIENTS)], CONFIG.images_of_a_patient),
            )
            for place, event in enumerate(events)
        ]
        draws = [node.mechanism.draw(0) for node in nodes]
        chosen = [choose_items(node, draw, records.strata, each)[0] for node, draw in zip(nodes, draws, strict=True)]
        items = to_device(torch.from_numpy(np.concatenate(chosen)), META)
        groups = torch.arange(2).repeat_interleave(PATIENTS)
        drawn = Contributors(records.inputs, records.targets, items, groups, 2)
        # Four patients a pass: the round takes two.
        with noise_meanwhile([node.mechanism for node in nodes], 0, layout.dimension, META):
            found = clipped_sums(Gradient(model, layout), drawn, bound=clip, chunk=4 * each, grid=grid)
        assert found.sums.dtype == (torch.int64 if exact else torch.float32)
        ledger.record([draw.event for draw in draws])
        messages = torch.stack([n.mechanism.release(d, s) for n, d, s in zip(nodes, draws, found.sums, strict=True)])
    assert messages.device == found.not_finite.device == META
    assert messages.shape == (2, layout.dimension)
    for optimiser in ("nadam", "sgd"):
        weights = layout.flatten(dict(model.named_parameters())).detach()
        server = Server(weights, OptimiserSettings(name=optimiser, averaged=1.0), rounds=1)
        with OneDevice():
            server.step(messages, 0)
        assert server.weights.device == META


@pytest.mark.parametrize("name", NETWORKS)
def test_an_evaluation_waits_for_no_device_before_its_metrics(name):
    model, _, records = on_meta(name)
    with OneDevice():
        scores = outputs_of(model, records.inputs)
        metrics = watched_on_device(Classification(CLASSES), model, records)
    assert scores.shape == (2 * PATIENTS * CONFIG.images_of_a_patient, CLASSES)
    assert (metrics.shape, metrics.device) == ((2,), META)


def test_looked_up_items_arrive_without_a_wait():
    units, each = 10, 20
    inputs = LookedUp(TensorDataset(torch.randn(units * each, 3)), device=META)
    targets = torch.zeros(units * each, dtype=torch.int64, device=META)
    model = torch.nn.Linear(3, CLASSES).to(META)
    items, groups = torch.arange(units * each).view(units, each), torch.zeros(units, dtype=torch.int64)
    contribution = Gradient(model, Layout.of(model), rules=True)
    with OneDevice():
        outputs = outputs_of(model, inputs)
        drawn = Contributors(inputs, targets, items, groups, 1)
        sums = clipped_sums(contribution, drawn, bound=1.0, chunk=3 * each).sums
    assert len(outputs) == units * each > ITEMS_AT_ONCE
    assert outputs.device == sums.device == META


@pytest.mark.parametrize("rules", [False, True])
@pytest.mark.parametrize("grid", [None, *(Grid(clip, 20) for clip in CLIPS)])
def test_a_round_of_ordinary_layers_waits_for_no_device(rules, grid):
    layers = [nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Dropout(0.5), nn.Conv2d(4, 4, 3, groups=2), nn.PReLU(4)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, CLASSES)).to(META)
    inputs, targets = torch.empty(10, 1, 8, 8, device=META), torch.empty(10, dtype=torch.int64, device=META)
    items, groups = torch.arange(10, device=META).view(5, 2), torch.tensor([0, 0, 1, 3, 3])
    of_units = {"weights": torch.empty(5, 2, device=META), "keys": torch.empty(5, dtype=torch.int64, device=META)}
    drawn = Contributors(inputs, targets, items, groups, 4, **of_units)
    with OneDevice():
        result = clipped_sums(Gradient(model, Layout.of(model), rules=rules), drawn, bound=0.37, chunk=4, grid=grid)
    assert result.sums.device == result.not_finite.device == META


@pytest.mark.parametrize("name", PRETRAINED)
def test_a_step_of_pretraining_waits_for_no_device(name):
    model = build(PRETRAINED[name], CLASSES, SIDE, np.random.default_rng(0)).to(META)
    optimiser = torch.optim.Adam(model.parameters())
    settings = BackboneTraining(steps=2, batch=2 * CLASSES)
    images = np.random.default_rng(1).random((3, CLASSES, 2, SIDE, SIDE), dtype=np.float32)
    running = torch.full((), torch.nan, dtype=torch.float64, device=META)
    with OneDevice():
        for step in range(settings.steps):
            running = _step(model, optimiser, settings, images, step, running)
    assert running.device == META
    assert all(p.device == META and p.grad is not None for p in model.parameters())
