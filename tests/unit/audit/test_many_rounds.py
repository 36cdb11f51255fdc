"""Whole trainings by the shipped code: honest ones pass, faulty ones are found."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import zetadp.core.training
from zetadp.audit.detection import Trials, power_of, trials_for_curve
from zetadp.audit.many_rounds import audit_training, error_rates, evidence, threshold_of
from zetadp.audit.one_round import Audited
from zetadp.privacy import accounting
from zetadp.privacy.calibration import noise_for_epsilon
from zetadp.privacy.kinds import NoisySum

PROBABILITY, ROUNDS = 0.9, 4
SIGMA = noise_for_epsilon(8, 1e-3, PROBABILITY, ROUNDS)
TRIALS = 400
AUDITED = Audited(SIGMA, probability=PROBABILITY)


def trials_for(probability: float, sigma: float, rounds: int) -> int:
    """Return the trials that detect noise too small by the square root of two."""
    rates = error_rates(probability, sigma, rounds, true_noise=sigma / math.sqrt(2))
    return trials_for_curve({NoisySum(probability, sigma): rounds}, rates)


# Many clipping norms of noise, and so little that the sum of projections alone would show less than is claimed.
@pytest.mark.parametrize(
    ("probability", "sigma", "rounds"), [(0.5, 2.0, 6), (1.0, 3.0, 4), (0.1, 1.0, 30), (0.05, 0.5, 200)]
)
@pytest.mark.parametrize("of_the_noise", [1.0, math.sqrt(0.5)])
def test_error_rates_are_those_of_the_attack(probability, sigma, rounds, of_the_noise):
    random, trials = np.random.default_rng(0), 20_000
    projections = sigma * of_the_noise * random.standard_normal((2, trials, rounds))
    projections[1] += random.random((trials, rounds)) < probability
    sums = evidence(projections, probability, sigma).sum(axis=2)
    threshold = threshold_of(probability, sigma, rounds)
    found = (sums[0] > threshold).mean(), (sums[1] <= threshold).mean()
    expected = error_rates(probability, sigma, rounds, true_noise=sigma * of_the_noise)
    assert found == pytest.approx(expected, abs=4 * math.sqrt(0.25 / trials))


def test_evidence_of_much_noise_or_of_everybody_is_the_projection():
    projections = np.linspace(-100, 100, 7)
    assert evidence(projections, 1.0, 0.7) == pytest.approx(projections)
    assert evidence(projections, 0.3, 1e4) == pytest.approx(projections, rel=1e-3)


@pytest.mark.parametrize(("probability", "sigma", "rounds"), [(0.01, 0.778, 1000), (0.01, 0.5, 1000), (1.0, 70.0, 100)])
def test_the_attack_can_refute_half_the_variance_of_large_plans(probability, sigma, rounds):
    trials = trials_for(probability, sigma, rounds)
    faulty = error_rates(probability, sigma, rounds, true_noise=sigma / math.sqrt(2))
    assert power_of({NoisySum(probability, sigma): rounds}, faulty, trials) > 0.98
    # Hardly any noise is found as well: few draws say more than half of those that are expected.
    assert sum(error_rates(probability, sigma, rounds, true_noise=0.05)) < 0.1


def test_honest_training_passes_and_shows_most_of_what_the_ledger_claims(tmp_path):
    result = audit_training(tmp_path, Trials(TRIALS), replace(AUDITED, clip=2.0, population=2), rounds=ROUNDS)
    assert result.mechanisms == {NoisySum(PROBABILITY, SIGMA): ROUNDS}
    assert result.claimed == pytest.approx(accounting.epsilon(result.mechanisms, 1e-3))
    assert (result.errors.trials_in, result.errors.trials_out) == (TRIALS, TRIALS)
    assert result.passed
    assert result.measured > 2.0
    expected = error_rates(PROBABILITY, SIGMA, ROUNDS, true_noise=SIGMA)
    found = result.errors.alpha.share, result.errors.beta.share
    assert found == pytest.approx(expected, abs=4 * math.sqrt(0.25 / TRIALS))


def test_the_attacker_ends_at_the_weights_of_the_trained_model(tmp_path, monkeypatch):
    seen = []

    def watched(*given, after_round, **rest):
        trained = zetadp.core.training.train(*given, after_round=after_round, **rest)
        seen.append((after_round.__self__, trained.model))
        return trained

    monkeypatch.setattr("zetadp.audit.many_rounds.train", watched)
    audit_training(tmp_path, Trials(2), replace(AUDITED, clip=0.02), rounds=ROUNDS)
    ((attacker, model),) = seen
    torch.testing.assert_close(attacker.server.weights.data, attacker.layout.flatten(dict(model.named_parameters())))


def test_half_the_variance_is_found(tmp_path, faulty):
    faulty(lambda right, event: right / math.sqrt(2))
    result = audit_training(tmp_path, Trials(trials_for(PROBABILITY, SIGMA, ROUNDS)), AUDITED, rounds=ROUNDS)
    assert not result.passed


def test_more_rounds_than_the_ledger_says_are_found(tmp_path, monkeypatch):
    """The claim comes from the ledger: where rounds are not recorded, more is shown than claimed."""
    import zetadp.privacy.ledger

    real = zetadp.privacy.ledger.read_ledger

    def only_the_first(path):
        attempts = real(path)
        for attempt in attempts:
            attempt.events = [event for event in attempt.events if event.round == 0]
        return attempts

    monkeypatch.setattr("zetadp.audit.many_rounds.read_ledger", only_the_first)
    result = audit_training(tmp_path, Trials(TRIALS), AUDITED, rounds=ROUNDS)
    assert result.claimed < 8 / 2
    assert not result.passed


def test_a_canary_that_does_not_reach_the_clip_is_an_error_and_no_result(tmp_path):
    with pytest.raises(ValueError, match="reaches the clipping norm"):
        audit_training(tmp_path, Trials(2), replace(AUDITED, clip=1e4), rounds=ROUNDS)
