"""The figure of an attack says what its band and the claims say."""

from __future__ import annotations

import numpy as np
import pytest

from zetadp.audit.membership import Attack, Claim, against, roc_band
from zetadp.audit.membership_models import AttackedRuns
from zetadp.privacy.kinds import NoisySum
from zetadp.report.attackfigure import LEAST_RATE, membership_roc

CLAIMS = {"reader": Claim({NoisySum(1.0, 2.0): 1}, 1e-3), "server": Claim({NoisySum(1.0, 1.0): 1}, 1e-3)}


def attack(name: str, mu: float, trials: int = 300) -> Attack:
    random = np.random.default_rng(0)
    outs, ins = random.standard_normal(trials), mu + random.standard_normal(trials)
    band = roc_band(outs, ins, arms=2)
    for audience, claim in CLAIMS.items():
        band = against(band, audience, claim)
    return Attack(AttackedRuns(name, "8", 1), 0, outs, ins, 0.5, 0.5, band)


def drawn():
    return membership_roc([attack("private", 0.3), attack("open", 4.0)], CLAIMS, "8 simulated patients")


def line(panel, label):
    (found,) = [each for each in panel.get_lines() if each.get_label().startswith(label)]
    return np.asarray(found.get_xdata(), float), np.asarray(found.get_ydata(), float)


def test_lines_are_the_band_and_what_the_claims_allow():
    panel = drawn().axes[0]
    band = attack("private", 0.3).band
    x, y = line(panel, "lower confidence band")
    assert x == pytest.approx(band["fpr_upper"].to_numpy())
    assert y == pytest.approx(np.maximum(band["lower"], LEAST_RATE / 10))
    for who, audience in (("a reader", "reader"), ("the server", "server")):
        x, y = line(panel, f"allowed to {who}")
        assert y == pytest.approx(CLAIMS[audience].power(x))


def test_the_legend_prints_no_epsilon_below_the_claim():
    for line in drawn().axes[0].get_lines():
        if "ε = " in (label := str(line.get_label())):
            audience = "server" if "server" in label else "reader"
            printed = float(label.split("ε = ")[1].split()[0])
            assert CLAIMS[audience].epsilon <= printed < 1.01 * CLAIMS[audience].epsilon
