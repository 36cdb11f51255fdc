"""Measure the effect of rounded updates and missing nodes on accuracy, and of missing nodes on epsilon.

Eleven hospitals with simulated patients train the complex network. All rows of the tables use the same seeds. The
simulation draws, clips and records every node's message and adds its noise. The message is encoded into the bytes that
travel between sites (`zetadp.federation.flower.protocol`), and the server's step averages it. Only the transport is
left out. A test checks that the result equals the coordinator's model, bit for bit.

In a random share of the rounds a fixed group of nodes is missing, and the round continues without them (``missing:
continue``). With ``missing: wait``, model and epsilons are those of the row without missing nodes. Epsilon is computed
from the coordinator's ledger, in two cases. In the first, the coordinator knew that the nodes were missing and
requested nothing. In the second, it requested a release, and the nodes released, but the message was lost. Each such
release counts twice.

    python benchmarks/updates.py
    python benchmarks/updates.py --output FOLDER   # stores cohort and runs, and continues from them
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch

from zetadp.core.assembly import Assembly
from zetadp.core.evaluation import watched
from zetadp.core.plan import UPDATES, NodeConstants, Plan, RunName
from zetadp.core.records import Node, Records, items_of
from zetadp.core.round import Site, do_round
from zetadp.core.settings import OptimiserSettings, TrainingSettings
from zetadp.core.task import task_of
from zetadp.federation.flower.protocol import decode, encode
from zetadp.mri.decathlon import SEQUENCES
from zetadp.mri.fourier import to_kspace
from zetadp.mri.slicing import centre_slices, resize_area
from zetadp.mri.whitening import whiten
from zetadp.nn.models import NetworkSettings
from zetadp.phantom.cohort import PhantomSettings, simulate_patient
from zetadp.privacy.calibration import noise_for_epsilon
from zetadp.privacy.events import histories
from zetadp.privacy.exposure import Run
from zetadp.privacy.ledger import Ledger
from zetadp.privacy.statement import Terms, run_statement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from zetadp.privacy.events import Round

NODES, POPULATION, EXPECTED = 11, 12, 6
TEST_PATIENTS, SLICES, SIZE = 48, 10, 32
ROUNDS, EPSILON, DELTA = 150, 8.0, 1e-3
NETWORK = NetworkSettings(widths=(8, 16, 32), convolutions=1, head="pooled", groups=4)
COHORT = PhantomSettings(train_patients=NODES * POPULATION, test_patients=TEST_PATIENTS, seed=2028)
ABSENCE_SEED = 7_000_000
"""Seed for the missing nodes, together with the seed of the run."""


@dataclass(frozen=True)
class Case:
    """One row of the tables.

    Attributes
    ----------
    epsilon
        ``8`` or ``inf``.
    update
        Number format of updates.
    away
        Number of nodes that are missing in some rounds.
    share
        Share of the rounds in which they are missing.
    """

    epsilon: str
    update: str = "float32"
    away: int = 0
    share: float = 0.0

    @property
    def label(self) -> str:
        """Name of the row in the file of runs."""
        return f"eps-{self.epsilon} {self.update} {self.away} away in {self.share:g}"

    @property
    def words(self) -> str:
        """Name of the row in the tables."""
        noise = "epsilon 8" if self.epsilon == "8" else "no noise"
        who = f", {self.away} of {NODES} away in {100 * self.share:.0f} % of the rounds" if self.away else ""
        return f"{noise}, `{self.update}`{who}"


TASK = {"name": "brain_sequences", "slices": SLICES, "size": SIZE}
PRECISION = [Case(epsilon, update) for epsilon in ("8", "inf") for update in UPDATES]
MISSING = [Case("8", away=1, share=0.3), Case("8", away=3, share=0.3), Case("8", away=3, share=1.0)]


def cohort(folder: Path) -> tuple[Records, Records]:
    """Return k-space of training and test patients. It is stored in a file, because the simulation takes minutes."""
    path = folder / "cohort.npy"
    if not path.exists():
        volumes = (simulate_patient(COHORT, number).volume for number in range(1, COHORT.patients + 1))
        slices = [volume[:, :, centre_slices(volume.shape[2], SLICES)].transpose(3, 2, 0, 1) for volume in volumes]
        np.save(path, whiten(to_kspace(resize_area(np.stack(slices).astype(np.float32), SIZE))))
    values = torch.from_numpy(np.load(path)).flatten(1, 2)
    labels = torch.arange(len(SEQUENCES)).repeat_interleave(SLICES)
    parts = values.unsqueeze(2).split([COHORT.train_patients, COHORT.test_patients])
    train_records, test_records = (Records.stacked(part, labels) for part in parts)
    return train_records, test_records


def units(node: int, population: int = POPULATION) -> list[list[int]]:
    """Return the items of each patient of a node. Records are in the order of the nodes."""
    return items_of([(node * population + i,) for i in range(population)], len(SEQUENCES) * SLICES)


def plan_of(case: Case, seed: int) -> Plan:
    """Return the plan that all sites would agree on."""
    sigma = noise_for_epsilon(EPSILON, DELTA, EXPECTED / POPULATION, ROUNDS) if case.epsilon != "inf" else 0.0
    optimiser = OptimiserSettings(learning_rate=0.01)
    return Plan(
        run=RunName("complex", "federated", case.epsilon, seed),
        cohort="phantom-updates",
        network=NETWORK,
        training=TrainingSettings(rounds=ROUNDS, images_per_patient=4, optimiser=optimiser),
        task=TASK,
        nodes=tuple(NodeConstants(f"node-{n + 1:02d}", POPULATION, EXPECTED, sigma) for n in range(NODES)),
        update=case.update,
    )


def train(plan: Plan, records: Records, away: Sequence[set[str]], folder: Path, chunk: int | None = None) -> nn.Module:
    """Train as the coordinator does with ``missing: continue``, without the transport.

    Parameters
    ----------
    plan
        The plan. Patients are in the order of the nodes.
    records
        Items of all training patients, one record each.
    away
        The missing nodes of each round.
    folder
        Folder for the nodes' ledger.
    chunk
        Largest number of images in one pass.
    """
    parts = Assembly.of(plan, records)
    server, dimension = parts.receiver(), parts.phase.dimension
    with Ledger(folder / "ledger.jsonl") as ledger:
        ledger.start({})
        each, nodes, first = len(records.inputs) // sum(node.population for node in plan.nodes), [], 0
        for planned in plan.nodes:
            own = items_of([(first + i,) for i in range(planned.population)], each)
            nodes.append(Node(parts.mechanism(planned.name, plan.entropy(), ledger), own))
            first += planned.population
        site = Site(nodes, records, ledger, chunk=chunk)
        for number in range(plan.training.rounds):
            messages, _ = do_round(parts.phase, site, number)
            arrived = [
                decode(encode(message, plan.update), dimension, plan.update)
                for planned, message in zip(plan.nodes, messages, strict=True)
                if planned.name not in away[number]
            ]
            server.step(torch.stack(arrived), number)
    return parts.phase.model


def absences(case: Case, seed: int) -> list[set[str]]:
    """Return the missing nodes of each round. The rounds are the same for every number of missing nodes."""
    generator = np.random.default_rng([ABSENCE_SEED, seed])
    gone = {f"node-{NODES - n:02d}" for n in range(case.away)}
    return [gone if draw < case.share else set() for draw in generator.random(ROUNDS)]


def account(plan: Plan, away: Sequence[set[str]], *, asked: bool) -> list[Round]:
    """Return the coordinator's ledger: one event for each requested release, and two if its message was lost."""
    events = []
    for number, gone in enumerate(away):
        for node in plan.nodes:
            times = (2 if asked else 0) if node.name in gone else 1
            events += [plan.event(node.name, number)] * times
    seen = {event.node for event in events}
    return events + [plan.event(node.name, 0) for node in plan.nodes if node.name not in seen] * 2


def epsilons(plan: Plan, events: Sequence[Round]) -> dict[str, float]:
    """Return epsilon against each audience, for the patient with the largest epsilon."""
    found = histories(events)
    statement = run_statement(
        Run("run", found, plan.training.rounds),
        Terms(DELTA, "patient", "os"),
        weights=dict.fromkeys(found, 1.0),
        target_epsilon=EPSILON,
    )
    return {audience: float(said["epsilon"]) for audience, said in statement["audiences"].items()}


def measured(cases: Sequence[Case], seeds: int, folder: Path) -> pd.DataFrame:
    """Return the test accuracy of every case and seed. Runs that are already in the folder are not repeated."""
    path = folder / "runs.csv"
    rows = pd.read_csv(path).to_dict("records") if path.exists() else []
    done = {(row["case"], row["seed"]) for row in rows}
    train_records, test_records = cohort(folder)
    for seed in range(seeds):
        for case in cases:
            if (case.label, seed) in done:
                continue
            begun = time.perf_counter()
            with tempfile.TemporaryDirectory() as name:
                model = train(plan_of(case, seed), train_records, absences(case, seed), Path(name))
            accuracy, loss = watched(task_of(TASK), model, test_records)
            rows.append({"case": case.label, "seed": seed, "accuracy": 100 * accuracy, "loss": loss})
            pd.DataFrame(rows).to_csv(path, index=False)
            print(
                f"{case.label}, seed {seed}: {100 * accuracy:.2f} % ({time.perf_counter() - begun:.0f} s)", flush=True
            )
    return pd.DataFrame(rows)


def print_accuracies(title: str, cases: Sequence[Case], rows: pd.DataFrame) -> None:
    """Print mean and spread, and the difference from the first case of the same epsilon, paired by seed."""
    print(f"\n| {title} | accuracy, % (each seed) | beside `float32` with all nodes, points (each seed) |")
    print("|:--|--:|--:|")
    table = rows.pivot_table(index="seed", columns="case", values="accuracy", sort=False)
    for case in cases:
        own, change = table[case.label].dropna(), (table[case.label] - table[Case(case.epsilon).label]).dropna()
        text = "" if case == Case(case.epsilon) else _summary(change, "+.1f")
        print(f"| {case.words} | {_summary(own, '.1f')} | {text} |")


def _summary(values: pd.Series, form: str) -> str:
    spread = f" ± {values.std():.1f}" if len(values) > 1 else ""
    return f"{values.mean():{form}}{spread} ({', '.join(f'{value:{form}}' for value in values)})"


def print_epsilons(cases: Sequence[Case]) -> None:
    """Print epsilon against each audience, for both kinds of absence."""
    print(f"\n| epsilon at delta {DELTA:g} | server | one other node | reader of all models |\n|:--|--:|--:|--:|")
    for case in cases:
        plan, away = plan_of(case, 0), absences(case, 0)
        for asked in (False, True) if case.away else (False,):
            said = "released, and the message was lost" if asked else "released nothing then"
            name = f"{case.words.split(', ')[-1]}; {said}" if case.away else "all nodes in every round"
            found = epsilons(plan, account(plan, away, asked=asked))
            line = " | ".join(f"{found[audience]:.2f}" for audience in ("server", "node", "reader"))
            print(f"| {name} | {line} |")


def main() -> None:
    """Print the three tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="runs of every line (%(default)s)")
    parser.add_argument("--output", type=Path, help="folder for cohort and runs (default: do not store them)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = given.output or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        rows = measured([*PRECISION, *MISSING], given.seeds, folder)
    print_accuracies("precision of updates", PRECISION, rows)
    print_accuracies("`missing: continue`", [Case("8"), *MISSING], rows)
    print_epsilons([Case("8"), *MISSING])


if __name__ == "__main__":
    main()
