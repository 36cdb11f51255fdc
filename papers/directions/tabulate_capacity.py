"""Compare printed and true epsilons and Bayes' capacities, for directions and for Gaussian noise.

Biswas et al. (arXiv:2502.04045) compare the von Mises-Fisher mechanism, which perturbs the direction of a gradient,
with Gaussian noise "at equal epsilon". They claim that Bayes' capacity predicts reconstruction better than epsilon
does. The tables here count the steps of both mechanisms in the same way, and test the claim with the errors that the
paper prints.

    python -m papers.directions.tabulate_capacity
    python -m papers.directions.tabulate_capacity --output FOLDER

Writes table.csv, table.md and figure.svg.
"""

from __future__ import annotations

import math
import sys
import time

import numpy as np
import pandas as pd
from dp_accounting import dp_event, rdp
from matplotlib.figure import Figure
from scipy.optimize import brentq, newton
from scipy.stats import spearmanr

from papers.directions import accounting as ways
from papers.directions.accounting import concentration_for_epsilon
from papers.directions.capacity import direction_capacity, gaussian_capacity
from papers.directions.mechanism import Direction, mean_cosine
from papers.experiments import explained, parser_of, save_figure, write_parts
from papers.sizes import by_size
from zetadp.accounting import composition
from zetadp.accounting.kinds import NoisySum
from zetadp.base.logs import only_errors
from zetadp.report.figurestyle import SMALL, blank, figure_style, line_look, set_title
from zetadp.report.provenance import origin

DIMENSION, RECORDS, BATCH, EPOCHS = 13_700, 60_000, 128, 3
DELTA, RATE, STEPS = 1 / RECORDS, BATCH / RECORDS, EPOCHS * math.ceil(RECORDS / BATCH)
ORDERS = [*(1 + step / 10 for step in range(1, 100)), *range(12, 64)]
"""Orders of the accountant that the paper uses for Gaussian noise."""
EPSILONS = by_size((0.5, 1.0, 2.0, 4.0, 8.0), smoke=(8.0,))
CAPACITIES = by_size((25.0, 50.0, 100.0, 200.0, 400.0), smoke=(100.0,))
RADII = {"1": 1.0, "root 3": math.sqrt(3), "3": 3.0, "128": 128.0, "128 root 3": 128 * math.sqrt(3), "384": 384.0}
"""Radii over the unit of the noise: one gradient of norm 1; three layers of it, as a vector and as the paper adds them;
and the same for a mean over the batch, whose noise is divided by 128."""

TABLE_1 = {25: 0.0139, 50: 0.0867, 75: 0.49, 100: 2.5, 125: 4.6, 150: 7.97, 200: 10.9, 300: 41.02}
TABLE_4 = {
    75: (0.49, 1.23), 100: (2.48, 0.660), 125: (4.59, 0.544), 150: (7.97, 0.461), 175: (9.72, 0.435),
    200: (10.9, 0.420), 225: (17.25, 0.367), 250: (27.38, 0.321), 275: (38.84, 0.287), 300: (41.02, 0.282),
    325: (64.98, 0.245), 350: (79.68, 0.229), 375: (95.44, 0.214), 400: (112.28, 0.204), 500: (173.0, 0.174),
}  # fmt: skip
"""Concentration: printed epsilon, and the noise multiplier that the paper calls equally private."""
ERRORS = {
    75: ((4.396, 2.946), (3.923, 2.499)), 100: ((4.390, 2.939), (3.572, 2.243)),
    150: ((4.378, 2.934), (3.303, 2.097)), 200: ((4.364, 2.925), (3.261, 2.068)),
    250: ((4.357, 2.920), (3.124, 1.965)), 300: ((4.348, 2.915), (3.042, 1.925)),
    350: ((4.340, 2.906), (2.954, 1.877)), 400: ((4.335, 2.898), (2.891, 1.856)),
    500: ((4.311, 2.879), (2.822, 1.833)),
}  # fmt: skip
"""Concentration: printed reconstruction errors (MNIST, Fashion-MNIST) of directions and of the Gaussian in its pair.

Tables VI and II, batch 128; the noise of the last pair is printed ten times too small there.
"""
DATA = ("MNIST", "Fashion-MNIST")


def steps_of(batch: int) -> int:
    """Return the number of steps in the paper's epochs."""
    return by_size(EPOCHS * math.ceil(RECORDS / batch), smoke=3)


def direction_epsilon(concentration: float, steps: int = STEPS, rate: float = RATE) -> float:
    """Return the true epsilon of directions in the paper's setting, by default that of batches of 128."""
    return composition.epsilon({Direction(rate, concentration, DIMENSION): steps}, DELTA)


def gaussian_epsilon(noise: float, steps: int = STEPS, rate: float = RATE) -> float:
    """Return the true epsilon of Gaussian noise, as `direction_epsilon`."""
    return composition.epsilon({NoisySum(rate, noise): steps}, DELTA)


def gaussian_renyi(noise: float, steps: int) -> float:
    """Return epsilon of Gaussian noise by the accountant that the paper used."""
    with only_errors("absl"):
        accountant = rdp.RdpAccountant(orders=ORDERS)
        accountant.compose(dp_event.PoissonSampledDpEvent(RATE, dp_event.GaussianDpEvent(noise)), steps)
        return float(accountant.get_epsilon(DELTA))


def printed_directions() -> pd.DataFrame:
    """Reproduce the printed epsilons of directions with three steps, and give the true ones."""
    rows = []
    for kappa in sorted({*TABLE_1, *TABLE_4}):
        three = (kappa, DIMENSION, RATE, EPOCHS, DELTA)
        rows.append(
            {
                "kappa": kappa,
                "table_1": TABLE_1.get(kappa),
                "table_4": TABLE_4[kappa][0] if kappa in TABLE_4 else None,
                "first_approach": ways.first_approach(*three),
                "second_approach": ways.second_approach(*three),
                "second_whole_orders": ways.second_approach(*three, np.arange(2, 257)),
                "true_epsilon_3_steps": direction_epsilon(kappa, EPOCHS),
                "true_epsilon": direction_epsilon(kappa),
            }
        )
    return pd.DataFrame(rows)


def printed_gaussian() -> pd.DataFrame:
    """Reproduce the printed epsilons of Gaussian noise, with the true epsilons and concentrations of equal epsilon."""
    rows = []
    for kappa, (printed, noise) in TABLE_4.items():
        true = gaussian_epsilon(noise)
        rows.append(
            {
                "sigma": noise,
                "printed": printed,
                "renyi_1407_steps": gaussian_renyi(noise, STEPS),
                "renyi_3_steps": gaussian_renyi(noise, EPOCHS),
                "true_epsilon": true,
                "printed_kappa": kappa,
                "true_epsilon_of_it": direction_epsilon(kappa),
                "equally_private_kappa": equally_private(noise, true),
            }
        )
    return pd.DataFrame(rows)


def equally_private(noise: float, target: float) -> float:
    """Return the concentration with the epsilon of Gaussian noise, to about 0.1 %."""
    guess = math.log(math.sqrt(DIMENSION) / (2 * noise))
    return math.exp(
        newton(lambda x: math.log(direction_epsilon(math.exp(x)) / target), guess, x1=guess + 0.01, tol=3e-4)
    )


def like_for_like() -> pd.DataFrame:
    """Compare the accountings of directions at the true number of steps."""
    rows = []
    for kappa in sorted({*TABLE_1, *TABLE_4}):
        setting = (kappa, DIMENSION, RATE, STEPS, DELTA)
        z = math.sqrt(DIMENSION) / (2 * kappa)  # about as private: an approximation, no bound
        rows.append(
            {
                "kappa": kappa,
                "equivalent_sigma": z,
                "true_epsilon": direction_epsilon(kappa),
                "gaussian_epsilon": gaussian_epsilon(z),
                "second_approach": ways.second_approach(*setting),
            }
        )
    return pd.DataFrame(rows)


def capacities() -> pd.DataFrame:
    """Return the logarithms of the capacities of one step."""
    rows = []
    for kappa in sorted({*TABLE_1, *TABLE_4}):
        row = {"kappa": kappa, "direction": direction_capacity(kappa, DIMENSION)}
        if kappa in TABLE_4:
            row["sigma"] = TABLE_4[kappa][1]
            row |= {f"radius_{name}": gaussian_capacity(row["sigma"], r, DIMENSION) for name, r in RADII.items()}
        rows.append(row)
    return pd.DataFrame(rows)


def equal_epsilon() -> pd.DataFrame:
    """Compare both mechanisms at equal true epsilon."""
    rows = []
    for target in EPSILONS:
        kappa = concentration_for_epsilon(target, RATE, DIMENSION, STEPS, DELTA)
        noise = noise_for(target)
        rows.append({"true_epsilon": target, **compared(kappa, noise)})
    return pd.DataFrame(rows)


def noise_for(target: float) -> float:
    """Return the noise multiplier with a true epsilon, to about 0.1 %."""
    return math.exp(brentq(lambda x: math.log(gaussian_epsilon(math.exp(x)) / target), -1.5, 1.5, xtol=5e-4))


def equal_capacity() -> pd.DataFrame:
    """Compare both mechanisms at an equal capacity of one step, for a ball of radius 1 and for the batch's mean."""
    rows = []
    for target in CAPACITIES:
        kappa = brentq(lambda x, target=target: direction_capacity(x, DIMENSION) - target, target, 2 * target)
        for name in ("1", "128"):
            noise = noise_leaking(target, RADII[name])
            rows.append(
                {
                    "capacity": target,
                    "radius": name,
                    **compared(kappa, noise),
                    "direction_epsilon": direction_epsilon(kappa),
                    "gaussian_epsilon": gaussian_epsilon(noise),
                }
            )
    return pd.DataFrame(rows)


def noise_leaking(target: float, radius: float) -> float:
    """Return the noise multiplier at which a ball of a radius has a capacity."""

    def excess(x: float) -> float:
        return gaussian_capacity(math.exp(x), radius, DIMENSION) - target

    return math.exp(brentq(excess, -3, 8, xtol=1e-6))


def compared(kappa: float, noise: float) -> dict[str, float]:
    r"""Return what both mechanisms leak and keep in one step.

    ``even_norm`` is the norm m of the batch's mean, in units of the clip, from which on the Gaussian release points
    nearer to the clean direction: its cosine is about :math:`r / \sqrt{1 + r^2}` with
    :math:`r = L m / (\sigma \sqrt{p})`.
    """
    cosine = float(mean_cosine(DIMENSION / 2 - 1, kappa))
    return {
        "kappa": kappa,
        "sigma": noise,
        "direction_capacity": direction_capacity(kappa, DIMENSION),
        "gaussian_capacity_1": gaussian_capacity(noise, 1, DIMENSION),
        "gaussian_capacity_128": gaussian_capacity(noise, BATCH, DIMENSION),
        "mean_cosine": cosine,
        "even_norm": cosine / math.sqrt(1 - cosine**2) * noise * math.sqrt(DIMENSION) / BATCH,
    }


def points() -> pd.DataFrame:
    """Return the printed errors of reconstruction with every predictor, a row for each mechanism and setting."""
    rows = []
    for kappa, errors in ERRORS.items():
        printed, noise = TABLE_4[kappa]
        for name, error in zip(("direction", "gaussian"), errors, strict=True):
            gaussian = name == "gaussian"
            row = {"mechanism": name, "setting": noise if gaussian else kappa, "printed_epsilon": printed}
            row["true_epsilon"] = gaussian_epsilon(noise) if gaussian else direction_epsilon(kappa)
            for radius_name, radius in RADII.items():
                row[f"capacity_radius_{radius_name}"] = (
                    gaussian_capacity(noise, radius, DIMENSION) if gaussian else direction_capacity(kappa, DIMENSION)
                )
            rows.append(row | dict(zip((f"error_{data}" for data in DATA), error, strict=True)))
    return pd.DataFrame(rows)


def claim() -> pd.DataFrame:
    """Return the rank correlation of each predictor with the printed error of reconstruction."""
    frame, rows = points(), []
    for predictor in ("printed_epsilon", "true_epsilon", *(f"capacity_radius_{name}" for name in RADII)):
        ranks = {f"spearman_{data}": spearmanr(frame[predictor], frame[f"error_{data}"]).statistic for data in DATA}
        rows.append({"predictor": predictor.replace("_", " "), **ranks})
    return pd.DataFrame(rows)


def figure() -> Figure:
    """Draw the printed errors against the true epsilon and against the capacity for the batch's mean."""
    frame = points()
    with figure_style():
        canvas = blank(4.6, h_pad=0.08, w_pad=0.08)
        left, right = canvas.subplots(1, 2, sharey=True)
        panels = (
            (left, "true_epsilon", "true ε of the run"),
            (right, "capacity_radius_128", "log capacity of a step, nats (radius 128)"),
        )
        for panel, column, label in panels:
            for index, (mechanism, data) in enumerate((m, d) for m in ("direction", "gaussian") for d in DATA):
                part = frame[frame["mechanism"] == mechanism].sort_values(column)
                mechanism_shown = "von Mises-Fisher" if mechanism == "direction" else "Gaussian"
                panel.plot(part[column], part[f"error_{data}"], label=f"{mechanism_shown}, {data}", **line_look(index))
            panel.set(xscale="log", xlabel=label)
        left.set_ylabel("printed reconstruction error (MSE)")
        right.legend(frameon=False, fontsize=SMALL, loc="lower left")
        set_title(canvas, "Reconstruction follows capacity across mechanisms, and epsilon within each")
        text = (
            "Batch 128, δ = 1/60000, 1407 steps. Errors are those that the paper prints; higher means that the attack "
            "sees less. They were not measured again."
        )
        explained(canvas, text)
    return canvas


PARTS = {
    "printed_directions": "Tables I and IV, directions: printed, reproduced with three steps, and true at 1407 steps",
    "printed_gaussian": "Table IV, Gaussian noise: printed, reproduced, true, and the kappa that is equally private",
    "like_for_like": "Directions at 1407 steps: the true epsilon, that of the equivalent noise, and looser accountings",
    "capacities": "Logarithm of Bayes' capacity of one step, in nats, by radius over noise",
    "equal_epsilon": "Both mechanisms at equal true epsilon",
    "equal_capacity": "Both mechanisms at equal capacity of a step; the radius is that of the Gaussian's ball",
    "claim": "Rank correlation (Spearman) with the printed errors of reconstruction; the best possible is -1",
}


def main() -> None:
    """Compute all parts, and write both tables and the figure."""
    arguments, start = parser_of(__doc__, "directions").parse_args(), time.process_time()
    parts = {}
    for name in PARTS:
        parts[name] = globals()[name]()
        print(f"{name}: {time.process_time() - start:.0f} s of processor time so far", file=sys.stderr)
    head = (
        "# Directions and Gaussian noise: printed and true\n\n"
        f"{DIMENSION} parameters, batch {BATCH} of {RECORDS} records, {STEPS} steps, δ = 1/{RECORDS} unless a column "
        "says otherwise. “True” is by the privacy-loss distribution, for the ideal mechanism under Poisson sampling. "
        "“Printed” is not a guarantee. “Even norm” is the norm of the batch's mean, in units of the clip, above which "
        "the Gaussian release points nearer to the clean direction than the von Mises-Fisher one. "
        f"Everything took {time.process_time() - start:.0f} s of processor time. [What it means](../README.md).\n\n"
        "![Printed errors against epsilon and capacity](figure.svg)\n\n"
    )
    write_parts(arguments.output / "table", PARTS, parts, head, origin("none", "none"))
    save_figure(figure(), arguments.output / "figure.svg")


if __name__ == "__main__":
    main()
