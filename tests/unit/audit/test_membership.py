from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import training_builder as builder
from scipy.stats import norm
from training_builder import by_record, of_record

from zetadp.accounting import composition
from zetadp.accounting.kinds import NoisySum
from zetadp.audit import membership, trainings
from zetadp.audit.membership import (
    Models,
    arms,
    audit_membership,
    likelihood_ratios,
    most_exposed,
    refutation,
    train_models,
)
from zetadp.audit.settings import MembershipSettings
from zetadp.base.randomness import Purpose, stream
from zetadp.base.validation import UserError
from zetadp.mechanism.release import NodeMechanism
from zetadp.nn.models import NetworkSettings, build
from zetadp.training.loop import train
from zetadp.training.plan import Plan

DELTA = 1e-3
LINEAR = NetworkSettings("linear")
SMALL = MembershipSettings(epsilon=4, patients=4, rounds=5, shadows=40, trainings=390)
RECORDS = builder.records(SMALL.patients)
PRIVATE, CLIPPED, OPEN = arms(SMALL, LINEAR, RECORDS, DELTA).values()
EVERYBODY = np.ones((1, 4), dtype=bool)


def always(plan: Plan) -> Plan:
    """Return a plan of three rounds in which everybody takes part in each."""
    nodes = tuple(replace(node, expected=node.population) for node in plan.nodes)
    return replace(plan, nodes=nodes, training=replace(plan.training, rounds=3))


@pytest.fixture(scope="module")
def audit():
    results, claims = audit_membership(SMALL, LINEAR, RECORDS, DELTA)
    return dict(zip(("private", "clipped", "open"), results, strict=True)), claims, results


def test_private_models_stay_in_the_region_and_overfitted_unclipped_ones_leave_it(audit):
    by_arm, claims, results = audit
    assert not by_arm["private"].leaves("reader")
    assert not by_arm["private"].leaves("server")
    assert by_arm["open"].leaves("server")
    assert by_arm["clipped"].leaves("reader")
    assert refutation(results, claims, Path("table.csv")) is None


def test_the_private_arm_is_attacked_in_earnest(audit):
    # An attack that only guessed would stay inside whatever the code did.
    private = audit[0]["private"]
    values = np.concatenate([private.scores_out, private.scores_in])
    ranks = values.argsort().argsort()[len(private.scores_out) :] + 1
    count = len(private.scores_in)
    wins = (ranks.sum() - count * (count + 1) / 2) / (count * len(private.scores_out))
    # The area under the curve, against two deviations of a guess.
    others = len(private.scores_out)
    assert wins > 0.5 + 2 * ((count + others + 1) / (12 * count * others)) ** 0.5


def test_claims_are_what_the_ledgers_recorded(audit):
    claims = audit[1]
    sigma = PRIVATE.nodes[0].noise_multiplier
    assert dict(claims["server"].mechanisms) == {NoisySum(0.5, sigma): SMALL.rounds}
    # The reader has both nodes' noise against it.
    (kind,) = claims["reader"].mechanisms
    assert (kind.sampling_probability, kind.noise_multiplier) == (0.5, pytest.approx(sigma * 2**0.5))
    assert claims["server"].epsilon == pytest.approx(SMALL.epsilon, rel=1e-3)
    assert claims["server"].epsilon <= SMALL.epsilon
    assert claims["reader"].epsilon == composition.epsilon(claims["reader"].mechanisms, DELTA)


def test_noise_that_is_recorded_and_not_added_is_found(audit, monkeypatch):
    def without(self, event, clipped_sum, again):
        return clipped_sum / self.event.expected

    monkeypatch.setattr(NodeMechanism, "_privatised", without)
    monkeypatch.setattr(membership, "arms", lambda *_: {"private": PRIVATE})
    (private,), claims = audit_membership(SMALL, LINEAR, RECORDS, DELTA)
    assert private.leaves("reader")
    assert dict(claims["server"].mechanisms) == dict(audit[1]["server"].mechanisms)
    assert "refutes the privacy claim" in refutation([private, *audit[2][1:]], claims, Path("table.csv"))


def test_a_patient_that_is_out_leaves_no_trace_and_the_constants_alone():
    # Without draws: seeded ones differ with the data.
    full, out = always(CLIPPED), np.array([[True, False, True, True]])
    models = train_models("clipped", full, RECORDS, out)
    changed = replace(RECORDS, inputs=RECORDS.inputs.clone())
    by_record(changed)[1] = 7 * by_record(changed)[0].flip(0)
    again = train_models("clipped", full, changed, out)
    others = [0, 2, 3]
    assert (models.confidence[:, others] == again.confidence[:, others]).all()
    # Of one who is in, there is a trace.
    inside = train_models("clipped", full, changed, EVERYBODY)
    assert (inside.confidence[:, others] != again.confidence[:, others]).any()
    for history in models.exposure.nodes.values():
        assert (history.population, history.expected, history.rounds) == (2, 2.0, 3)


def test_a_training_of_nobody_stays_where_it_starts(monkeypatch):
    results = []
    monkeypatch.setattr(
        trainings, "train", lambda *given, **named: results.append(train(*given, **named)) or results[-1]
    )
    models = train_models("open", always(OPEN), RECORDS, ~EVERYBODY)
    start = build(LINEAR, builder.CLASSES, builder.SIZE, stream(SMALL.seed, Purpose.WEIGHTS))
    assert models.confidence[0] == pytest.approx(membership._measure(start, RECORDS, builder.CLASSES)[0], rel=1e-6)
    # By the rule for gradients that are not finite, not because the gradient of an empty image happens to be zero.
    assert results[0].not_finite == 4 * 3


def test_trainings_share_the_start_and_no_draw():
    members = np.ones((3, 4), dtype=bool)
    private = train_models("private", PRIVATE, RECORDS, members)
    assert len(np.unique(private.confidence[:, 0])) == 3
    # All patients in every round and no noise: then nothing is left to differ.
    same = train_models("clipped", always(CLIPPED), RECORDS, members)
    assert same.confidence[:, 0] == pytest.approx(same.confidence[0, 0], rel=1e-5)


def test_confidence_is_the_mean_log_odds_of_the_true_class():
    network = builder.NETWORKS["complex pooled"]
    model = builder.network(network)
    confidence, accuracy = membership._measure(model, RECORDS, builder.CLASSES)
    with torch.no_grad():
        probabilities = model(of_record(RECORDS, 2)[0]).double().softmax(dim=1)
    labels = of_record(RECORDS, 2)[1]
    true = probabilities[torch.arange(len(labels)), labels]
    assert confidence[2] == pytest.approx(float((true / (1 - true)).log().mean()), rel=1e-4)
    assert accuracy[2] == pytest.approx(float((probabilities.argmax(dim=1) == labels).double().mean()))


def test_scores_are_log_likelihood_ratios_of_the_shadow_models():
    random = np.random.default_rng(0)
    members = random.random((4000, 2)) < 0.5
    confidence = np.where(members, random.normal(1.0, 0.5, members.shape), random.normal(-1.0, 2.0, members.shape))
    # The second patient is harder to tell.
    confidence[:, 1] = random.normal(size=4000) + 0.1 * members[:, 1]
    shadow = Models(members, confidence, confidence, exposure=None)
    points = np.array([-3.0, 0.0, 1.0, 4.0])
    exact = norm.logpdf(points, 1.0, 0.5) - norm.logpdf(points, -1.0, 2.0)
    assert likelihood_ratios(shadow, points, 0) == pytest.approx(exact, rel=0.1, abs=0.15)
    assert most_exposed(shadow) == 0


def test_too_few_shadow_models_of_a_kind_are_a_mistake_of_the_user():
    members = np.zeros((20, 1), dtype=bool)
    shadow = Models(members, np.zeros((20, 1)), np.zeros((20, 1)), exposure=None)
    with pytest.raises(UserError, match=r"audit\.membership\.shadows"):
        most_exposed(shadow)


def test_models_that_diverge_are_named(monkeypatch):
    monkeypatch.setattr(membership, "_measure", lambda *_: (np.full(4, np.nan), np.zeros(4)))
    with pytest.raises(UserError, match=r"audit\.membership\.learning_rate"):
        train_models("open", OPEN, RECORDS, EVERYBODY)
