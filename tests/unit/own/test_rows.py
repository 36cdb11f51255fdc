"""Mixed rows, from units to what a node releases."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from training_builder import Held, plan_for

from zetadp.account.exposure import declared_run, seen_by
from zetadp.account.ledger import Ledger
from zetadp.accounting import composition
from zetadp.accounting.kinds import NoisySum
from zetadp.base.epsilon import Target
from zetadp.base.runfolder import RunName
from zetadp.base.validation import UserError
from zetadp.nn.settings import NetworkSettings
from zetadp.own.rows import mixed_as
from zetadp.training.assembly import Assembly
from zetadp.training.checkpoint import RunFiles
from zetadp.training.holders import LocalHolders
from zetadp.training.loop import train
from zetadp.training.outbox import Outbox
from zetadp.training.plan import Plan
from zetadp.training.promise import noise_of_plan
from zetadp.training.records import LabelledItems, Node
from zetadp.training.round import do_round
from zetadp.training.settings import MixingSettings, TrainingSettings

CLASSES, COMPONENTS, ROWS, DEGREE = 3, 4, 12, 6.0
SIZES = (30, 36)
HEAD = NetworkSettings("head", "features", components=COMPONENTS)
KINDS = ["labelled", "open", "all classes"]


def mixing(kind: str, rows: int = ROWS) -> MixingSettings:
    return MixingSettings(rows, active=1 / 4 if kind == "open" else 1.0, balance=2.0)


def plan(kind: str, *, sigma: float = 0.0, epsilon: float = math.inf, rows: int = ROWS) -> Plan:
    balanced = kind == "all classes"
    settings = TrainingSettings(
        1,
        images_per_patient=CLASSES if balanced else 1,
        clip=2.0,
        estimator="mixed_rows",
        feature_norm=0.9,
        mixing=mixing(kind, rows),
    )
    task = {"name": "classification", "classes": CLASSES, "balanced": balanced}
    nodes = [Held(f"node-{i}", [[]] * size, size, DEGREE, sigma) for i, size in enumerate(SIZES)]
    return plan_for(RunName("head", "federated", Target(epsilon), 0), HEAD, settings, nodes, task=task)


def data(kind: str) -> tuple[LabelledItems, list[list[list[int]]]]:
    """Return features, of which a class is the place of the largest, and whose they are."""
    each = CLASSES if kind == "all classes" else 1
    random = np.random.default_rng(5)
    labels = np.tile(np.arange(CLASSES), sum(SIZES))[: sum(SIZES) * each]
    values = 0.3 * random.standard_normal((len(labels), 1, 1, COMPONENTS, 2))
    values[np.arange(len(labels)), 0, 0, labels, 0] += 1
    inputs = torch.view_as_complex(torch.from_numpy(values).float())
    units = [[each * unit + place for place in range(each)] for unit in range(sum(SIZES))]
    records = LabelledItems(inputs, torch.from_numpy(labels), labels if each > 1 else np.zeros(0, dtype=np.int64))
    return records, [units[: SIZES[0]], units[SIZES[0] :]]


def released(of: Plan, kind: str, folder) -> tuple[torch.Tensor, Assembly, list]:
    """Return the rows of a round, shape (node, row, dimension), with the draws that made them."""
    records, units = data(kind)
    parts = Assembly.of(of, records)
    with Ledger(folder / "ledger.jsonl") as ledger:
        if not ledger.attempts:
            ledger.start(parts.declaration())
        nodes = [Node(parts.mechanism(node.name, 7, ledger), own) for node, own in zip(of.nodes, units, strict=True)]
        draws = [node.mechanism.draw(0) for node in nodes]
        messages, bad = do_round(parts.phase, nodes, records, Outbox(ledger), 0)
    assert bad == 0
    return messages.view(len(nodes), of.training.mixing.rows, -1), parts, draws


def vector(kind: str, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return what a unit contributes, by the formulas: features clipped to norm C, all of norm B at most."""
    bound, share = 2.0, (0.8 if kind == "labelled" else 1.0)  # lambda^2 / (lambda^2 + 1)
    if kind == "all classes":
        norm = 0.9 * (2 * COMPONENTS) ** 0.5
        own = features * (norm / features.abs().square().sum(dim=1, keepdim=True).sqrt().clamp_min(norm))
        flat = torch.view_as_real(own[labels.argsort()]).flatten()
        return flat * bound / (norm * CLASSES**0.5)
    norm = 0.9
    own = features[0] * (norm / features[0].abs().square().sum().sqrt().clamp_min(norm))
    found = torch.view_as_real(own).flatten() * bound * share**0.5 / norm
    if kind == "open":
        return found
    return torch.cat((found, bound * (1 - share) ** 0.5 * torch.eye(CLASSES)[labels[0]]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_the_mean_of_those_drawn_for_it_over_the_degree(kind, tmp_path):
    rows, parts, draws = released(plan(kind), kind, tmp_path)
    records, units = data(kind)
    for place, draw in enumerate(draws):
        expected = torch.zeros_like(rows[place])
        for row, member in zip(draw.rows, draw.members, strict=True):
            own = units[place][member]
            label = records.targets[own]
            if kind == "open" and not parts.phase.schedule[row, label[0]]:
                continue
            expected[row] += vector(kind, records.inputs[own, 0, 0], label)
        torch.testing.assert_close(rows[place], expected / DEGREE, rtol=1e-4, atol=1e-5)


def test_noise_is_calibrated_for_the_rows_of_one_unit():
    of = plan("open", sigma=10.0, epsilon=2)
    sigma = noise_of_plan(of)
    assert 1.9 < composition.epsilon({NoisySum(4 * DEGREE / SIZES[0], sigma): 3}, of.delta) <= 2
    assert noise_of_plan(plan("labelled", sigma=10.0, epsilon=2)) != sigma


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_learns_the_classes_from_rows(kind, tmp_path):
    records, units = data(kind)
    files = RunFiles(tmp_path / "ledger.jsonl", tmp_path / "checkpoint")
    trained = train(LocalHolders(plan(kind, rows=400), records, units), files)
    scores = trained.model(records.inputs)
    assert (scores.argmax(dim=1) == records.targets).float().mean() > 0.9


def test_more_patients_than_a_row_is_open_to_are_refused():
    settings = TrainingSettings(1, estimator="mixed_rows", mixing=MixingSettings(4, active=0.25))
    held = [Held("a", [[0]] * 10, 10, 5.0, 0.0)]
    with pytest.raises(UserError, match="Lower the degree"):
        plan_for(RunName("head", "central", Target(math.inf), 0), HEAD, settings, held)
    with pytest.raises(UserError, match="multiple of 4"):
        MixingSettings(5, active=0.25)
    assert MixingSettings(10, active=0.3).share == Fraction(3, 10)
    assert MixingSettings(12, active=1 / 3).open_rows == 4


def test_rows_that_are_open_to_some_classes_mix_fewer():
    sizes, rows = [50_000], 50_000
    _, (whole,) = mixed_as(1, 1e-5, sizes, rows=rows)
    assert mixed_as(1, 1e-5, sizes, rows=rows, active=0.03)[1] == [pytest.approx(whole * 0.03**0.5)]


def test_a_degree_below_one_is_refused_and_fewer_rows_proposed():
    with pytest.raises(UserError, match=r"50000 rows of 484 patients.*for example 484"):
        mixed_as(1, 1e-5, [484], rows=50_000)
    assert mixed_as(1, 1e-5, [484])[1][0] > 1


@pytest.mark.parametrize("rows", [4, 8])
def test_no_other_node_hides_a_row_that_is_public_by_itself(rows):
    run = declared_run("rows", plan("open", sigma=2.0, epsilon=8, rows=rows).declaration())
    assert seen_by(run, "reader") == seen_by(run, "node") == seen_by(run, "server")
