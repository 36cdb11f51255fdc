"""Honest code passes, and shows what theory says; each fault is found by the audit that is made for it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import zetadp.audit.trainings
import zetadp.mechanism.clipping
from zetadp.accounting import composition
from zetadp.accounting.calibration import noise_for_epsilon
from zetadp.audit.detection import power_of, trials_for_curve
from zetadp.audit.trainings import SIDE_BY_SIDE, Audited, audit
from zetadp.base.randomness import Purpose, stream
from zetadp.mechanism.release import NodeMechanism
from zetadp.training.loop import train

ONE = Audited("one round")
WHOLE = Audited("whole", noise_for_epsilon(8, 1e-3, 0.9, 4), probability=0.9, rounds=4, trials=400)


def trials_for(audited: Audited) -> int:
    """Return the trials that detect noise too small by the square root of two."""
    return trials_for_curve(audited.mechanisms, audited.error_rates(audited.noise_multiplier / math.sqrt(2)))


# Many clipping norms of noise, and so little that the sum of projections alone would show less than is claimed.
@pytest.mark.parametrize(
    ("probability", "sigma", "rounds"),
    [(0.5, 2.0, 6), (1.0, 3.0, 4), (0.1, 1.0, 30), (0.05, 0.5, 200), (1.0, 1.0, 1), (0.5, 1.0, 1)],
)
@pytest.mark.parametrize("of_the_noise", [1.0, math.sqrt(0.5)])
def test_error_rates_are_those_of_the_attack(probability, sigma, rounds, of_the_noise):
    random, trials = np.random.default_rng(0), 20_000
    audited = Audited("any", sigma, probability=probability, rounds=rounds)
    projections = sigma * of_the_noise * random.standard_normal((2, trials, rounds))
    projections[1] += random.random((trials, rounds)) < probability
    sums = audited.evidence(projections).sum(axis=2)
    found = (sums[0] > audited.threshold).mean(), (sums[1] <= audited.threshold).mean()
    assert found == pytest.approx(audited.error_rates(sigma * of_the_noise), abs=4 * math.sqrt(0.25 / trials))


def test_evidence_of_much_noise_or_of_everybody_is_the_projection():
    projections = np.linspace(-100, 100, 7)
    assert Audited("all", 0.7).evidence(projections) == pytest.approx(projections)
    assert Audited("much", 1e4, probability=0.3).evidence(projections) == pytest.approx(projections, rel=1e-3)


@pytest.mark.parametrize(("probability", "sigma", "rounds"), [(0.01, 0.778, 1000), (0.01, 0.5, 1000), (1.0, 70.0, 100)])
def test_the_attack_can_refute_half_the_variance_of_large_plans(probability, sigma, rounds):
    audited = Audited("large", sigma, probability=probability, rounds=rounds)
    faulty = audited.error_rates(sigma / math.sqrt(2))
    assert power_of(audited.mechanisms, faulty, trials_for(audited)) > 0.98
    # Hardly any noise is found as well: few draws say more than half of those that are expected.
    assert sum(audited.error_rates(0.05)) < 0.1


@pytest.mark.parametrize(
    "audited",
    [
        ONE,
        replace(ONE, clip=2.0, imaginary=True),
        replace(ONE, clip=2.0, population=3),
        replace(ONE, noise="os"),
        replace(ONE, probability=0.5, population=2),
        replace(WHOLE, clip=2.0, population=2),
    ],
    ids=str,
)
def test_honest_code_passes_and_the_attack_sees_all_there_is_to_see(audited):
    trials = audited.trials if audited.rounds > 1 else trials_for(ONE)
    plan = audited.plan(2)
    assert (plan.clip, plan.protects_people) == (audited.clip, audited.noise == "os")
    result = audit(replace(audited, trials=trials))
    assert result.claim.mechanisms == audited.mechanisms
    assert result.claim.epsilon == composition.epsilon(audited.mechanisms, 1e-3)
    assert result.passed
    assert result.measured > 0.1 * result.claim.epsilon
    # The threshold is where it should be, in whatever units the messages come. Exact noise is another each time.
    expected, many = audited.error_rates(audited.noise_multiplier), 5 if audited.noise == "os" else 4
    found = result.errors.alpha.share, result.errors.beta.share
    assert found == pytest.approx(expected, abs=many * math.sqrt(0.25 / trials))
    assert (result.errors.trials_in, result.errors.trials_out) == (trials, trials)


def test_the_attacker_ends_at_the_weights_of_the_trained_model(monkeypatch):
    seen = []

    def watched(*given, after_round, **rest):
        seen.append((after_round.__self__, train(*given, after_round=after_round, **rest).model))

    monkeypatch.setattr(zetadp.audit.trainings, "train", watched)
    audit(replace(WHOLE, clip=0.02, trials=2))
    ((attacker, model),) = seen
    torch.testing.assert_close(attacker.server.weights.data, attacker.layout.flatten(dict(model.named_parameters())))


def test_trials_are_independent_and_repeatable():
    results = [audit(replace(ONE, trials=SIDE_BY_SIDE, seed=seed)).errors for seed in (5, 5, 6)]
    assert results[0] == results[1] != results[2]
    assert ONE.plan(2, 0).run.seed != ONE.plan(2, 1).run.seed


def with_noise(monkeypatch, noise) -> None:
    """Replace the shipped noise by a function of the right one, in units of the clip, and of its event."""

    def privatised(self, event, clipped_sum, again):
        right = stream(self.seed, Purpose.NOISE, self.node_index, event.round, again).standard_normal(len(clipped_sum))
        drawn = np.array(noise(right, event), np.float32) * np.float32(event.noise_multiplier * event.clip)
        return (clipped_sum + torch.from_numpy(drawn)) / event.expected

    monkeypatch.setattr(NodeMechanism, "_privatised", privatised)


def test_half_the_variance_of_a_whole_run_and_noise_divided_twice_are_found(monkeypatch):
    with_noise(monkeypatch, lambda right, event: right / math.sqrt(2))
    assert not audit(replace(WHOLE, trials=trials_for(WHOLE))).passed
    with_noise(monkeypatch, lambda right, event: right / event.expected)
    assert not audit(replace(ONE, population=3, trials=100)).passed


def test_a_gradient_that_is_not_clipped_is_found(monkeypatch):
    def all_as_they_are(gradients, bound):
        finite = torch.isfinite(sum(g.sum(dim=1) for g in gradients))
        return finite.float(), finite

    monkeypatch.setattr(zetadp.mechanism.clipping, "clip_factors", all_as_they_are)
    assert not audit(replace(ONE, trials=100)).passed


def test_more_rounds_than_the_ledger_says_are_found(monkeypatch):
    """The claim comes from the ledger: where rounds are not recorded, more is shown than claimed."""
    real = zetadp.audit.trainings.read_ledger

    def only_the_first(path):
        attempts = real(path)
        for attempt in attempts:
            attempt.events = [event for event in attempt.events if event.round == 0]
        return attempts

    monkeypatch.setattr(zetadp.audit.trainings, "read_ledger", only_the_first)
    result = audit(WHOLE)
    assert result.claim.epsilon < 8 / 2
    assert not result.passed


def test_a_canary_that_does_not_reach_the_clip_is_an_error_and_no_result(monkeypatch):
    monkeypatch.setattr(zetadp.audit.trainings, "EXCESS", 0.5)
    with pytest.raises(ValueError, match="reaches the clipping norm"):
        audit(replace(WHOLE, trials=2))
