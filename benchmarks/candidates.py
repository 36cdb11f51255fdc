r"""How often an informed attacker names the right one of several candidates, from all messages of a training together.

    make candidates

The attacker knows everybody but one person, of whom he has the data of K candidates, one of which took part. He sees
every message of every round, knows the weights, and names the candidate under which all messages together are most
likely: with equal chances beforehand nobody does better. Everybody takes part in every round. With gradients
:math:`g_{c,r}` of candidate c in round r, clipped to norm B, and noise :math:`\sigma B`, the log-likelihoods are
jointly normal with covariance :math:`G_{cd} = \sum_r g_{c,r} \cdot g_{d,r} / (\sigma B)^2`, so the attack is
simulated from G alone, for as many trials as one likes. The gradients are those of the library's own training, without
noise, in which every patient is a node.

Beside it stand the bound that holds for every attack and all data (`zetadp.privacy.risk`), and the worst candidates,
whose gradients are at right angles and reach the clip: the right one is then named with chance
:math:`\int \phi(x - \mu) \Phi(x)^{K-1} dx`. Writes candidates.csv, candidates.md and candidates.svg.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from scenarios import write_table
from scipy.integrate import quad
from scipy.special import ndtr
from scipy.stats import norm

import zetadp
from zetadp import (
    Holding,
    NetworkSettings,
    NodeConstants,
    Plan,
    Records,
    RunName,
    TrainingData,
    TrainingFiles,
    TrainingSettings,
    train,
)
from zetadp.audit.inversion import whitened_kspace
from zetadp.backbone.start import record_features, starting_weights
from zetadp.cohort.public import PublicSettings, simulate_public_patient
from zetadp.core.settings import OptimiserSettings
from zetadp.nn.backbone import load_backbone
from zetadp.nn.settings import SHIPPED
from zetadp.privacy import gaussian
from zetadp.randomness import Purpose, stream
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
from zetadp.report.rendering import Sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

RESULTS = Path(__file__).parents[1] / "docs/results/inversion"
SEED, PATIENTS, SLICES, SIDE, CLASSES = 43, 100, 20, 32, 4
ROUNDS, CLIP, RATE, DELTA = 20, 0.3, 1.0, 1e-3
EPSILONS = (1.0, 8.0, 30.0)
CANDIDATES = (10, 100)
TRIALS = 20_000


@dataclass(frozen=True)
class Training:
    """What is trained.

    Attributes
    ----------
    network
        The network.
    slices
        Slices of each patient, four images each, that are in the patient's gradient.
    """

    network: NetworkSettings
    slices: int


TRAININGS = {
    "head of 4 components": Training(NetworkSettings("head", "features", components=4, start="public"), SLICES),
    "head of all components": Training(NetworkSettings("head", "features", start="public"), SLICES),
    "network from scratch": Training(
        NetworkSettings(widths=(16, 32, 64), convolutions=1, head="pooled", groups=8), slices=2
    ),
}


def declared() -> tuple[str, str]:
    """Return cohort and seeds."""
    return f"{PATIENTS} simulated public patients, seed {SEED}", str(SEED)


@lru_cache
def patients() -> np.ndarray:
    """Return all patients' images, shape (patient, class, slice, row, column)."""
    settings = PublicSettings(seed=SEED)
    return np.stack([simulate_public_patient(settings, number, SLICES, SIDE) for number in range(PATIENTS)])


def gradients(training: Training) -> Tensor:
    """Return each patient's clipped gradient in each round, shape (round, patient, number), in units of the clip."""
    images = torch.from_numpy(patients()[:, :, : training.slices]).flatten(1, 2)
    kspace = whitened_kspace(images.flatten(0, 1).double()).to(torch.complex64)
    inputs, start = kspace.unflatten(0, images.shape[:2])[:, :, None], None
    if training.network.start == "public":
        backbone = load_backbone(Path(zetadp.__file__).parent / SHIPPED)
        start = starting_weights(training.network, backbone)
        inputs = torch.from_numpy(record_features(backbone, inputs[:, :, 0].numpy()))
    each = inputs.shape[1]
    labels = torch.arange(CLASSES).repeat_interleave(training.slices).repeat(PATIENTS)
    nodes = tuple(NodeConstants(f"patient-{number:03d}", 1, 1) for number in range(PATIENTS))
    how = TrainingSettings(
        ROUNDS,
        images_per_patient=each,
        optimiser=OptimiserSettings(name="sgd", learning_rate=RATE),
        clip=CLIP,
        noise="seeded",
    )
    plan = Plan(
        RunName("candidates", "federated", "inf", SEED), training.network, how, nodes, delta=DELTA,
        task={"name": "classification", "classes": CLASSES},
    )  # fmt: skip
    holdings = [Holding([range(each * number, each * (number + 1))]) for number in range(PATIENTS)]
    found: list[Tensor] = []
    with tempfile.TemporaryDirectory() as folder:
        files = TrainingFiles(Path(folder) / "ledger.jsonl", Path(folder) / "checkpoint")
        data = TrainingData(Records(inputs.flatten(0, 1), labels), holdings)
        train(plan, data, files, start=start, after_round=lambda _, messages: found.append(messages.clone() / CLIP))
    return torch.stack(found)


def named(inner: np.ndarray, mu: float, candidates: int, random: np.random.Generator) -> float:
    """Return how often the right one of so many candidates is named, in %, over `TRIALS` independent trials.

    Parameters
    ----------
    inner
        Inner products of the patients' gradients, in units of the clip, mean over rounds, shape (patient, patient).
    mu
        What all rounds together cost.
    candidates
        How many, drawn among the patients; any of them may be the one who took part.
    random
        Generator of all draws.
    """
    values, axes = np.linalg.eigh(mu**2 * inner)
    root = axes * np.sqrt(values.clip(min=0))
    noise = random.standard_normal((TRIALS, len(inner))) @ root.T
    chosen = random.permuted(np.tile(np.arange(len(inner)), (TRIALS, 1)), axis=1)[:, :candidates]
    trial, member = np.arange(TRIALS)[:, None], chosen[:, :1]
    likelihoods = mu**2 * (inner[member, chosen] - np.diag(inner)[chosen] / 2) + noise[trial, chosen]
    return 100 * float((likelihoods.argmax(axis=1) == 0).mean())


def worst(mu: float, candidates: int) -> float:
    """Return how often, in %, the right one of candidates is named whose gradients are at right angles at the clip."""
    value, _ = quad(lambda x: norm.pdf(x - mu) * ndtr(x) ** (candidates - 1), -10, 10 + mu, epsabs=1e-9, limit=200)
    return 100 * float(value)


def collect() -> pd.DataFrame:
    """Attack every training, and return one row for each number of candidates and epsilon."""
    rows = []
    for number, (name, training) in enumerate(TRAININGS.items()):
        each = gradients(training).double()
        inner = torch.einsum("rad,rbd->ab", each, each).numpy() / len(each)
        for candidates, epsilon in product(CANDIDATES, EPSILONS):
            mu = gaussian.mu(epsilon, DELTA)
            random = stream(SEED, Purpose.SAMPLING, number, candidates, round(epsilon))
            rows.append(
                {
                    "training": name,
                    "numbers": each.shape[2],
                    "candidates": candidates,
                    "epsilon": epsilon,
                    "named": named(inner, mu, candidates, random),
                    "worst": worst(mu, candidates),
                    "bound": 100 * (1 - gaussian.beta(1 / candidates, mu)),
                    "norm": math.sqrt(np.diag(inner).mean()),
                }
            )
            print(rows[-1], flush=True)
    return pd.DataFrame(rows)


def sheet(found: pd.DataFrame, made: tuple[str, ...]) -> Sheet:
    """Lay the table out."""
    lines = [
        (row["training"], str(row["candidates"]), f"{row['epsilon']:g}", f"{100 / row['candidates']:g}",
         f"{row['named']:.1f}", f"{row['worst']:.1f}", f"{row['bound']:.1f}")
        for row in found.to_dict("records")
    ]  # fmt: skip
    notes = (
        "How often the right candidate is named, in %. Measured: the best attack, on simulated patients. Worst "
        "candidates: gradients at right angles that reach the clip. At most: for every attack and all data.",
        f"{ROUNDS} rounds in which everybody takes part, clip {CLIP:g}; ε per patient, at δ = {DELTA:g}, against "
        f"somebody who sees a node's messages and knows everybody else. {TRIALS} trials: the standard error is at most "
        f"{50 / math.sqrt(TRIALS):.1f}.",
        *made,
    )
    columns = ("training", "candidates", "ε", "guessing", "measured", "worst candidates", "at most")
    return Sheet("The right one of several candidates", columns, tuple(lines), notes, names=1)


def figure(found: pd.DataFrame) -> Figure:
    """Draw how often the right candidate is named against epsilon."""
    with figure_style():
        drawn, panels = panel_grid(len(CANDIDATES), len(CANDIDATES), 3.4)
        for panel, candidates in zip(panels, CANDIDATES, strict=True):
            own = found[found["candidates"] == candidates]
            of_one = own[own["training"] == next(iter(TRAININGS))]
            panel.plot(of_one["epsilon"], of_one["bound"], **line_look(0), label="at most, for every attack")
            panel.plot(of_one["epsilon"], of_one["worst"], **line_look(1), label="worst candidates")
            for number, name in enumerate(TRAININGS):
                line = own[own["training"] == name]
                panel.plot(line["epsilon"], line["named"], **line_look(2 + number), label=f"measured: {name}")
            panel.axhline(100 / candidates, color="#999999", linestyle=":", label="guessing")
            panel.set_xscale("log")
            panel.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
            panel.minorticks_off()
            panel.set_ylim(0, 103)
            panel.set_xlabel("ε")
            panel.set_title(f"one of {candidates} candidates", loc="left")
        panels[0].set_ylabel("right one named, in %")
        set_title(drawn, "Naming the right candidate from all messages of a training")
        meaning = f"Simulated patients; ε per patient, at δ = {DELTA:g}; {ROUNDS} rounds with everybody."
        set_legend(drawn, panels, wrapped(meaning, SMALL, 0.97 * WIDTH))
    return drawn


def main() -> None:
    """Attack, and write table and figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    found, made = collect(), origin(*declared())
    write_table(given.output / "candidates", found, sheet, made, float_format="%.4g")
    save_svg(figure(found), given.output / "candidates.svg")


if __name__ == "__main__":
    main()
