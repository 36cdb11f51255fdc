"""Measure the detection of left bundle branch block in patients of PTB-XL, by ten-fold cross-validation.

    python -m papers.complex_dp.measure_ecg --data FOLDER

FOLDER contains recordings as one array (ecg.md). Each of the ten folds of patients is the test fold once. The
areas of the folds are averaged, because scores of different models cannot be pooled. Networks are trained with the
settings of the scenario ecg.yaml and the library's plan, ledger and accounting, so every epsilon is the true one.
Writes table.csv and table.md.
"""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from papers.complex_dp.ecg.collection import collected, read_folder
from papers.complex_dp.ecg.encoder import BeatEncoder
from papers.complex_dp.ecg.recordings import FOLDS, spectrum
from papers.complex_dp.ecg.task import of_patients, replicates
from papers.complex_dp.roc import area
from papers.experiments import configuration, ended, parser_of, write_table
from zetadp.account.book import recorded_runs
from zetadp.accounting import composition
from zetadp.accounting.composition import compose
from zetadp.base.epsilon import Target, rounded_up
from zetadp.base.randomness import Purpose, stream
from zetadp.base.runfolder import RunName
from zetadp.base.tables import MISSING, Sheet
from zetadp.base.validation import UserError
from zetadp.config.experiment import Config
from zetadp.nn.models import build
from zetadp.report.provenance import origin, seeds_shown
from zetadp.training.checkpoint import RunFiles
from zetadp.training.evaluation import outputs_of
from zetadp.training.holders import LocalHolders
from zetadp.training.loop import train
from zetadp.training.metrics import LEVEL, percentile_interval
from zetadp.training.optimisers import recipe_of
from zetadp.training.plan import NodeConstants, Plan
from zetadp.training.promise import make_plan
from zetadp.training.records import LabelledItems
from zetadp.training.settings import OptimiserSettings

DELTA = 4.95e-4
EPSILON = 1.76
FORM = "filtered"
LEFT_OUT = ("287",)
"""Its label is LBBB, its report says right bundle branch block."""
PATIENTS = 176
SEEDS = range(5)
FEW = range(1)
SAMPLING, BATCH = 0.063, 64
METHODS: dict[str, tuple[str | None, str | None, range]] = {
    "head on public features": ("head", "1.76", SEEDS),
    "head on public features, ε = 0.5": ("head", "0.5", SEEDS),
    "head on public features, no noise": ("head", "inf", FEW),
    "public encoder alone, no patient seen": (None, None, FEW),
    "age alone": (None, None, FEW),
    "device alone": (None, None, FEW),
    "real-valued twin of the paper's network, on the signal": ("real", "1.76", FEW),
    "the paper's network and settings": ("mlp", "1.76", FEW),
    "the paper's network, its noise made right, ε = 1.5": ("mlp", "1.5", FEW),
    "the paper's network, the noise of its code, ε = 2.29": ("mlp", "2.29", FEW),
    "the paper's network, no noise": ("mlp", "inf", FEW),
    "the paper's network, as it trains without privacy": ("mlp", "unclipped", FEW),
}
"""Network of the scenario, epsilon and seeds of each method; None where nothing is trained privately."""


@dataclass(frozen=True)
class Patients:
    """Recordings of patients.

    Attributes
    ----------
    table
        One row per recording: patient, fold, age, scanner.
    labels
        Whether each shows LBBB.
    values
        Inputs of networks, by domain.
    public
        Score of each recording from the public encoder alone.
    """

    table: pd.DataFrame
    labels: np.ndarray
    values: dict[str, torch.Tensor]
    public: np.ndarray

    @classmethod
    def read(cls, folder: Path, encoder: BeatEncoder) -> Patients:
        """Read a folder, and refuse it if its patients differ from the declared patients."""
        recordings = [
            recording for recording in read_folder(folder) if recording.form == FORM and recording.name not in LEFT_OUT
        ]
        items = collected((recording, "") for recording in recordings)
        if (count := items.names["patient"].nunique()) != PATIENTS:
            raise UserError(f"Expected {PATIENTS} patients in {folder}, found {count}.")
        signals, beats, labels = items.arrays.values()
        waves = signals[:, None, None]
        values = {"spectrum": spectrum(waves), "signal": waves, "features": encoder.features(beats)}
        inputs = {domain: torch.from_numpy(array) for domain, array in values.items()}
        return cls(items.names, labels, inputs, encoder.scores(beats))

    @cached_property
    def folds(self) -> np.ndarray:
        """Fold of each recording."""
        return self.table["fold"].to_numpy()


@dataclass(frozen=True)
class Training:
    """Training on nine of the ten folds.

    Attributes
    ----------
    config
        The scenario.
    patients
        All patients.
    ledgers
        Folder of the ledgers.
    """

    config: Config
    patients: Patients
    ledgers: Path

    def plan(self, network: str, epsilon: str, seed: int, population: int, fold: int) -> Plan:
        """Return the plan of a run, as the scenario has it, for a fold's number of patients."""
        plan = self.config.plan(RunName(network, "central", Target.named(epsilon), seed))
        everybody = self.config.networks[network].training.get("participation") == "all"
        expected = float(population) if everybody else SAMPLING * population
        if not plan.target.clipped:
            expected, plan = BATCH, self.as_printed(plan, population)
        node = NodeConstants(plan.nodes[0].name, population, expected)
        plan = replace(plan, nodes=(node,), cohort=f"ptb-xl-without-fold-{fold}")
        return make_plan(plan)

    def as_printed(self, plan: Plan, population: int) -> Plan:
        """Return the paper's training without privacy: 100 epochs, rate 0.08, weight decay 0.005."""
        model = build(plan.network, 1, self.patients.values["spectrum"].shape[-1], stream(0, Purpose.WEIGHTS))
        steps = torch.optim.SGD(model.parameters(), lr=0.08, weight_decay=5e-3)
        rounds = round(100 * population / BATCH)
        optimiser = OptimiserSettings(recipe=recipe_of(model, steps, rounds=rounds))
        return replace(plan, training=replace(plan.training, rounds=rounds, optimiser=optimiser))

    def scores(self, network: str, epsilon: str, seed: int, fold: int) -> np.ndarray:
        """Train without a fold, and return the scores of its recordings."""
        inputs = self.patients.values[self.config.networks[network].domain]
        targets = torch.from_numpy(self.patients.labels.astype(np.float32))
        trained_on = self.patients.folds != fold
        table = self.patients.table[trained_on].reset_index(drop=True)
        records = LabelledItems(inputs[trained_on], targets[trained_on], items=table)
        units = records.units()
        plan = self.plan(network, epsilon, seed, len(units), fold)
        name = f"{network}-{epsilon}-{seed}-{fold}"
        files = RunFiles(self.ledgers / f"{name}.jsonl", self.ledgers / f"{name}.checkpoint")
        trained = train(LocalHolders(plan, records, [units]), files)
        files.finish()
        return np.asarray(outputs_of(trained.model, inputs[~trained_on])[:, 0].double())

    def of_one_patient(self, network: str, epsilon: str) -> tuple[float, float]:
        """Return epsilon of one training, and of the nine trainings that a patient takes part in, from the ledgers."""
        runs = [
            run
            for fold in range(1, FOLDS + 1)
            for run in recorded_runs(self.ledgers / f"{network}-{epsilon}-{SEEDS[0]}-{fold}.jsonl")
        ]
        spent = [node.mechanisms for run in runs for node in run.nodes.values()]
        # A patient takes part in nine of the ten trainings. Count the nine with the largest epsilons.
        costly = sorted(spent, key=lambda mechanisms_spent: composition.epsilon(mechanisms_spent, DELTA), reverse=True)
        return composition.epsilon(costly[0], DELTA), composition.epsilon(compose(*costly[: FOLDS - 1]), DELTA)


def simple(patients: Patients, column: str, fold: int) -> np.ndarray:
    """Return scores of a fold's recordings: the age, or the frequency of LBBB with the same device in other folds."""
    tested = patients.folds == fold
    if column == "age":
        return np.asarray(patients.table["age"][tested])
    others = pd.DataFrame({"device": patients.table["scanner"][~tested], "label": patients.labels[~tested]})
    # One patient of each label is added to every device, so that rare devices have little influence.
    counts = others.groupby("device")["label"].agg(["sum", "size"])
    share = (counts["sum"] + 1) / (counts["size"] + 2)
    return np.asarray(patients.table["scanner"][tested].map(share).fillna(0.5))


def measured(patients: Patients, scores: dict[int, np.ndarray]) -> tuple[list[float], np.ndarray]:
    """Return the area of each fold, and their mean in resamples of each fold's patients."""
    areas, replicas = [], []
    for fold, scores_of_fold in scores.items():
        rows = patients.folds == fold
        patients_scored = of_patients(
            patients.table["patient"][rows],
            pd.Series(scores_of_fold, index=patients.table.index[rows]),
            pd.Series(patients.labels[rows] == 1, index=patients.table.index[rows]),
        )
        values, labels = patients_scored["score"].to_numpy(), patients_scored["label"].to_numpy(dtype=bool)
        areas.append(area(values, labels))
        replicas.append(replicates(values, labels, stream(0, Purpose.BOOTSTRAP, fold)))
    return areas, np.mean(replicas, axis=0)


def lowest_of_all_right(patients: Patients) -> float:
    """Return the lower end of the interval if everybody is ranked correctly, so that all resamples are equal.

    The share of patients with LBBB who are ranked above everybody else is a binomial proportion, and all trials were
    successes (Clopper and Pearson). All other patients with LBBB are assumed to be ranked below everybody.
    """
    ill = patients.table["patient"][patients.labels == 1].nunique()
    return float(((1 - LEVEL) / 2) ** (1 / ill))


def row(training: Training, method: str) -> dict[str, Any]:
    """Return a method's line of the table."""
    network, epsilon, seeds = METHODS[method]
    patients = training.patients
    means, replicas, lowest = [], [], []
    for seed in seeds:
        scores = {}
        for fold in range(1, FOLDS + 1):
            if network is not None:
                scores[fold] = training.scores(network, str(epsilon), seed, fold)
            elif method in ("age alone", "device alone"):
                scores[fold] = simple(patients, method.split()[0], fold)
            else:
                scores[fold] = patients.public[patients.folds == fold]
        areas, resampled = measured(patients, scores)
        means.append(100 * float(np.mean(areas)))
        lowest.append(100 * min(areas))
        replicas.append(100 * resampled)
        print(f"{method}, seed {seed}: {means[-1]:.2f}", flush=True)
    low, high = percentile_interval(np.mean(replicas, axis=0))
    if min(means) == 100:
        low = 100 * lowest_of_all_right(patients)
    columns = {"method": method, "seeds": len(seeds), "mean": np.mean(means), "std": pd.Series(means).std()}
    columns |= {"ci_low": low, "ci_high": high, "lowest_fold": min(lowest)}
    spent = (math.nan, math.nan) if network is None else (math.inf, math.inf)
    if epsilon is not None and Target.named(epsilon).private:
        spent = training.of_one_patient(str(network), str(epsilon))
    return {**columns, "epsilon": spent[0], "epsilon_nine": spent[1]}


def sheet(frame: pd.DataFrame) -> Sheet:
    """Lay the table out, one line per method."""

    def text_of(epsilon: float) -> str:
        return (
            MISSING if math.isnan(epsilon) else Target(epsilon).short if math.isinf(epsilon) else rounded_up(epsilon, 3)
        )

    lines = tuple(
        (
            line["method"],
            f"{line['mean']:.2f}" + ("" if math.isnan(line["std"]) else f" ± {line['std']:.2f}"),
            f"{line['ci_low']:.2f} to {line['ci_high']:.2f}",
            f"{line['lowest_fold']:.1f}",
            text_of(line["epsilon"]),
            text_of(line["epsilon_nine"]),
        )
        for _, line in frame.iterrows()
    )
    notes = (
        "ROC-AUC in %, the mean over ten folds of patients; mean and standard deviation over seeds. Interval: 95%, "
        "bootstrap over the test patients of each fold and label, jointly over seeds. It knows nothing of how the "
        "models would vary with other training patients. Where all patients are ranked rightly, the lower end is the "
        "exact one of Clopper and Pearson for the share of patients with LBBB that are ranked above everybody else.",
        "Lowest fold: the smallest area of a fold and seed. The smallest fold has two patients with LBBB.",
        "ε is per patient at δ = 0.000495, for one training on nine folds. A patient is in nine of the ten trainings: "
        "whoever sees all models of one seed has the ε in the last column. Further seeds and rows add to it.",
        "Noise is seeded: it simulates the guarantee and protects nobody. Without noise there is no guarantee.",
        "The paper prints 92 % with and without noise, on its own cohort (CPSC 2018, 113 test recordings).",
    )
    headings = ("method", "ROC-AUC", "95% interval", "lowest fold", "ε of one training", "ε of nine")
    return Sheet("Left bundle branch block in PTB-XL, by ten folds", headings, lines, notes)


def main() -> None:
    """Train everything and write the table."""
    parser = parser_of(__doc__, "complex_dp/ecg")
    parser.add_argument("--data", type=Path, required=True, help="folder of recordings as one array")
    parser.add_argument("--encoder", type=Path, help="the scenario's encoder (default: train the same again)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    config = configuration("ecg")
    encoder = BeatEncoder.load(arguments.encoder) if arguments.encoder else BeatEncoder.fit()
    patients = Patients.read(arguments.data, encoder)
    cohort = f"ptb-xl, recordings of form {FORM}, {PATIENTS} patients in ten folds, not simulated"
    source = origin(cohort, seeds_shown(SEEDS))
    with tempfile.TemporaryDirectory() as folder:
        training = Training(config, patients, Path(folder))
        rows = []
        for method in METHODS:
            # Write the table after every method, because the last methods take longest.
            rows.append(row(training, method))
            frame = pd.DataFrame(rows)
            write_table(arguments.output / "table", frame, sheet(frame), source)


if __name__ == "__main__":
    ended(main)
