"""Changes that must not matter: the order of patients, how they are spread over nodes, and unitary transforms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from contributing import contributors
from training_builder import NETWORKS, TINY, Held, items_each, network, patients, plan_for, records

from zetadp.base.epsilon import Target
from zetadp.base.runfolder import RunName
from zetadp.mechanism.clipping import clipped_sums
from zetadp.mechanism.grid import Grid
from zetadp.nn.models import NetworkSettings
from zetadp.training.checkpoint import RunFiles
from zetadp.training.holders import LocalHolders
from zetadp.training.loop import train
from zetadp.training.records import LabelledItems, items_of
from zetadp.training.round import Phase
from zetadp.training.settings import OptimiserSettings, TrainingSettings

WITHOUT_NOISE = RunName("complex", "federated", Target(math.inf), 3)
DESCENT = TrainingSettings(4, 4, OptimiserSettings(0.5, drop_after=1, name="sgd"), clip=0.4)


def trained(folder, nodes, data, net=TINY, settings=DESCENT, start=None):
    """Train without noise on everybody and return the weights, and the mean message of every round."""
    plan = plan_for(WITHOUT_NOISE, net, settings, nodes)
    units = [items_of(node.patients, items_each(data)) for node in nodes]
    means = []
    result = train(
        LocalHolders(plan, data, units, start=start),
        RunFiles(folder / "run.jsonl", folder / "run.partial"),
        after_round=lambda _, messages: means.append(messages.mean(dim=0)),
    )
    return dict(result.model.named_parameters()), torch.stack(means)


@pytest.mark.parametrize("shares", [[3, 3], [2, 2, 2], [1] * 6])
def test_equal_holders_together_send_what_one_holder_of_all_sends(tmp_path, shares):
    data = records(6)
    starts = np.cumsum([0, *shares])
    split = [
        Held(f"node-{n}", [[p] for p in range(starts[n], starts[n + 1])], own, own, 0.0) for n, own in enumerate(shares)
    ]
    _, apart = trained(tmp_path / "apart", split, data)
    _, together = trained(tmp_path / "together", [Held("all", [[p] for p in range(6)], 6, 6, 0.0)], data)
    torch.testing.assert_close(apart, together, rtol=1e-4, atol=1e-6)
    assert together.norm(dim=1).min() > 1e-2


@pytest.mark.parametrize("name", ["complex pooled", "real image", "head"])
def test_integer_sums_are_the_same_bits_in_any_order_of_patients(name):
    """Else the order, which is not public, could be read from the last bits of a message."""
    settings = NETWORKS[name]
    model = network(settings)
    images, labels = patients(7, 4, domain=settings.domain)
    if settings.family == "head":
        images = images[..., :1, :]
    phase = Phase.of(model, 4)
    grid = Grid.choose(0.3, noise_multiplier=1.0, most_noise=1.0, population=7, dimension=phase.dimension)
    groups = torch.tensor([0, 1, 0, 1, 1, 0, 2])

    def sums(order):
        drawn = contributors(images[order], labels[order], groups[order], 3)
        # One patient a pass, as with exact noise: the last bits of a gradient depend on what it is computed with.
        return clipped_sums(phase.contribution, drawn, bound=0.3, chunk=4, grid=grid).sums

    first = sums(torch.arange(7))
    for seed in range(5):
        assert torch.equal(sums(torch.randperm(7, generator=torch.Generator().manual_seed(seed))), first)
    assert (first != 0).any()


def unitary(size, seed=0):
    values = torch.randn(size, size, dtype=torch.complex128, generator=torch.Generator().manual_seed(seed))
    return torch.linalg.qr(values)[0].to(torch.complex64)


def test_a_head_on_turned_features_learns_the_turned_head(tmp_path):
    """Clipping and descent see a complex weight by its modulus alone: a wrong conjugate would break this."""
    turn = unitary(3)
    random = torch.Generator().manual_seed(5)
    features = torch.randn(24, 1, 1, 3, dtype=torch.complex64, generator=random)
    weight = torch.randn(4, 3, dtype=torch.complex64, generator=random)
    bias = torch.randn(4, dtype=torch.complex64, generator=random)
    targets, strata = torch.arange(4).repeat(6), np.tile(np.arange(4), 6)
    everybody = [Held("all", [[p] for p in range(6)], 6, 6, 0.0)]
    head = NetworkSettings("head", "features", components=3, start="public")

    def learnt(where, inputs, weight):
        start = {"affine.weight": weight, "affine.bias": bias}
        return trained(tmp_path / where, everybody, LabelledItems(inputs, targets, strata), head, start=start)[0]

    plain = learnt("plain", features, weight)
    turned = learnt("turned", features @ turn.T, weight @ turn.mH)
    torch.testing.assert_close(turned["affine.weight"], plain["affine.weight"] @ turn.mH, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(turned["affine.bias"], plain["affine.bias"], rtol=1e-4, atol=1e-5)
    assert (plain["affine.weight"] - weight).abs().max() > 0.05
