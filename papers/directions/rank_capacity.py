"""Test whether Bayes' capacity predicts which mechanism leaks more of an image, by gradient inversion.

    python -m papers.directions.rank_capacity

Biswas et al. (arXiv:2502.04045) claim that capacity predicts the order of reconstruction errors across mechanisms, and
that epsilon does not. This program inverts single messages (Geiping et al. 2020, by L-BFGS in float64) of networks like
the paper's, on digits of 16 x 16 pixels. Three mechanisms make the messages:

- the sum of clipped gradients with Gaussian noise
- the direction of this sum with von Mises-Fisher noise
- the sum with noise of density proportional to exp(-eps |x| / B), the K-norm mechanism of the Euclidean norm

Within one mechanism, every figure that grows with epsilon gives the same order. Rank correlations are over all settings
of all mechanisms: epsilon, images in the message, units of the hidden layer, clipping norm. The claim itself is about
mechanisms at equal epsilon, network and batch: there pairs of them are counted that capacity orders. The radius in
the capacity is fixed beforehand: it is the largest possible norm of the vector before the noise. Writes order.csv,
order.md and order.svg.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from scipy.special import gammaincc, gammaln
from scipy.stats import spearmanr
from torch.nn import functional

from papers.digits import images
from papers.directions.accounting import concentration_for_epsilon
from zetadp.audit.inversion import Search, invert
from zetadp.base.randomness import Purpose, stream
from zetadp.base.storage import write_text
from zetadp.base.tables import Sheet
from zetadp.privacy import accounting, gaussian
from zetadp.privacy.directions import Direction
from zetadp.privacy.directions import capacity as direction_capacity
from zetadp.privacy.gaussian import capacity as gaussian_capacity
from zetadp.privacy.seeded_noise import draw_direction
from zetadp.report.figurestyle import (
    SMALL,
    WIDTH,
    figure_style,
    line_look,
    panel_grid,
    save_svg,
    set_legend,
    set_title,
    wrapped,
)
from zetadp.report.provenance import origin
from zetadp.report.rendering import to_csv, to_markdown
from zetadp.tasks.reconstruction.volumes import nmse, ssim

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

RESULTS = Path("results/papers/directions")
SIDE, CLASSES, DELTA, SEED = 16, 10, 1e-5, 47
EPSILONS = (1.0, 8.0, 64.0, 512.0, 4096.0)
BATCHES, HIDDEN, CLIPS = (1, 4), (10, 50), (0.1, 1.0)
MESSAGES, STEPS, RESAMPLED, CANDIDATES = 8, 4, 2000, 10
MECHANISMS = {"gaussian": "Gaussian", "direction": "von Mises-Fisher", "norm": "K-norm"}
APART = 0.01
"""Least difference of two mean errors that counts as one."""
FIGURES = {"epsilon": "ε", "capacity": "capacity", "bound": "bound on reconstruction"}


@dataclass(frozen=True)
class Setting:
    """What one message is of, and what hides it."""

    mechanism: str
    epsilon: float
    batch: int
    hidden: int
    clip: float

    @property
    def dimension(self) -> int:
        """Numbers in a message: two layers without bias, as in the paper."""
        return self.hidden * (SIDE * SIDE + CLASSES)

    @property
    def capacity(self) -> float:
        """Logarithm of Bayes' capacity, in nats."""
        if self.mechanism == "direction":
            return direction_capacity(concentration(self.epsilon, self.dimension), self.dimension)
        if self.mechanism == "gaussian":
            return gaussian_capacity(1 / gaussian.mu(self.epsilon, DELTA), self.batch, self.dimension)
        return norm_capacity(self.epsilon, self.batch, self.dimension)

    @property
    def bound(self) -> float:
        """Largest chance to name the correct one of `CANDIDATES`: 1 - f(1 / n) for the trade-off curve f."""
        one = 1 / CANDIDATES
        if self.mechanism == "gaussian":
            return 1 - gaussian.beta(one, gaussian.mu(self.epsilon, DELTA))
        if self.mechanism == "direction":
            return 1 - direction_beta(self.epsilon, self.dimension)
        return min(math.exp(min(self.epsilon, 50)) * one, 1 - math.exp(-self.epsilon) * (1 - one))

    def noised(self, total: Tensor, random: np.random.Generator) -> Tensor:
        """Return the message for a sum of gradients, each of norm at most one."""
        if self.mechanism == "direction":
            return draw_direction(total, concentration(self.epsilon, self.dimension), random)
        noise = torch.from_numpy(random.standard_normal(self.dimension))
        if self.mechanism == "gaussian":
            return total + noise / gaussian.mu(self.epsilon, DELTA)
        return total + noise / noise.norm() * random.gamma(self.dimension, 1 / self.epsilon)


def declared() -> tuple[str, str]:
    """Return cohort and seeds."""
    return f"MNIST, {MESSAGES * max(BATCHES)} training images, not simulated", str(SEED)


@lru_cache
def concentration(epsilon: float, dimension: int) -> float:
    """Return kappa of one release of everybody."""
    return concentration_for_epsilon(epsilon, probability=1.0, dimension=dimension, releases=1, delta=DELTA)


@lru_cache
def direction_beta(epsilon: float, dimension: int) -> float:
    """Return the smallest type-II error of a test whose type-I error is 1 / `CANDIDATES`."""
    kind = Direction(1.0, concentration(epsilon, dimension), dimension)
    return accounting.trade_off({kind: 1}, [1 / CANDIDATES])[0]


def norm_capacity(epsilon: float, radius: float, dimension: int) -> float:
    """Return the log capacity of the K-norm mechanism on a ball, in units of a person's largest contribution.

    The density is highest inside the ball, and outside at the point of the ball that is nearest: two integrals over
    the radius.
    """
    inside = dimension * math.log(epsilon * radius) - gammaln(dimension + 1)
    tail = float(gammaincc(dimension, epsilon * radius))
    return float(inside if tail == 0 else np.logaddexp(inside, epsilon * radius + math.log(tail)))


@lru_cache
def weights(hidden: int) -> tuple[Tensor, Tensor]:
    """Return random weights of both layers."""
    random = stream(SEED, Purpose.WEIGHTS, hidden)
    shapes = ((hidden, SIDE * SIDE), (CLASSES, hidden))
    return tuple(torch.from_numpy(random.standard_normal(shape) / math.sqrt(shape[1])) for shape in shapes)


def contributions(found: Tensor, labels: Tensor, hidden: int, clip: float) -> Tensor:
    """Return the sum of clipped gradients of images, shape (image, row, column), in units of the clip."""
    total = torch.zeros(())
    for image, label in zip(found, labels, strict=True):
        own = [value.clone().requires_grad_() for value in weights(hidden)]
        score = own[1] @ functional.softplus(own[0] @ image.flatten())
        parts = torch.autograd.grad(functional.cross_entropy(score, label), own, create_graph=True)
        flat = torch.cat([part.flatten() for part in parts]) / clip
        total = total + flat / flat.norm().clamp_min(1)
    return total


@lru_cache
def digits() -> tuple[Tensor, Tensor]:
    """Return digits of 16 x 16 pixels in [0, 1], and labels."""
    found, labels = images("mnist", "train")
    count = MESSAGES * max(BATCHES)
    pixels = functional.pad(torch.from_numpy(found[:count].astype(np.float64) / 255), (2, 2, 2, 2))[:, None]
    return functional.avg_pool2d(pixels, 2)[:, 0], torch.from_numpy(labels[:count])


def attacked(setting: Setting, message: int) -> dict[str, float]:
    """Attack one message, and return the errors of the reconstructed images, as means over its images."""
    chosen = slice(message * setting.batch, (message + 1) * setting.batch)
    true, labels = (part[chosen] for part in digits())
    random = stream(SEED, Purpose.NOISE, message)
    seen = setting.noised(contributions(true, labels, setting.hidden, setting.clip).detach(), random)
    found = invert(
        seen,
        lambda x: contributions(x, labels, setting.hidden, setting.clip),
        true.shape,
        Search(steps=STEPS),
        torch.Generator().manual_seed(message),
    )
    pairs = [(one.numpy(), scaled(other, one)) for one, other in zip(true, found, strict=True)]
    return {
        "nmse": float(np.mean([nmse(one, other) for one, other in pairs])),
        "ssim": float(np.mean([ssim(one[None], other[None])[0] for one, other in pairs])),
    }


def scaled(found: Tensor, true: Tensor) -> np.ndarray:
    """Scale an image to fit the true image best, because a direction does not reveal the scale."""
    factor = (found * true).sum() / found.square().sum().clamp_min(1e-12)
    return (factor * found).clamp(0, 1).numpy()


def settings() -> list[Setting]:
    """Return all settings."""
    return [Setting(*values) for values in product(MECHANISMS, EPSILONS, BATCHES, HIDDEN, CLIPS)]


def collect() -> pd.DataFrame:
    """Attack under every setting; return one row per message."""
    rows = []
    for setting in settings():
        known = vars(setting) | {"capacity": setting.capacity, "bound": setting.bound}
        own = [{**known, "message": message, **attacked(setting, message)} for message in range(MESSAGES)]
        rows += own
        print(known, f"{np.mean([row['nmse'] for row in own]):.3f}", flush=True)
    return pd.DataFrame(rows)


def correlations(found: pd.DataFrame) -> pd.DataFrame:
    """Return rank correlations over all settings, with 95 % intervals by resampling messages."""
    keys = ["mechanism", "epsilon", "batch", "hidden", "clip"]
    random, rows = stream(SEED, Purpose.BOOTSTRAP), []
    draws = random.integers(0, MESSAGES, (RESAMPLED, MESSAGES))
    known = found.groupby(keys, sort=False)[["capacity", "bound"]].first().reset_index()
    for metric in ("nmse", "ssim"):
        each = found.pivot_table(index=keys, columns="message", values=metric, sort=False).to_numpy()
        sign = -1 if metric == "nmse" else 1
        for figure in FIGURES:
            values = known[figure].to_numpy()
            point = sign * spearmanr(values, each.mean(axis=1)).statistic
            spread = [sign * spearmanr(values, each[:, draw].mean(axis=1)).statistic for draw in draws]
            low, high = np.quantile(spread, [0.025, 0.975])
            rows.append({"metric": metric, "figure": figure, "rank": point, "low": low, "high": high})
    return pd.DataFrame(rows)


def ordered_pairs(found: pd.DataFrame) -> tuple[int, int]:
    """Count pairs of mechanisms at equal epsilon, network and batch that capacity orders, and all whose errors differ.

    Errors differ where their means are apart by `APART` and by three standard errors. Messages of both clips are taken
    together, with the mean of their capacities.
    """
    right = pairs = 0
    for _, alike in found.groupby(["epsilon", "hidden", "batch"], sort=False):
        each = alike.groupby("mechanism").agg({"capacity": "mean", "nmse": ["mean", "sem"]})
        each.columns = ["capacity", "error", "spread"]
        for one, other in combinations(each.itertuples(), 2):
            if abs(one.error - other.error) > max(APART, 3 * math.hypot(one.spread, other.spread)):
                pairs += 1
                right += (one.capacity > other.capacity) == (one.error < other.error)
    return right, pairs


def sheet(ranks: pd.DataFrame, counted: tuple[int, int], made: tuple[str, ...]) -> Sheet:
    """Lay the correlations out."""
    names = {"nmse": "error (NMSE), falling", "ssim": "similarity (SSIM), rising"}
    lines = [
        (names[row["metric"]], FIGURES[row["figure"]], f"{row['rank']:.2f}", f"{row['low']:.2f} to {row['high']:.2f}")
        for row in ranks.to_dict("records")
    ]
    notes = (
        f"Rank correlation (Spearman) over {len(settings())} settings: {', '.join(MECHANISMS.values())}; "
        f"ε {', '.join(f'{e:g}' for e in EPSILONS)} at δ = {DELTA:g} (K-norm: δ = 0); "
        f"{' and '.join(map(str, BATCHES))} images a message; {' and '.join(map(str, HIDDEN))} hidden units; "
        f"clip {' and '.join(map(str, CLIPS))}. "
        f"Intervals: 95 %, resampled over {MESSAGES} messages. 1: the figure orders all settings as the attack does.",
        "The bound is that on naming the right one of ten candidates.",
        f"At equal ε, hidden units and images a message, capacity orders {counted[0]} of {counted[1]} pairs of "
        f"mechanisms whose mean errors differ by {APART:g} and by three standard errors. ε orders none.",
        *made,
    )
    columns = ("measured", "predicted by", "rank correlation", "95 %")
    return Sheet("What orders reconstruction across mechanisms", columns, tuple(lines), notes, names=2)


def figure(found: pd.DataFrame) -> Figure:
    """Draw the error of the attack against each figure."""
    keys = ["mechanism", "epsilon", "batch", "hidden", "clip"]
    means = found.groupby(keys, sort=False).mean(numeric_only=True).reset_index()
    with figure_style():
        drawn, panels = panel_grid(2, 2, 3.4)
        for panel, name in zip(panels, ("epsilon", "capacity"), strict=True):
            for number, (mechanism, label) in enumerate(MECHANISMS.items()):
                own = means[means["mechanism"] == mechanism]
                panel.plot(own[name], own["nmse"], **(line_look(number) | {"linestyle": ""}), label=label)
            panel.set_xscale("log")
            panel.set_xlabel("ε" if name == "epsilon" else "log capacity in nats")
            panel.grid(color="#DDDDDD", linewidth=0.6)
        panels[0].set_ylabel("error of images found (NMSE)")
        set_title(drawn, "Error of rebuilt images against ε and against capacity")
        text = f"One mark a setting, mean of {MESSAGES} messages. Batches of {BATCHES[0]} and {BATCHES[1]} images."
        set_legend(drawn, panels, wrapped(text, SMALL, 0.97 * WIDTH))
    return drawn


def main() -> None:
    """Attack, and write table and figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    found, made = collect(), origin(*declared())
    write_text(given.output / "order.csv", to_csv(found, made, float_format="%.4g"))
    found = pd.read_csv(given.output / "order.csv", comment="#")  # numbers as stored: equal rounded numbers are ties
    laid_out = to_markdown(sheet(correlations(found), ordered_pairs(found), made))
    write_text(given.output / "order.md", laid_out)
    save_svg(figure(found), given.output / "order.svg")
    print(laid_out)


if __name__ == "__main__":
    main()
