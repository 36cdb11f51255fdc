"""Compare activations of complex networks under differential privacy, at equal true epsilon, over ten seeds.

    python -m papers.complex_dp.compare_activations

needs the clips (speech_commands.md). The library trains a small complex network privately with each of thirteen
activations, on spoken words and on k-space. For each activation, all rates of `RATES` are tried on public simulations,
and the best rate is used for the ten seeds. A seed gives all activations the same split and the same first weights.
Each run is stored in results/activations, so that an interrupted comparison continues. Writes search.csv, scores.csv,
table.csv, order.csv, table.md and figure.svg.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch

from papers.complex_dp.activation_inputs import MOST_CLIPS, PATIENTS, SEED, brain_slices, spoken_words
from papers.complex_dp.ranking import figure, order, sheet, table
from papers.complex_dp.roc import macro_area
from papers.experiments import ended, parser_of, save_figure, write_table
from papers.keptruns import KeptRuns, environments
from papers.training import train_once
from zetadp.accounting import composition
from zetadp.accounting.kinds import NoisySum
from zetadp.base.epsilon import Target, rounded_up
from zetadp.base.runfolder import RunName
from zetadp.base.storage import write_text
from zetadp.nn.activations import ACTIVATIONS
from zetadp.nn.settings import NetworkSettings
from zetadp.report.provenance import origin, seeds_shown
from zetadp.report.rendering import to_csv
from zetadp.training.evaluation import outputs_of
from zetadp.training.plan import NodeConstants, Plan
from zetadp.training.promise import noise_of_plan
from zetadp.training.records import LabelledItems
from zetadp.training.settings import OptimiserSettings, TrainingSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from papers.complex_dp.activation_inputs import Items

RATES = (0.003, 0.01, 0.03, 0.1)
SEEDS = range(10)
TUNING_SEEDS = range(2)
CLIPS = Path("resources/speech-commands-clips")
KEPT = Path("results/activations")


@dataclass(frozen=True)
class Comparison:
    """One task on which activations are compared.

    Attributes
    ----------
    name, unit, metric
        What it is called, what is protected, and what is measured in %.
    epsilon, delta
        The guarantee of each unit.
    network
        The network, whose activation is replaced.
    training
        Rounds, items of a unit in a round, and clip.
    sampling_probability
        Chance of a unit to be drawn in a round.
    inputs
        Makes the public items and the others.
    """

    name: str
    unit: str
    metric: str
    epsilon: str
    delta: float
    network: NetworkSettings
    training: TrainingSettings
    sampling_probability: float
    inputs: Callable[[], tuple[Items, Items]]

    @cached_property
    def items(self) -> tuple[Items, Items]:
        """Return the public items and the others; they take minutes to make."""
        return self.inputs()

    def plan(self, run: Run, population: int) -> Plan:
        """Return the plan of a run, with the noise that its epsilon needs."""
        node = NodeConstants("holder", population, self.sampling_probability * population)
        network = replace(self.network, activation=run.activation)
        optimiser = OptimiserSettings(learning_rate=run.rate, drop_after=1.0)
        training = replace(self.training, optimiser=optimiser)
        name = RunName(run.activation, "central", Target.named(run.epsilon), run.seed)
        task = {"name": "classification", "classes": 8 if self.unit == "clip" else 4}
        plan = Plan(name, network, training, (node,), self.delta, f"activations-{self.name}-{run.data}", task)
        return plan.with_noise(_noise(self))


@dataclass(frozen=True)
class Run:
    """One run: the settings that identify it in `runs.csv`."""

    task: str
    data: str
    activation: str
    epsilon: str
    rate: float
    seed: int


def comparisons(clips: Path = CLIPS) -> tuple[Comparison, Comparison]:
    """Return both comparisons; the first reads spoken words from a folder."""
    return (
        Comparison(
            "speech",
            "clip",
            "AUC",
            "1.47",
            1e-5,
            NetworkSettings("dense", "spectrum", widths=(32, 16)),
            TrainingSettings(rounds=60, images_per_patient=1),
            0.1,
            lambda: spoken_words(clips),
        ),
        Comparison(
            "k-space",
            "patient",
            "accuracy",
            "8",
            1e-3,
            NetworkSettings("dense", "complex", widths=(16, 16)),
            TrainingSettings(rounds=20, images_per_patient=4),
            0.2,
            lambda: brain_slices(KEPT),
        ),
    )


@lru_cache
def _noise(comparison: Comparison) -> float:
    """Return the noise multiplier, which depends on the chance to be drawn and not on the population."""
    node = NodeConstants("holder", 1000, 1000 * comparison.sampling_probability)
    run = RunName("any", "central", Target.named(comparison.epsilon), 0)
    return noise_of_plan(Plan(run, comparison.network, comparison.training, (node,), comparison.delta))


def trained(comparison: Comparison, items: Items, run: Run) -> dict[str, float]:
    """Train once; return the score in % on those who only test, and epsilon by the run's ledger."""
    train_on, test_on = items.split(run.seed)
    targets = torch.from_numpy(items.labels)
    # A round takes equally many items of every class from a patient.
    strata = items.labels if comparison.unit == "patient" else np.zeros(len(items.labels), dtype=np.int64)
    records = LabelledItems(items.inputs[train_on], targets[train_on], strata[train_on])
    owners = items.people[train_on] if comparison.unit == "patient" else train_on
    units = [part.tolist() for part in np.split(np.arange(len(owners)), np.flatnonzero(owners[1:] != owners[:-1]) + 1)]
    plan = comparison.plan(run, len(units))
    result, spent = train_once(plan, records, units)
    outputs = outputs_of(result.model, items.inputs[test_on])
    labels = items.labels[test_on]
    if comparison.metric == "AUC":
        score = float(macro_area(labels, outputs.softmax(dim=1).double().numpy())[0])
    else:
        score = float((outputs.argmax(dim=1).numpy() == labels).mean())
    return {"spent": spent, "score": 100 * score}


def per_speaker(comparison: Comparison) -> float:
    """Return epsilon of the speaker with most clips, by group privacy."""
    mechanisms = {NoisySum(comparison.sampling_probability, _noise(comparison)): comparison.training.rounds}
    return composition.epsilon_group(mechanisms, comparison.delta, MOST_CLIPS)


def fill(store: KeptRuns[Run], comparison: Comparison) -> None:
    """Train every run of a comparison that is not there yet: first those on public items, whose scores choose rates."""
    for index in (0, 1):
        runs = compared(comparison, searched(store.read())) if index else tuning(comparison)
        for run in store.missing(runs):
            results = trained(comparison, comparison.items[index], run)
            store.add(run, **results)
            print(run, f"{results['score']:.2f}", flush=True)


def searched(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per task, activation and rate: the mean score on public items, and whether the rate is chosen."""
    public = runs[runs["data"] == "public"]
    scores = (
        public.sort_values("rate")
        .groupby(["task", "activation", "rate"], sort=False)["score"]
        .agg(mean="mean", seeds="size")
    )
    scores = scores.reset_index()
    best = scores.loc[scores.groupby(["task", "activation"], sort=False)["mean"].idxmax()].index
    return scores.assign(chosen=scores.index.isin(best))


def tuning(comparison: Comparison) -> Iterator[Run]:
    """Return all runs on public items: as many for every activation."""
    for seed in TUNING_SEEDS:
        for name in ACTIVATIONS:
            for rate in RATES:
                yield Run(comparison.name, "public", name, comparison.epsilon, rate, seed)


def compared(comparison: Comparison, search: pd.DataFrame) -> Iterator[Run]:
    """Return the runs that are compared, at the chosen rates."""
    chosen = search[search["chosen"] & (search["task"] == comparison.name)].set_index("activation")["rate"]
    for seed in SEEDS:
        for name in ACTIVATIONS:
            yield Run(comparison.name, "private", name, comparison.epsilon, float(chosen[name]), seed)


def main() -> None:
    """Train what is missing, and write tables and figure."""
    parser = parser_of(__doc__, "complex_dp/activations")
    parser.add_argument("--data", type=Path, default=CLIPS, help="folder of the clips (%(default)s)")
    parser.add_argument("--redraw", action="store_true", help="draw the figure alone, from the table in --output")
    arguments = parser.parse_args()
    if not arguments.redraw:
        torch.set_num_threads(1)
        store = KeptRuns(KEPT / "runs.csv", Run, "spent", "score")
        for comparison in comparisons(arguments.data):
            fill(store, comparison)
            write_tables(store.read(), arguments.output)
    save_figure(
        figure(pd.read_csv(arguments.output / "table.csv", comment="#", dtype={"epsilon": str})),
        arguments.output / "figure.svg",
    )


def write_tables(runs: pd.DataFrame, folder: Path) -> None:
    """Write the search, all scores, the table, and how its order agrees with the paper's, of all finished tasks."""
    search = searched(runs)
    rates = search[search["chosen"]].set_index(["task", "activation"])["rate"]
    chosen_rates = pd.Series(list(zip(runs["task"], runs["activation"], strict=True)), index=runs.index).map(rates)
    # Runs at a rate that is no longer chosen are left aside.
    runs = runs[(runs["data"] == "public") | (runs["rate"] == chosen_rates)]
    sizes = runs[runs["data"] == "private"].groupby("task").size()
    runs = runs[runs["task"].map(sizes) == len(ACTIVATIONS) * len(SEEDS)]
    speech = f"speech-commands, at most {MOST_CLIPS} clips of each of 236 speakers, not simulated"
    source = origin(f"{speech}; phantom, {PATIENTS} patients, seed {SEED}", seeds_shown(SEEDS), runs=environments(runs))
    scores = runs[runs["data"] == "private"].drop(columns=["data", "commit", "device", "cores"])
    frames = {
        "search": search[search["task"].isin(runs["task"])],
        "scores": scores,
        "table": table(scores),
        "order": order(scores),
    }
    for name in ("search", "scores", "order"):
        write_text(folder / f"{name}.csv", to_csv(frames[name], source, float_format="%.6g"))
    speech = next(comparison for comparison in comparisons() if comparison.unit == "clip")
    spent = f"ε per speaker, of at most {MOST_CLIPS} clips in speech: {rounded_up(per_speaker(speech), digits=3)}."
    write_table(folder / "table", frames["table"], sheet(frames["table"], frames["order"], spent), source)


if __name__ == "__main__":
    ended(main)
