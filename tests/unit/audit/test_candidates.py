"""Candidates are named as often as theory says where it is known, never oftener than the bound, from true gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from zetadp.audit import candidates
from zetadp.base.epsilon import Target
from zetadp.base.runfolder import RunName
from zetadp.nn.models import NetworkSettings
from zetadp.training.plan import NodeConstants, Plan
from zetadp.training.settings import OptimiserSettings, TrainingSettings

ERROR = 50 / math.sqrt(candidates.TRIALS)
"""The largest standard error of a share, in %."""


@pytest.mark.parametrize("mu", [0.4, 2.0])
def test_the_attack_reaches_what_is_known_for_candidates_at_right_angles(mu):
    named = candidates.identification_rate(np.eye(100), mu, 10, np.random.default_rng(0))
    assert named == pytest.approx(candidates.worst_identification_rate(mu, 10), abs=5 * ERROR)


def test_candidates_that_are_alike_are_guessed_and_no_bound_is_passed():
    random = np.random.default_rng(1)
    alike = candidates.identification_rate(np.ones((20, 20)), 5.0, 10, random)
    assert alike == pytest.approx(10, abs=5 * ERROR)
    vectors = random.standard_normal((20, 3))
    inner = vectors @ vectors.T / np.square(vectors).sum(axis=1).max()
    table = candidates.attack_candidates("net", inner, [1, 8], [2, 10], 1e-3)
    assert (table["named"] < table["bound"] + 5 * ERROR).all()
    assert (table["named"] > 100 / table["candidates"] - 5 * ERROR).all()
    assert "at δ = 0.001," in candidates.sheet(table).notes[1]


@pytest.fixture
def plan():
    network = NetworkSettings(widths=(2, 4), convolutions=1, head="pooled", groups=2)
    how = TrainingSettings(3, 4, OptimiserSettings(name="sgd", learning_rate=0.1), clip=0.05, noise="os")
    nodes = (NodeConstants("node-01", 9, 9, 2.0), NodeConstants("node-02", 9, 9, 2.0))
    return Plan(RunName("net", "federated", Target(8), 5), network, how, nodes, cohort="private")


def test_each_patient_sends_its_clipped_gradient_of_every_round_without_noise(plan):
    own = candidates.of_candidates(plan, 6)
    assert (own.clip, own.training.rounds, own.network) == (plan.clip, 3, plan.network)
    assert all(own.probability(node.name) == 1 and node.noise_multiplier == 0 for node in own.nodes)
    found = candidates.gradients(own, None, 8)
    assert found.shape[:2] == (3, 6)
    # Nearly every gradient is longer than so small a clip, whose unit these are in.
    norms = found.norm(dim=2)
    assert float(norms.max()) <= 1 + 1e-5
    assert float(norms.median()) == pytest.approx(1, abs=1e-5)
    assert torch.equal(found, candidates.gradients(own, None, 8))
    inner = candidates.inner_products(found)
    assert inner[2, 4] == pytest.approx(float((found[:, 2] * found[:, 4]).sum(dim=1).double().mean()), rel=1e-4)
