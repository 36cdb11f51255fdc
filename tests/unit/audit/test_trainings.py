"""Honest code passes, and shows what theory says; each fault is found by the audit that is made for it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import ndtr

import zetadp.audit.trainings
import zetadp.privacy.clipping
from zetadp.audit.detection import Trials, power_of, trials_for_curve
from zetadp.audit.trainings import SIDE_BY_SIDE, Attacker, Audited, audit, error_rates, evidence, threshold_of
from zetadp.base.randomness import Purpose, stream
from zetadp.core.training import train
from zetadp.privacy import accounting
from zetadp.privacy.calibration import noise_for_epsilon
from zetadp.privacy.kinds import NoisySum
from zetadp.privacy.mechanism import NodeMechanism

ONE = Audited("one round")
WHOLE = Audited("whole", noise_for_epsilon(8, 1e-3, 0.9, 4), probability=0.9, rounds=4)
TRIALS = 400


def trials_for(audited: Audited) -> int:
    """Return the trials that detect noise too small by the square root of two."""
    sigma, rounds = audited.noise_multiplier, audited.rounds
    rates = error_rates(audited.probability, sigma, rounds, true_noise=sigma / math.sqrt(2))
    return trials_for_curve({NoisySum(audited.probability, sigma): rounds}, rates)


# Many clipping norms of noise, and so little that the sum of projections alone would show less than is claimed.
@pytest.mark.parametrize(
    ("probability", "sigma", "rounds"),
    [(0.5, 2.0, 6), (1.0, 3.0, 4), (0.1, 1.0, 30), (0.05, 0.5, 200), (1.0, 1.0, 1), (0.5, 1.0, 1)],
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
    trials = trials_for(Audited("large", sigma, probability=probability, rounds=rounds))
    faulty = error_rates(probability, sigma, rounds, true_noise=sigma / math.sqrt(2))
    assert power_of({NoisySum(probability, sigma): rounds}, faulty, trials) > 0.98
    # Hardly any noise is found as well: few draws say more than half of those that are expected.
    assert sum(error_rates(probability, sigma, rounds, true_noise=0.05)) < 0.1


@pytest.mark.parametrize("clip", [0.3, 2.0])
@pytest.mark.parametrize("imaginary", [False, True])
def test_the_canary_is_clipped_and_as_imaginary_as_is_asked(clip, imaginary):
    audited = replace(ONE, clip=clip, imaginary=imaginary)
    gradient = Attacker(audited.plan(Trials(1), 2), audited.canary()).gradient()
    assert np.linalg.norm(gradient) == pytest.approx(100 * clip)
    real, imaginary_part = np.linalg.norm(gradient.reshape(-1, 2) / (100 * clip), axis=0)
    assert imaginary_part > 0.5
    assert real == 0 if imaginary else real > 0.5


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
def test_honest_code_passes_and_the_attack_sees_all_there_is_to_see(tmp_path, audited):
    trials = TRIALS if audited.rounds > 1 else trials_for(ONE)
    plan = audited.plan(Trials(1), 2)
    assert (plan.clip, plan.exact) == (audited.clip, audited.noise == "os")
    result = audit(tmp_path, Trials(trials), audited)
    probability, sigma, rounds = audited.probability, audited.noise_multiplier, audited.rounds
    assert result.mechanisms == {NoisySum(probability, sigma): rounds}
    assert result.claimed == accounting.epsilon(result.mechanisms, 1e-3)
    assert result.passed
    assert result.measured > 0.1 * result.claimed
    # The threshold is where it should be, in whatever units the messages come. Exact noise is another each time.
    expected, many = error_rates(probability, sigma, rounds, true_noise=sigma), 5 if audited.noise == "os" else 4
    found = result.errors.alpha.share, result.errors.beta.share
    assert found == pytest.approx(expected, abs=many * math.sqrt(0.25 / trials))
    assert (result.errors.trials_in, result.errors.trials_out) == (trials, trials)


def inside(centre: float) -> float:
    """Return the chance that a difference of two projections around a centre is smaller than one half."""
    return float(np.diff(ndtr((np.array([-0.5, 0.5]) - centre) / math.sqrt(2)))[0])


@pytest.mark.parametrize(
    ("audited", "rates"),
    [
        (replace(ONE, difference="nodes"), [float(ndtr(-0.5 / math.sqrt(1.5)))] * 2),
        (
            replace(ONE, difference="rounds", probability=0.5, population=2, rounds=2),
            [1 - inside(0), (inside(0) + inside(1)) / 2],
        ),
    ],
    ids=["nodes", "rounds"],
)
def test_differences_of_independent_noise_err_as_theory_says(tmp_path, audited, rates):
    result = audit(tmp_path, Trials(TRIALS), audited)
    assert (result.errors.alpha.share, result.errors.beta.share) == pytest.approx(
        rates, abs=4 * math.sqrt(0.25 / TRIALS)
    )
    assert result.passed


@pytest.mark.parametrize(("difference", "rounds", "nodes"), [("nodes", 1, 3), ("rounds", 2, 1)])
def test_differences_cancel_noise_that_nodes_or_rounds_share(difference, rounds, nodes):
    projections = np.zeros((rounds, 50, nodes)) + np.random.default_rng(0).standard_normal((50, 1))
    projections[0, ::2, 0] += 1
    assert replace(ONE, difference=difference).scores(projections) == pytest.approx([1, 0] * 25)


def test_the_attacker_ends_at_the_weights_of_the_trained_model(tmp_path, monkeypatch):
    seen = []

    def watched(*given, after_round, **rest):
        seen.append((after_round.__self__, train(*given, after_round=after_round, **rest).model))

    monkeypatch.setattr(zetadp.audit.trainings, "train", watched)
    audit(tmp_path, Trials(2), replace(WHOLE, clip=0.02))
    ((attacker, model),) = seen
    torch.testing.assert_close(attacker.server.weights.data, attacker.layout.flatten(dict(model.named_parameters())))


def test_trials_are_independent_and_repeatable(tmp_path):
    results = []
    for place, seed in enumerate((5, 5, 6)):
        (tmp_path / str(place)).mkdir()
        results.append(audit(tmp_path / str(place), Trials(SIDE_BY_SIDE, seed), ONE).errors)
    assert results[0] == results[1] != results[2]
    both = [audited.plan(Trials(9, 5), 2, part).run.seed for audited in (ONE,) for part in (0, 1)]
    assert len(set(both)) == 2


def with_noise(monkeypatch, noise) -> None:
    """Replace the shipped noise by a function of the right one, in units of the clip, and of its event."""

    def privatised(self, event, clipped_sum, again):
        right = stream(self.seed, Purpose.NOISE, self.place, event.round, again).standard_normal(len(clipped_sum))
        drawn = np.array(noise(right, event), np.float32) * np.float32(event.noise_multiplier * event.clip)
        return (clipped_sum + torch.from_numpy(drawn)) / event.expected

    monkeypatch.setattr(NodeMechanism, "_privatised", privatised)


def test_half_the_variance_of_a_whole_run_and_noise_divided_twice_are_found(tmp_path, monkeypatch):
    with_noise(monkeypatch, lambda right, event: right / math.sqrt(2))
    assert not audit(tmp_path / "half", Trials(trials_for(WHOLE)), WHOLE).passed
    with_noise(monkeypatch, lambda right, event: right / event.expected)
    assert not audit(tmp_path / "twice", Trials(100), replace(ONE, population=3)).passed


def test_a_gradient_that_is_not_clipped_is_found(tmp_path, monkeypatch):
    def all_as_they_are(gradients, bound):
        finite = torch.isfinite(sum(g.sum(dim=1) for g in gradients))
        return finite.float(), finite

    monkeypatch.setattr(zetadp.privacy.clipping, "clip_factors", all_as_they_are)
    assert not audit(tmp_path, Trials(100), ONE).passed


def test_more_rounds_than_the_ledger_says_are_found(tmp_path, monkeypatch):
    """The claim comes from the ledger: where rounds are not recorded, more is shown than claimed."""
    real = zetadp.audit.trainings.read_ledger

    def only_the_first(path):
        attempts = real(path)
        for attempt in attempts:
            attempt.events = [event for event in attempt.events if event.round == 0]
        return attempts

    monkeypatch.setattr(zetadp.audit.trainings, "read_ledger", only_the_first)
    result = audit(tmp_path, Trials(TRIALS), WHOLE)
    assert result.claimed < 8 / 2
    assert not result.passed


def test_a_canary_that_does_not_reach_the_clip_is_an_error_and_no_result(tmp_path, monkeypatch):
    monkeypatch.setattr(zetadp.audit.trainings, "EXCESS", 0.5)
    with pytest.raises(ValueError, match="reaches the clipping norm"):
        audit(tmp_path, Trials(2), WHOLE)
