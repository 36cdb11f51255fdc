"""Sections of the configuration, but those on networks. Other packages have the settings of their parts."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Annotated, Any, Literal, cast

from zetadp.account.declaration import Limit
from zetadp.accounting.threat import MASKED_SUMS, NOISE_SOURCES, NoiseSource, Sums, Threat
from zetadp.base.epsilon import CONSENT, Delta, Target
from zetadp.base.reading import read
from zetadp.base.usercode import user_code
from zetadp.base.validation import Count, Filled, NotNegative, OneOf, Positive, Seed, Spelled, UserError, Within
from zetadp.phantom.settings import Simulated
from zetadp.training.settings import MOST_ROUNDS, Patience
from zetadp.training.task import Task, settings_class, task_of

FileName = Annotated[str, Spelled("[A-Za-z0-9][A-Za-z0-9_.-]*")]
Key = Annotated[str, Spelled("[A-Za-z][A-Za-z0-9_]*")]
Names = Annotated[list[str], Filled()]


@dataclass(frozen=True)
class TaskSection:
    """The task that networks learn.

    Attributes
    ----------
    name
        brain_sequences, or a task that an installed package brings with its rules (docs/tasks.md).
    settings
        The task's own settings, which its page in docs lists; those of brain_sequences are under task.settings.
    """

    name: Annotated[str, Spelled("[a-z][a-z0-9_]*")] = "brain_sequences"
    settings: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def chosen(self) -> Task:
        """The task with these settings; raise `UserError` if it does not exist or refuses them."""
        if settings_class(self.name) is None:
            return task_of({"name": self.name, **self.settings})
        task, faults = self.checked
        if faults:
            raise UserError(" ".join(faults))
        return cast("Task", task)

    @cached_property
    def checked(self) -> tuple[object, list[str]]:
        """The task, and what its own class finds wrong with its settings; nothing is wrong if it is not a dataclass."""
        kind = settings_class(self.name)
        if kind is None:
            return None, []
        failed = f"task: Expected a task {self.name} with settings of plain types, as JSON has them, found an error: "
        with user_code(failed, " Correct its package, or ask its author."):
            task, _, faults = read(kind, self.settings, "task.settings")
            if not faults:
                json.dumps(asdict(cast("Any", task)))  # as plans hold it
        return task, faults

    @property
    def planned(self) -> dict[str, Any]:
        """The task as a plan names it: with its defaults, without the settings of stages before training."""
        kind = settings_class(self.name)
        if kind is None:
            return {"name": self.name, **self.settings}
        content = json.loads(json.dumps(asdict(cast("Any", self.chosen))))
        before = getattr(kind, "before_training", ())
        names = [item.name for item in fields(kind) if item.init and item.name not in before]
        return {"name": self.name, **{name: content[name] for name in names}}


@dataclass(frozen=True)
class CohortSection:
    """The patients, and facts about them.

    Attributes
    ----------
    name
        Stands for the patients. Ledgers, and the total privacy cost of every run ever made, are kept under this name;
        other patients need another name. Names that begin with phantom are reserved for source simulated.
    source
        simulated (a cohort grown from anatomy and signal equations), download (from the official address; for brain
        sequences Task01_BrainTumour of the Medical Segmentation Decathlon) or folder (one you have).
    folder
        With source folder, the folder of the data; for brain sequences the one that holds dataset.json.
    train_patients
        Declared number of training patients (records, where the unit is the record); a public constant.
    test_patients
        Declared number of test patients; a public constant.
    real_patients
        Whether the volumes are of real people, who require privacy.noise os. null means yes for download and folder, no
        for simulated. A folder of simulated volumes must say false; its results are then called simulated.
    unit
        Unit that the guarantee protects: a patient, a speaker (the same, for spoken words) or a record. For data that
        are not simulated, patient and speaker need patient_key or one_record_per_patient.
    patient_key
        Table (tab-separated, columns file and patient) that says which records belong to one person; zetadp convert
        writes it as patient_key.tsv.
    one_record_per_patient
        Declares that no two records of the cohort are of one person. Nothing can check it.
    simulated
        The simulated cohort; used where source is simulated.
    """

    name: FileName
    source: Annotated[str, OneOf(("simulated", "download", "folder"))]
    train_patients: Count
    test_patients: Count
    folder: str | None = None
    real_patients: bool | None = None
    unit: Literal["patient", "speaker", "record"] = "record"
    patient_key: str | None = None
    one_record_per_patient: bool = False
    simulated: Simulated = field(default_factory=Simulated)

    @property
    def patients(self) -> dict[str, int]:
        """The declared numbers of patients."""
        return {"train": self.train_patients, "test": self.test_patients}

    @property
    def real(self) -> bool:
        """Whether somebody must be protected: as declared; by default, everybody but in simulated cohorts."""
        return self.source != "simulated" if self.real_patients is None else self.real_patients


@dataclass(frozen=True)
class Arm:
    """How the training patients are held, and against whom they are protected.

    Attributes
    ----------
    expected_patients
        Expected number of patients in a round at each node, R; the sampling probability is R divided by the node's
        number of patients.
    threat
        local (every node holds its own patients and hides its own message, from the server too), central (one trusted
        holder of all training patients), or masked_sums (nodes add less noise each, because masks hide every message
        and only the sum can be read; docs/privacy.md). null means central for the arm called central, local for
        others.
    sums
        Assumptions of masked sums; with threat masked_sums only.
    rounds
        Rounds; either this or epochs.
    epochs
        Passes over a node's patients; gives rounds = epochs * N / R for the node of median size.
    """

    expected_patients: Positive
    threat: Threat | None = None
    sums: Sums | None = None
    rounds: Annotated[int, Within(ge=1, le=MOST_ROUNDS)] | None = None
    epochs: Annotated[float, Within(gt=0, le=MOST_ROUNDS)] | None = None

    def __post_init__(self) -> None:
        """Check that the number of rounds is given once, and sums where they are masked alone."""
        if (self.rounds is None) == (self.epochs is None):
            raise ValueError("expected exactly one of rounds and epochs.")
        if self.sums is not None and self.threat != MASKED_SUMS:
            raise ValueError(f"expected sums only with threat {MASKED_SUMS}; found it without. Leave it out.")


@dataclass(frozen=True)
class Privacy:
    """The guarantee that runs are calibrated to.

    Attributes
    ----------
    delta
        The delta of (epsilon, delta).
    noise
        seeded is reproducible and protects nobody; statements then call the run simulated. os is exact integer noise
        from the operating system's generator, which real patients require.
    cap
        The most that all runs ever made on the cohort together may cost one patient (one record if cohort.unit is
        record), as epsilon at privacy.delta. A run that would exceed it is refused before anything is released. null
        sets no cap.
    trainings
        Permitted number of runs on real patients, those recorded in the cohort's ledgers included. Each of them costs
        the same patients again, so more than one must be declared here.
    without_noise
        Consent to runs on real patients with epsilon inf or unclipped, as the sentence I know that this protects
        nobody. null refuses such runs.
    finish_seconds
        With noise os and real patients, a run ends at a whole multiple of this number of seconds after its start,
        because its duration reveals how many patients were drawn. The wait is at most 5 seconds if every patient takes
        part in every round.
    """

    delta: Delta = 0.001
    noise: Annotated[NoiseSource, OneOf(NOISE_SOURCES)] = NoiseSource.SEEDED
    cap: Positive | None = None
    trainings: Count = 1
    without_noise: str | None = None
    finish_seconds: Count = 600

    def __post_init__(self) -> None:
        """Check the consent."""
        object.__setattr__(self, "noise", NoiseSource(self.noise))
        if self.without_noise not in {None, CONSENT}:
            raise ValueError(f"Expected without_noise to be the sentence '{CONSENT}', found {self.without_noise!r}.")

    @property
    def seeded(self) -> bool:
        """Whether noise follows from a seed, so that runs can be repeated and protect nobody."""
        return self.noise == NoiseSource.SEEDED

    @property
    def limit(self) -> Limit | None:
        """The limit on everything together; None without one."""
        return None if self.cap is None else Limit(float(self.cap), self.delta)


@dataclass(frozen=True)
class Federation(Patience):
    """Limits of the federation of engine flower; on separate machines, the sites' own settings have these keys.

    Attributes
    ----------
    answer_seconds
        Nodes answer at whole multiples of this number of seconds, because the time of a round reveals how many
        patients were drawn. It must exceed the longest time of a round, and zero for real patients.
    """

    answer_seconds: NotNegative = 10


@dataclass(frozen=True)
class Block:
    """A block of the grid: every combination of its lists.

    Attributes
    ----------
    networks
        Names from networks.
    arms
        Names from arms.
    epsilons
        Target epsilons; inf clips without noise, unclipped does neither.
    seeds
        Seeds.
    """

    networks: Names
    arms: Names
    epsilons: Annotated[list[Target], Filled()]
    seeds: Annotated[list[Seed], Filled()]
