from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import beta, norm

from zetadp.accounting import composition
from zetadp.accounting.kinds import NoisySum
from zetadp.audit.detection import Claim
from zetadp.audit.membership import RATES, Attack, roc_band
from zetadp.report.attackfigure import LEAST_RATE, membership_roc

FULL = {NoisySum(1.0, 2.0): 4}  # mu = 1


def normals(count: int, mu: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return scores of the best attack on a mu-GDP mechanism."""
    random = np.random.default_rng(seed)
    return random.standard_normal(count), mu + random.standard_normal(count)


def test_what_was_measured_is_the_rate_of_each_kind_above_the_threshold():
    outs, ins = np.arange(100.0), np.arange(100.0) + 40.5
    band = roc_band(outs, ins, arms=1, rates=(0.29, 0.5))
    assert band["fpr"].tolist() == [0.29, 0.5]
    # Thresholds 70 and 49; scores with the patient run from 40.5 to 139.5.
    assert band["tpr"].tolist() == [0.7, 0.91]
    assert (band["lower"] < band["tpr"]).all()
    assert (band["tpr"] < band["upper"]).all()
    assert (band["fpr"] < band["fpr_upper"]).all()


def test_equal_scores_raise_no_alarm():
    band = roc_band(np.ones(50), np.ones(50), arms=1)
    assert (band["tpr"] == 0).all()


@pytest.mark.parametrize("scores", [([], [1.0]), ([1.0], []), ([math.nan], [1.0]), ([0.0], [math.inf])])
def test_scores_that_cannot_be_judged_are_refused(scores):
    with pytest.raises(ValueError, match="finite scores"):
        roc_band(*map(np.array, scores), arms=1)


def test_each_limit_is_wrong_as_often_as_its_share_of_the_false_alarm():
    # One point and one arm: half the false alarm for each axis. The threshold is an order statistic of the trials
    # themselves, and the limit must allow for that.
    false_alarm, repeats, count, mu = 0.2, 2000, 80, 1.0
    wrong = {"fpr": 0, "tpr": 0}
    for seed in range(repeats):
        outs, ins = normals(count, mu, seed)
        band = roc_band(outs, ins, arms=1, rates=(0.1,), false_alarm=false_alarm).iloc[0]
        threshold = np.sort(outs)[::-1][8]
        wrong["fpr"] += norm.sf(threshold) > band["fpr_upper"]
        wrong["tpr"] += norm.sf(threshold - mu) < band["lower"]
    rate = {axis: times / repeats for axis, times in wrong.items()}
    deviation = math.sqrt(0.1 * 0.9 / repeats)
    assert rate["fpr"] == pytest.approx(0.1, abs=3.3 * deviation)  # exact
    assert 0.05 < rate["tpr"] < 0.1 + 3.3 * deviation  # conservative, as counts are whole


def test_more_arms_and_points_widen_the_band():
    scores = normals(300, 1.0, 0)
    one, three = roc_band(*scores, arms=1), roc_band(*scores, arms=3)
    assert (three["lower"] < one["lower"]).all()
    assert (three["fpr_upper"] > one["fpr_upper"]).all()
    # Bonferroni over both axes, all points and all arms.
    alarms = int(one["fpr"].iloc[2] * 300)
    level = 1e-3 / (2 * len(RATES) * 3)
    assert three["fpr_upper"].iloc[2] == pytest.approx(beta.isf(level, alarms + 1, 300 - alarms))


@pytest.mark.parametrize(("mu", "leaves"), [(1.0, False), (3.0, True)])
def test_the_best_attack_leaves_the_region_exactly_where_the_claim_is_too_small(mu, leaves):
    band = roc_band(*normals(1500, mu, 1), arms=3, claims={"reader": Claim(FULL)})
    assert band["leaves_reader"].any() == leaves
    expected = 1 - np.array(composition.trade_off(FULL, band["fpr_upper"].tolist()))
    assert band["allowed_reader"].to_numpy() == pytest.approx(expected)


CLAIMS = {"reader": Claim({NoisySum(1.0, 2.0): 1}), "server": Claim({NoisySum(1.0, 1.0): 1})}


def test_the_figure_draws_the_band_and_what_each_claim_allows_and_prints_no_epsilon_below_it():
    scores = normals(300, 0.3, 0)
    band = roc_band(*scores, arms=1, claims=CLAIMS)
    attack = Attack("private", "8", 0, *scores, 0.5, 0.5, band)
    (panel,) = membership_roc([attack], CLAIMS, "8 simulated patients").axes
    lines = {line.get_label(): (np.array(line.get_xdata()), np.array(line.get_ydata())) for line in panel.get_lines()}
    x, y = lines["lower confidence band"]
    assert x == pytest.approx(band["fpr_upper"].to_numpy())
    assert y == pytest.approx(np.maximum(band["lower"], LEAST_RATE / 10))
    for who, claim in (("a reader", CLAIMS["reader"]), ("the server", CLAIMS["server"])):
        ((label, (x, y)),) = [each for each in lines.items() if each[0].startswith(f"allowed to {who}")]
        assert y == pytest.approx(claim.power(x))
        assert claim.epsilon <= float(label.split("ε = ")[1].split()[0]) < 1.01 * claim.epsilon
