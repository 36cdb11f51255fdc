from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from zetadp.audit.one_run import audit_one_run, mu_of_guesses
from zetadp.privacy.mechanism import SampledGaussian
from zetadp.randomness import Purpose, stream


@pytest.mark.parametrize(("canaries", "guesses"), [(40, 40), (200, 100), (200, 20)])
@pytest.mark.parametrize("mu", [0.3, 1.0, 2.0])
def test_the_bound_is_too_high_no_more_often_than_stated(canaries, guesses, mu):
    """At error 0.2, 400 games: no more than 20 % and four standard deviations say more than mu."""
    random, games, error = np.random.default_rng(0), 400, 0.2
    bounds: dict[int, float] = {}
    above = 0
    for _ in range(games):
        member = random.random(canaries) < 0.5
        seen = random.standard_normal(canaries) + mu * member - mu / 2
        chosen = np.argsort(-np.abs(seen))[:guesses]
        right = int(((seen > 0) == member)[chosen].sum())
        if right not in bounds:
            bounds[right] = mu_of_guesses(canaries, guesses, right, error)
        above += bounds[right] > mu
    assert above <= error * games + 4 * math.sqrt(games * error * (1 - error))


def test_one_canary_and_one_right_guess_refute_as_much_as_a_single_test_can():
    """A single guess is right with probability at most Phi(mu / 2), so that error 0.8 refutes up to 2 Phi^-1(0.8)."""
    from scipy.special import ndtri

    assert mu_of_guesses(1, 1, 1, 0.8) == pytest.approx(2 * ndtri(0.8), abs=1e-4)
    assert mu_of_guesses(1, 1, 1, 0.4) == 0


def test_the_bound_grows_with_right_guesses_and_shrinks_with_certainty():
    bounds = [mu_of_guesses(200, 100, right, 1e-3) for right in (50, 70, 80, 90, 100)]
    assert bounds[0] == 0
    assert bounds == sorted(bounds)
    assert bounds[-1] > bounds[-2] > 0
    assert mu_of_guesses(200, 100, 90, 1e-2) > bounds[3]


@pytest.mark.parametrize("how", [{}, {"clip": 2.0, "noise_multiplier": 0.5}, {"noise": "os", "size": 12}], ids=str)
def test_honest_code_passes(tmp_path, how):
    result = audit_one_run(tmp_path, **how)
    assert result.claimed == 1 / how.get("noise_multiplier", 1.0)
    assert result.passed
    assert result.estimate == pytest.approx(result.claimed, rel=0.4)
    assert result.trials_in + result.trials_out == how.get("size", 32) ** 2


@pytest.mark.parametrize("bare", [0, 1], ids=["real", "imaginary"])
def test_a_part_without_noise_is_found_in_one_run(tmp_path, monkeypatch, bare):
    def privatised(self, event, clipped_sum, again):
        noise = stream(self.seed, Purpose.NOISE, self.place, event.round, again).standard_normal(len(clipped_sum))
        noise[bare::2] = 0
        return (clipped_sum + torch.from_numpy(noise.astype(np.float32)) * self.clip) / self.expected

    monkeypatch.setattr(SampledGaussian, "_privatised", privatised)
    result = audit_one_run(tmp_path)
    assert not result.passed
    assert result.measured > 1.2
