"""Honest code passes; each fault is found by the audit that is made for it, and by the stated number of trials."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from zetadp.audit.detection import Trials, trials_for_curve
from zetadp.audit.one_round import Audited, audit_one_round, one_round_rates
from zetadp.base.randomness import Purpose, stream
from zetadp.privacy import accounting
from zetadp.privacy.kinds import NoisySum
from zetadp.privacy.mechanism import NodeMechanism

TRIALS = trials_for_curve({NoisySum(1.0, 1.0): 1}, one_round_rates(1.0, math.sqrt(0.5)))


def faulty(monkeypatch, noise) -> None:
    """Replace the noise of the shipped mechanism: ``noise(mechanism, event, again, size)``, in units of the clip."""

    def privatised(self, event, clipped_sum, again):
        drawn = np.array(noise(self, event, again, len(clipped_sum)), dtype=np.float32)
        drawn *= np.float32(event.noise_multiplier * event.clip)
        return (clipped_sum + torch.from_numpy(drawn)) / event.expected

    monkeypatch.setattr(NodeMechanism, "_privatised", privatised)


def drawn(mechanism, event, again, size, *, place=None, number=None) -> np.ndarray:
    place = mechanism.place if place is None else place
    number = event.round if number is None else number
    return stream(mechanism.seed, Purpose.NOISE, place, number, again).standard_normal(size)


@pytest.mark.parametrize(
    ("direction", "audited"),
    [
        ("general", Audited()),
        ("imaginary", Audited(clip=2.0)),
        ("general", Audited(clip=2.0, population=3)),
        ("general", Audited(0.5)),
        ("general", Audited(noise="os")),
    ],
    ids=str,
)
def test_honest_code_passes_and_the_attack_sees_all_there_is_to_see(tmp_path, direction, audited):
    result = audit_one_round(tmp_path, Trials(TRIALS), audited, direction=direction)
    assert result.claimed == 1 / audited.noise_multiplier
    assert result.passed
    # Standard errors of the estimate, at mu 1 and 2. Exact noise is another each time.
    error, many = 0.06 if result.claimed == 1 else 0.07, 5 if audited.noise == "os" else 4
    assert result.estimate == pytest.approx(result.claimed, abs=many * error)
    # The threshold is half way, in whatever units the messages come.
    assert result.errors.alpha.share == pytest.approx(result.errors.beta.share, abs=many * math.sqrt(0.5 / TRIALS))
    assert (result.errors.trials_in, result.errors.trials_out) == (TRIALS, TRIALS)


def test_honest_sampling_passes_and_is_judged_by_its_own_curve(tmp_path):
    result = audit_one_round(tmp_path, Trials(TRIALS), Audited(probability=0.5, population=2))
    assert result.claimed == accounting.epsilon({NoisySum(0.5, 1.0): 1}, 1e-3)
    assert result.mechanisms == {NoisySum(0.5, 1.0): 1}
    assert 0.4 * result.claimed < result.measured < result.claimed
    expected = one_round_rates(0.5, 1.0)
    assert (result.errors.alpha.share, result.errors.beta.share) == pytest.approx(
        expected, abs=4 * math.sqrt(0.25 / TRIALS)
    )


@pytest.mark.parametrize(
    ("how", "mu"),
    [({"view": "nodes", "nodes": 3}, math.sqrt(2 / 3)), ({"view": "rounds"}, math.sqrt(1 / 2))],
    ids=["nodes", "rounds"],
)
def test_differences_of_independent_noise_show_less_than_the_claim(tmp_path, how, mu):
    result = audit_one_round(tmp_path, Trials(TRIALS), **how)
    assert result.passed
    assert result.estimate == pytest.approx(mu, abs=0.25)


def test_noise_that_is_divided_twice_is_found_where_the_divisor_is_not_one(tmp_path, monkeypatch):
    faulty(monkeypatch, lambda mechanism, *rest: drawn(mechanism, *rest) / mechanism.event.expected)
    assert not audit_one_round(tmp_path, Trials(100), Audited(population=3)).passed


def test_a_gradient_that_is_not_clipped_is_found(tmp_path, monkeypatch):
    import zetadp.privacy.clipping

    def all_as_they_are(gradients, bound):
        finite = torch.isfinite(sum(g.sum(dim=1) for g in gradients))
        return finite.float(), finite

    monkeypatch.setattr(zetadp.privacy.clipping, "clip_factors", all_as_they_are)
    assert not audit_one_round(tmp_path, Trials(100)).passed


def test_trials_with_and_without_the_canary_are_independent_and_repeatable(tmp_path):
    results = []
    for place, seed in enumerate((5, 5, 6)):
        (tmp_path / str(place)).mkdir()
        results.append(audit_one_round(tmp_path / str(place), Trials(200, seed)).errors)
    assert results[0] == results[1] != results[2]


@pytest.mark.parametrize("wrong", [{"view": "sideways"}, {"view": "nodes"}], ids=str)
def test_what_cannot_be_audited_is_refused(tmp_path, wrong):
    with pytest.raises(ValueError, match="Expected"):
        audit_one_round(tmp_path, Trials(10), **wrong)


def test_noise_of_no_source_is_refused():
    with pytest.raises(ValueError, match="Expected"):
        Audited(noise="pink")
