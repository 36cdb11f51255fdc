"""Compare the epsilons of the paper behind the feature release with the true ones.

Li, Cao and Yao (NeuroMixGDP, arXiv:2202.06467v2) calibrate their noise with a central limit. They account for
Hierarchical Sampling as if a record were drawn independently of its class. The tables compare both with the accountant
of this project. The figure and the last table test the second claim with an attack.

    python -m papers.neuromixgdp.tabulate_accounting
    python -m papers.neuromixgdp.tabulate_accounting --releases 300 --repetitions 40 --output FOLDER    # a quick look

Writes accounting.csv, accounting.md and hierarchical.svg.
"""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.optimize import brentq, newton

from papers.experiments import explained, parser_of, save_figure, write_parts
from papers.neuromixgdp.attack import THRESHOLD, HierarchicalAttack
from papers.neuromixgdp.printed import (
    CLOSE,
    PrintedRelease,
    renyi_epsilon,
    split_noise,
    uniform_mu,
)
from papers.sizes import by_size
from zetadp.accounting import composition, gaussian
from zetadp.accounting.kinds import NoisySum
from zetadp.audit.detection import FALSE_ALARM, count_errors
from zetadp.base.randomness import Purpose, stream
from zetadp.own.rows import BEST_RATIO, best_mixed
from zetadp.report.figurestyle import SMALL, blank, figure_style, set_title
from zetadp.report.provenance import origin

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes

    from zetadp.audit.detection import Errors

RECORDS, MIXED, DELTA = 50_000, 64, 1e-5
EPSILONS = by_size((0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0), smoke=(1.0,))
CLASS_RATES = (0.3, 0.1, 0.03)
FIGURE_MU, FIGURE_NOISE, ROUNDS = 0.5016, 0.8441, (10, 50, 200, 1000, 50_000)
"""The setting of the paper's Figures 8 and 9."""
DEGREES = by_size((4, 16, 32, 64, 128, 256, 1024, 4096), smoke=(64,))
ATTACKED = (0.03, 0.1)
CLASS_SIZE = 500
RATIOS = (0.2, 0.5, 0.7, 0.85, 1.0, 1.2, 2.0, 3.0, 5.0)
MUS = (1 / 3, 1.0, 3.0)
ROUGH = 2e-2
"""Tolerance of the accountant in the search of noise multipliers."""


def noise_needed(release: PrintedRelease, epsilon: float, delta: float) -> float:
    """Return the noise multiplier at which a release costs epsilon, to about 0.2 %.

    This is faster than `noise_for_epsilon`, which calibrates real noise. There are many rows, and a table shows four
    digits only.
    """

    def excess(log_noise: float) -> float:
        return math.log(composition.epsilon(release.mechanisms(math.exp(log_noise)), delta, ROUGH) / epsilon)

    guess = math.log(release.safe_noise(gaussian.mu(epsilon, delta)))
    return math.exp(newton(excess, guess, x1=guess + 0.02, tol=2e-4))


def noise_reaching(value: Callable[[float], float], target: float) -> float:
    """Return the noise multiplier at which a value that falls with the noise reaches the target."""
    return float(brentq(lambda noise: value(noise) - target, 0.05, 1000, xtol=1e-6))


def poisson() -> pd.DataFrame:
    """Compare the central limit's noise with the truth under Poisson sampling."""
    release, rows = PrintedRelease(RECORDS, MIXED, RECORDS), []
    for epsilon in EPSILONS:
        mu = gaussian.mu(epsilon, DELTA)
        noise = release.nominal_noise(mu)
        settings = (release.marginal_rate, noise, RECORDS, DELTA)
        rows.append(
            {
                "printed_epsilon": epsilon,
                "true_epsilon": release.true_epsilon(noise, DELTA),
                "printed_mu": mu,
                "printed_noise": noise,
                "needed_noise": noise_needed(release, epsilon, DELTA),
                "renyi_epsilon": composition.epsilon_rdp(release.mechanisms(noise), DELTA),
                "theorem_e5_epsilon": renyi_epsilon(*settings),
                "theorem_e5_misprinted": renyi_epsilon(*settings, misprint=True),
            }
        )
    return pd.DataFrame(rows)


def convergence() -> pd.DataFrame:
    """Compare curve, epsilon and delta with their central limits for a growing number of rows, at one mu."""
    alphas = np.linspace(0, 1, 1001)
    limit = np.array([gaussian.beta(float(alpha), FIGURE_MU) for alpha in alphas])
    rate, rows = FIGURE_MU / math.sqrt(math.expm1(FIGURE_NOISE**-2)), []
    for rounds in ROUNDS:
        mechanisms = {NoisySum(rate / math.sqrt(rounds), FIGURE_NOISE): rounds}
        gap = np.array(composition.trade_off(mechanisms, alphas)) - limit
        spent = brentq(lambda delta, seen=mechanisms: composition.epsilon(seen, delta, CLOSE) - 1, 1e-4, 0.1, xtol=1e-7)
        rows.append(
            {
                "rounds": rounds,
                "rate": rate / math.sqrt(rounds),
                "curve_gap": float(np.abs(gap).max()),
                "curve_gap_l2": math.sqrt(np.trapezoid(gap**2, alphas)),
                "printed_epsilon": gaussian.epsilon(DELTA, FIGURE_MU),
                "true_epsilon": composition.epsilon(mechanisms, DELTA, CLOSE),
                "printed_delta": gaussian.delta(1, FIGURE_MU),
                "true_delta": spent,
            }
        )
    return pd.DataFrame(rows)


def row_noise() -> pd.DataFrame:
    """Compare the standard deviation of a feature in one row at epsilon 1, by mixup degree."""
    mu, rows = gaussian.mu(1, DELTA), []
    for mixed in DEGREES:
        release = PrintedRelease(RECORDS, mixed, RECORDS)
        rate = release.marginal_rate
        noises = {
            "printed": release.nominal_noise(mu),
            "true": noise_needed(release, 1, DELTA),
            "uniform": noise_reaching(lambda noise, rate=rate: uniform_mu(rate, noise, RECORDS), mu),
            "renyi": noise_reaching(lambda noise, rate=rate: renyi_epsilon(rate, noise, RECORDS, DELTA), 1),
        }
        rows.append({"mixed": mixed} | {f"{name}_row_noise": split_noise(s)[0] / mixed for name, s in noises.items()})
    return pd.DataFrame(rows)


def hierarchical() -> pd.DataFrame:
    """Compare the claimed and the true privacy of the paper's noise under Hierarchical Sampling."""
    rows = []
    for epsilon in EPSILONS:
        mu = gaussian.mu(epsilon, DELTA)
        for class_rate in CLASS_RATES:
            release = PrintedRelease(RECORDS, MIXED, RECORDS, class_rate)
            noise = release.nominal_noise(mu)
            rows.append(
                {
                    "printed_epsilon": epsilon,
                    "class_rate": class_rate,
                    "printed_noise": noise,
                    "true_epsilon": release.true_epsilon(noise, DELTA),
                    "safe_limit_noise": release.safe_noise(mu),
                    "needed_noise": noise_needed(release, epsilon, DELTA),
                }
            )
    return pd.DataFrame(rows)


def best_degrees() -> pd.DataFrame:
    """Return the best mixup degree of Theorem 3.2 for the paper's data sizes, and what a release there costs."""
    rows = []
    sizes = [(RECORDS, DELTA, (*EPSILONS, 10.0)), (60_000, DELTA, (*EPSILONS, 10.0)), (1_280_000, 1e-7, EPSILONS[:5])]
    for records, delta, epsilons in sizes:
        for epsilon in epsilons:
            mu = gaussian.mu(epsilon, delta)
            row = {"records": records, "delta": delta, "printed_epsilon": epsilon, "printed_mu": mu}
            row["best_mixed"] = best_mixed(mu, records, records)
            row["best_mixed_p_0.03"] = best_mixed(mu, records, records, 0.03)
            if records == RECORDS:
                release = PrintedRelease(records, row["best_mixed"], records)
                row["true_epsilon"] = release.true_epsilon(release.nominal_noise(mu), delta)
            rows.append(row)
    return pd.DataFrame(rows)


def regression(repetitions: int) -> pd.DataFrame:
    """Repeat the simulation of the paper's Section J.1: the error of a linear regression on a release, by its degree.

    The same data, draws and noise serve every degree and mu, so that their differences show.
    """
    records, features = 300, 5
    release_rows = 3 * records
    root = np.linalg.cholesky(0.3 ** np.abs(np.subtract.outer(range(features), range(features))))
    errors: dict[tuple[float, float], list[float]] = {(mu, ratio): [] for mu in MUS for ratio in RATIOS}
    for repetition in range(repetitions):
        random = stream(0, Purpose.NOISE, repetition)
        truth = random.standard_normal(features)
        x = random.standard_normal((records, features)) @ root.T
        y = x @ truth + random.standard_normal(records)
        x, y = x - x.mean(axis=0), y - y.mean()
        bounds = np.append(np.full(features, np.linalg.norm(x, axis=1).max()), np.abs(y).max())
        coins = random.random((release_rows, records), dtype=np.float32)
        noise = random.standard_normal((release_rows, features + 1))
        for (mu, ratio), norms in errors.items():
            release = PrintedRelease(records, ratio * best_mixed(mu, records, release_rows), release_rows)
            sigma, _ = split_noise(release.nominal_noise(mu))
            draws = (coins < release.marginal_rate).astype(np.float32)
            mixed = (draws @ np.column_stack([x, y]).astype(np.float32) + sigma * bounds * noise) / release.mixed
            estimate = np.linalg.lstsq(mixed[:, :features], mixed[:, features], rcond=None)[0]
            norms.append(float(np.linalg.norm(estimate - truth)))
    medians = {key: float(np.median(norms)) for key, norms in errors.items()}
    return pd.DataFrame([{"ratio": r, **{f"error_mu_{mu:.3g}": medians[mu, r] for mu in MUS}} for r in RATIOS])


def attacked(releases: int) -> tuple[pd.DataFrame, Figure]:
    """Attack Hierarchical Sampling at a nominal epsilon of 1, and draw its errors against both claims."""
    mu, rows, alphas = gaussian.mu(1, DELTA), [], np.linspace(0, 1, 201)
    with figure_style():
        figure = blank(5.6, h_pad=0.08, w_pad=0.08)
        for panel, class_rate in zip(figure.subplots(1, len(ATTACKED)), ATTACKED, strict=True):
            release = PrintedRelease(RECORDS, MIXED, RECORDS, class_rate)
            noise = release.nominal_noise(mu)
            attack = HierarchicalAttack(release, noise, CLASS_SIZE)
            without, inside = (attack.scores(releases, 0, present=present) for present in (False, True))
            errors = count_errors(without, inside, THRESHOLD, confidence=1 - FALSE_ALARM)
            rows.append(
                {
                    "class_rate": class_rate,
                    "releases": releases,
                    "printed_variation": _variation(mu),
                    "seen_variation_lower": 1 - errors.alpha.upper - errors.beta.upper,
                    "seen_variation": 1 - errors.alpha.share - errors.beta.share,
                    "safe_variation": 1 - min(np.add(alphas, composition.trade_off(release.mechanisms(noise), alphas))),
                    "printed_mu": mu,
                    "seen_mu": gaussian_mu_of_variation(1 - errors.alpha.share - errors.beta.share),
                    "safe_mu": release.safe_mu(noise),
                }
            )
            curves = {
                "what the paper claims: no attack comes below": [gaussian.beta(float(a), mu) for a in alphas],
                "the safe rule: no attack comes below": composition.trade_off(release.mechanisms(noise), alphas),
                "the attack": [float((inside <= t).mean()) for t in np.quantile(without, 1 - alphas, method="higher")],
            }
            _draw(panel, alphas, curves, errors)
            panel.set_title(f"p = {class_rate:g}: true ε = {release.true_epsilon(noise, DELTA):.2f}", loc="left")
        set_title(figure, "Hierarchical Sampling at the paper's ε = 1 (δ = 1e-05): claims, and the errors of an attack")
        text = (
            f"{RECORDS} rows that mix 64 of {RECORDS} records, {CLASS_SIZE + 1} of them in the target's class; "
            f"{releases} simulated releases on each side. The cross is at the threshold fixed beforehand; its limits "
            f"hold together with probability {1 - FALSE_ALARM:g}."
        )
        explained(figure, text)
    return pd.DataFrame(rows), figure


def gaussian_mu_of_variation(variation: float) -> float:
    """Return the mu of two normal distributions with this total variation distance."""
    return float(brentq(lambda mu: _variation(mu) - variation, 0, 20))


def _variation(mu: float) -> float:
    return gaussian.delta(0, mu)


def _draw(panel: Axes, alphas: np.ndarray, curves: dict[str, Any], errors: Errors) -> None:
    """Draw claimed and attained curves, and the confidence limits of the errors at the fixed threshold."""
    looks = (("#000000", "--", 1.5), ("#000000", "-", 1.5), ("#D55E00", "-", 3.0))
    claimed = next(iter(curves.values()))
    panel.fill_between(alphas, claimed, color="#EEEEEE", linewidth=0, label="refutes the claim")
    for (label, curve), (colour, style, width) in zip(curves.items(), looks, strict=True):
        panel.plot(alphas, curve, color=colour, linestyle=style, linewidth=width, label=label)
    panel.plot([errors.alpha.lower, errors.alpha.upper], [errors.beta.share] * 2, color="#000000", linewidth=1.2)
    panel.plot([errors.alpha.share] * 2, [errors.beta.lower, errors.beta.upper], color="#000000", linewidth=1.2)
    panel.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="false alarms", ylabel="misses")
    panel.legend(loc="upper right", fontsize=SMALL, frameon=False)


PARTS = {
    "poisson": "Poisson sampling: the noise of Theorem 3.1 is too small, by little at many rows and moderate epsilon",
    "convergence": "More and more rows at mu = 0.5016: the curve converges fast, epsilon at a small delta does not",
    "row_noise": "Standard deviation of a feature in one row at epsilon = 1, by mixup degree",
    "hierarchical": "Hierarchical Sampling: the paper's noise gives a far larger epsilon",
    "best_degrees": "The best mixup degree of Theorem 3.2",
    "regression": "Check of Theorem 3.2: median error of a regression, by degree relative to the best one of theory",
    "attack": "The attack on Hierarchical Sampling at a printed epsilon of 1: total variation distance and mu",
}


def main() -> None:
    """Compute all parts, and write both tables and the figure."""
    parser = parser_of(__doc__, "neuromixgdp")
    parser.add_argument("--releases", type=int, default=1000, help="attacked releases on each side (%(default)s)")
    parser.add_argument("--repetitions", type=int, default=200, help="of the regression of Theorem 3.2 (%(default)s)")
    arguments, start = parser.parse_args(), time.process_time()
    attack, figure = attacked(arguments.releases)
    parts = {"attack": attack, "regression": regression(arguments.repetitions)}
    for name in ("hierarchical", "poisson", "convergence", "best_degrees", "row_noise"):
        parts[name] = globals()[name]()
        print(f"{name}: {time.process_time() - start:.0f} s of processor time so far", file=sys.stderr)
    head = (
        "# The privacy that the paper prints for its release, and the true one\n\n"
        f"n = T = {RECORDS} records and rows, m = {MIXED} records a row and δ = {DELTA:g} unless a column says "
        "otherwise. "
        "“Printed” is what the paper's formulas give, and is not a guarantee. “True” and “needed” are by the "
        f"privacy-loss distribution. The regression was repeated {arguments.repetitions} times (ratio 1 is "
        f"{BEST_RATIO:.4f} mu n / √T). Everything took {time.process_time() - start:.0f} s of processor time. "
        "[What it means](../README.md).\n\n![Trade-off curves](hierarchical.svg)\n\n"
    )
    write_parts(arguments.output / "accounting", PARTS, parts, head, origin("none", "0"))
    save_figure(figure, arguments.output / "hierarchical.svg")


if __name__ == "__main__":
    main()
