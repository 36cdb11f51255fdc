"""The configuration of an experiment: its sections, its runs, and the plan of each run."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from statistics import median
from typing import Annotated, Any

from zetadp.account.declaration import Series
from zetadp.accounting.threat import CENTRAL_HOLDER, MASKED_SUMS, Sums, Threat
from zetadp.audit.settings import Audit
from zetadp.base.epsilon import rounded_up
from zetadp.base.reading import schema_of
from zetadp.base.runfolder import RunName
from zetadp.base.validation import Count, Device, Filled, OneOf, UserError, counted
from zetadp.config.networks import EVERYBODY, Network, Training
from zetadp.config.sections import Arm, Block, CohortSection, Federation, FileName, Key, Privacy, TaskSection
from zetadp.nn.settings import DESCENT, MIXED_ROWS
from zetadp.training.partition import PartitionSettings, node_name, node_sizes
from zetadp.training.plan import NodeConstants, Plan
from zetadp.training.settings import IMAGE, MixingSettings, Performance, TrainingSettings
from zetadp.training.task import settings_class


@dataclass(frozen=True)
class Config:
    """Configuration of the zetadp workflow.

    Attributes
    ----------
    name
        Name of the experiment; its results go to results/<name>.
    cohort
        The patients, and facts about them.
    networks
        Networks by name.
    arms
        How the training patients are distributed, and against whom they are protected, by name. The arm called central
        has one holder unless its threat is another.
    runs
        The grid, as blocks; each block is every combination of its lists.
    task
        The task that networks learn.
    shards
        Jobs that a data stage is cut into.
    partition
        Which patient is at which node.
    training
        Settings of training.
    device
        auto takes a CUDA device where there is one.
    privacy
        The guarantee that runs are calibrated to.
    engine
        simulation trains all nodes in one process. flower trains the federated runs as a real federation of separate
        processes on this machine, over TLS (docs/federation.md); it requires privacy.noise os.
    federation
        Limits of the federation of engine flower; on separate machines, the sites' own settings have these keys.
    audit
        Attacks on the shipped code; they simulate their own patients and never touch the cohort.
    """

    name: FileName
    cohort: CohortSection
    networks: Annotated[dict[Key, Network], Filled()]
    arms: Annotated[dict[Key, Arm], Filled()]
    runs: Annotated[list[Block], Filled()]
    task: TaskSection = field(default_factory=TaskSection)
    shards: Count = 16
    partition: PartitionSettings = field(default_factory=PartitionSettings)
    training: Training = field(default_factory=Training)
    device: Device = "auto"
    privacy: Privacy = field(default_factory=Privacy)
    engine: Annotated[str, OneOf(("simulation", "flower"))] = "simulation"
    federation: Federation = field(default_factory=Federation)
    audit: Audit = field(default_factory=Audit)

    @cached_property
    def run_names(self) -> list[RunName]:
        """Every run of the grid once, in a fixed order."""
        return runs_of(self.runs)

    @property
    def hospital_sizes(self) -> list[int]:
        """The declared number of training patients of each hospital, which is the same for all arms."""
        return node_sizes(self.partition, self.cohort.train_patients, self.cohort.simulated.scanner_patients)

    @property
    def images_of_a_patient(self) -> int:
        """The declared number of images of a record; raise `UserError` for a task without such a number."""
        images = getattr(self.task.chosen, "items_of_a_record", None)
        if images is None:
            raise UserError(
                f"Expected patient for task {self.task.name}, which declares no number of items of a patient.", "unit"
            )
        return int(images)

    @property
    def simulated(self) -> bool:
        """Whether the patients are simulated.

        They are if nobody in the cohort is real. Public data of real people whom nobody must protect, such as
        handwritten digits, are not: their task has ``of_patients = False``, or they come by download.
        """
        cohort = self.cohort
        if cohort.real or cohort.source != "folder":
            return cohort.source == "simulated"
        return bool(getattr(self.task.chosen, "of_patients", True))

    def threat(self, arm: str) -> Threat:
        """Return the threat model of an arm: as declared, or by default central for the arm ``central``, else local."""
        return self.arms[arm].threat or ("central" if arm == CENTRAL_HOLDER else "local")

    def node_sizes(self, arm: str) -> list[int]:
        """Return the declared number of training patients of each node of an arm."""
        return [self.cohort.train_patients] if self.threat(arm) == "central" else self.hospital_sizes

    def training_of(self, network: str) -> Training:
        """Return the training settings of a network: the general ones, replaced by its own where it has some."""
        return self.networks[network].all_training(self.training)

    def performance(self, network: str) -> Performance:
        """Return the settings that change the speed of a network's training and not its result."""
        how = self.training_of(network)
        return Performance(how.evaluate_every, how.checkpoint_seconds, how.chunk)

    def faults_of_plans(self) -> list[str]:
        """Return every fault of the grid's plans once, with its key and one run that has it."""
        runs_by_fault: dict[str, RunName] = {}
        for run in self.run_names:
            try:
                self.plan(run)
            except (UserError, ValueError) as error:
                runs_by_fault.setdefault(f"{self._path(run, getattr(error, 'key', ''))}: {error}", run)
        return [f"{fault} (network {run.network} in arm {run.arm})" for fault, run in runs_by_fault.items()]

    def _path(self, run: RunName, key: str) -> str:
        """Return the path of the key in the configuration that sets a setting of a run's plan."""
        network, arm = self.networks[run.network], self.arms[run.arm]
        if key == "expected":  # with mixed rows, those in a row
            key = "degree" if network.estimator == MIXED_ROWS else "expected_patients"
        if key in ("rows", "degree"):
            return f"networks.{run.network}.training.mixing.{key}"
        if key in network.training:
            return f"networks.{run.network}.training.{key}"
        if hasattr(self.training, key):
            return f"training.{key}"
        if key == "delta":
            return "privacy.delta"
        if key == "rounds" and arm.rounds is None:
            return f"arms.{run.arm}.epochs"
        section, owner = (f"arms.{run.arm}", arm) if hasattr(arm, key) else (f"networks.{run.network}", network)
        return f"{section}.{key}" if key and hasattr(owner, key) else section

    @cached_property
    def _plans(self) -> dict[RunName, Plan]:
        return {}

    def plan(self, run: RunName) -> Plan:
        """Return the plan of a run, before its noise is known.

        The number of rounds is the given one, or epochs * N / R for the node of median size, with N patients of whom R
        are expected in a round. If single images are drawn, the plan's numbers count images: each patient counts as all
        of the patient's images in a population, and as ``images_per_patient`` among the expected. An estimator in
        closed form has one round of all patients. Mixed rows have one round, and the expected number is that of
        patients in a row, which is the degree of mixing.
        """
        if run not in self._plans:
            self._plans[run] = self._planned(run)
        return self._plans[run]

    def _planned(self, run: RunName) -> Plan:
        network, arm = self.networks[run.network], self.arms[run.arm]
        sizes, threat, overrides = self.node_sizes(run.arm), self.threat(run.arm), network.training
        single_round = network.estimator != DESCENT
        everybody = single_round or overrides.get("participation") == EVERYBODY
        patients_of_round = float(overrides.get("expected_patients", arm.expected_patients))
        expected = [float(size) if everybody else patients_of_round for size in sizes]
        rounds = 1 if single_round else overrides.get("rounds", arm.rounds)
        if rounds is None:
            assert arm.epochs is not None
            rounds = max(1, round(float(arm.epochs) * median(sizes) / median(expected)))
        how, mixing = self.training_of(run.network), None
        if network.estimator == MIXED_ROWS:
            mixing, expected = self._mixed(run, sizes)
        training = TrainingSettings(
            rounds=int(rounds),
            images_per_patient=how.images_per_patient,
            optimiser=how.optimiser_settings,
            clip=how.clip,
            noise=self.privacy.noise,
            estimator=network.estimator,
            feature_norm=overrides.get("feature_norm", TrainingSettings.feature_norm),
            mixing=mixing,
            mechanism=how.mechanism,
        )
        unit, images = how.unit, 1
        if unit == IMAGE:
            images = self.images_of_a_patient
            if (wanted_images := training.images_per_patient) > images:
                raise UserError(
                    f"Expected at most the {images} images of a patient, found {wanted_images}.", "images_per_patient"
                )
            sizes = [size * images for size in sizes]
            expected = [patients * training.images_per_patient for patients in expected]
        names = [CENTRAL_HOLDER] if threat == "central" else [node_name(number) for number in range(len(sizes))]
        return Plan(
            run=run,
            network=network.settings,
            training=training,
            nodes=tuple(map(NodeConstants, names, sizes, expected)),
            delta=self.privacy.delta,
            cohort=self.cohort.name,
            cohort_unit=self.cohort.unit,
            task=self.task.planned,
            partition={**vars(self.partition), "sizes": self.hospital_sizes},
            unit=unit,
            units_of_a_person=images,
            threat=threat,
            sums=(arm.sums or Sums()) if threat == MASKED_SUMS else None,
            simulated=not self.cohort.real,
        )

    def _mixed(self, run: RunName, sizes: Sequence[int]) -> tuple[MixingSettings, list[float]]:
        """Return how the rows of a run are mixed, and the expected number of patients in a row of each node."""
        from zetadp.own.rows import mixed_as  # takes long to import

        mixing = self.networks[run.network].training.get("mixing", {})
        rows, expected = mixed_as(
            run.target.epsilon,
            self.privacy.delta,
            sizes,
            rows=mixing.get("rows"),
            degree=mixing.get("degree"),
            active=mixing.get("active", MixingSettings.active),
        )
        others: dict[str, Any] = {key: value for key, value in mixing.items() if key not in ("rows", "degree")}
        return MixingSettings(rows, **others), expected

    @cached_property
    def private_plans(self) -> list[Plan]:
        """The plans of the runs with noise, before their noise is known."""
        return [plan for plan in map(self.plan, self.run_names) if plan.target.private]

    @property
    def series(self) -> Series | None:
        """The runs with noise, which are declared together; None without any.

        Their losses compose, where runs that were chosen after results need a filter. The experiment's name, by which
        ledgers are called, is declared too: under another name, equal plans are other runs.
        """
        plans = [plan.to_json() for plan in self.private_plans]
        digest = hashlib.sha256(json.dumps([self.name, plans]).encode()).hexdigest()
        return Series(digest[:16], len(plans)) if plans else None

    @property
    def cost_shown(self) -> str:
        """The sum of the costs of all runs on real patients for one of them; empty without real patients."""
        runs = self.run_names
        if not self.cohort.real:
            return ""
        trainings = f"{counted(len(runs), 'training run')} on real patients (cohort {self.cohort.name})"
        epsilon = math.fsum(run.target.epsilon for run in runs)
        delta = len(runs) * self.privacy.delta
        cost = f"at most epsilon {rounded_up(epsilon)} at delta {rounded_up(delta)} for one {self.cohort.unit}"
        if not (math.isfinite(epsilon) and delta < 1):
            cost = "no guarantee at all"
        return (
            f"{trainings}: {cost}, all runs together and each made once. Earlier releases add to this: zetadp budget "
            "prints the total."
        )


def runs_of(blocks: Iterable[Block]) -> list[RunName]:
    """Return every run of some blocks once, in a fixed order."""
    return list(
        dict.fromkeys(
            RunName(*combination)
            for block in blocks
            for combination in product(block.networks, block.arms, block.epsilons, block.seeds)
        )
    )


def configuration_schema() -> dict[str, Any]:
    """Return the JSON schema of a configuration, in which the settings of a task are those of the default one."""
    schema, task_schema = deepcopy(schema_of(Config)), schema_of(settings_class(TaskSection.name))
    schema["$defs"] |= task_schema["$defs"]
    schema["$defs"]["TaskSection"]["properties"]["settings"]["properties"] = task_schema["properties"]
    return schema
