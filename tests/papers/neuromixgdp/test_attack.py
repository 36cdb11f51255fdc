"""The attack refutes what the paper claims of Hierarchical Sampling, and stays within the safe rule."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtri

from papers.neuromixgdp.attack import HierarchicalAttack
from papers.neuromixgdp.printed import PrintedRelease
from zetadp.accounting import composition
from zetadp.accounting.kinds import NoisySum

MU = 0.5
RELEASES = 500


def attack(class_rate: float) -> HierarchicalAttack:
    sizes = PrintedRelease(records=2000, mixed=40, rounds=2000, class_rate=class_rate)
    return HierarchicalAttack(sizes, sizes.nominal_noise(MU), others=100)


def printed(tried: HierarchicalAttack) -> dict[NoisySum, int]:
    """Return the rounds that the paper accounts for: all rows at the marginal rate (Proposition E.3)."""
    return {NoisySum(tried.release.marginal_rate, tried.noise_multiplier): tried.release.rounds}


def test_the_claim_is_refuted_and_the_safe_rule_is_not():
    """All limits are Clopper-Pearson's and hold together with a false alarm of one in a thousand."""
    tried = attack(0.05)
    errors, sizes, noise = tried.errors(RELEASES), tried.release, tried.noise_multiplier
    (claimed,) = composition.trade_off(printed(tried), [errors.alpha.upper])
    assert errors.beta.upper < claimed, "fewer misses than the proposition allows, without any central limit"
    shown = ndtri(1 - errors.alpha.upper) - ndtri(errors.beta.upper)  # of a Gaussian mechanism
    assert shown > MU
    (safe,) = composition.trade_off(sizes.mechanisms(noise), [errors.alpha.upper])
    assert errors.beta.upper >= safe
    # The safe rule is not far above what this attack reaches.
    assert 0.6 * sizes.safe_mu(noise) < shown <= sizes.safe_mu(noise)


def test_without_classes_the_claim_stands():
    tried = attack(1.0)
    errors = tried.errors(RELEASES)
    (claimed,) = composition.trade_off(printed(tried), [errors.alpha.upper])
    assert errors.beta.upper >= claimed
    assert errors.alpha.upper + errors.beta.upper < 1.15, "the attack is none that finds nothing"


@pytest.mark.parametrize("class_rate", [0.05, 0.5, 1.0])
def test_scores_are_logarithms_of_likelihood_ratios(class_rate):
    """The mean ratio is one without the target; with it, the mean inverse ratio is."""
    sizes = PrintedRelease(records=2000, mixed=40, rounds=60, class_rate=class_rate)
    tried = HierarchicalAttack(sizes, 1.2, others=100)
    for present in (False, True):
        ratios = np.exp((-1 if present else 1) * tried.scores(4000, 1, present=present))
        assert abs(ratios.mean() - 1) < 4 * ratios.std() / np.sqrt(len(ratios))
