"""Settings that each site decides for itself, from a YAML or JSON file of its own."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar, Self

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

from zetadp.account.attempts import made_model, read_ledger
from zetadp.account.budget import Cap
from zetadp.account.declaration import Series
from zetadp.account.offers import ANOTHER_NAME, plan_difference
from zetadp.base.epsilon import Delta
from zetadp.base.reading import read_file
from zetadp.base.validation import Checked, Count, Device, NotNegative, Positive, UserError, Within
from zetadp.hospitals.certificates import read_public_key
from zetadp.hospitals.roster import Roster, read_terms
from zetadp.training.plan import Plan
from zetadp.training.promise import OWN_DELTA
from zetadp.training.settings import Patience

LEAST_ANSWER_SECONDS = 0.1
"""Times of answers vary as much between machines and networks, so a shorter tick hides nothing."""


class SiteSettings(Checked):
    """Settings in a file that no other site can change."""

    SITE: ClassVar[str]
    """The site of the settings, for messages."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read settings from a YAML or JSON file; paths in it are relative to its folder.

        Raises
        ------
        UserError
            If the file cannot be read or has a key too many or too few.
        """
        return read_file(cls, path, cls.SITE)


@dataclass(frozen=True)
class HospitalSettings(SiteSettings):
    """Settings that a hospital decides for itself, in a file that no other site can change.

    Attributes
    ----------
    name
        The node's name in the plan.
    plan
        The hospital's copy of the plan, or with masked sums of the roster, which holds the plan.
    images
        Folder in the layout of the Medical Segmentation Decathlon with the patients of this hospital only.
    state
        Folder for the ledger, the stored messages and the prepared images. The ledger in it must never be deleted.
    one_record_per_patient
        True if no two records in ``images`` are of one person, so that no ``patient_key.tsv`` is needed there.
    attempts
        Number of permitted attempts, which each start from the first round. The same patients pay for every attempt.
    cap
        The largest epsilon that all runs recorded in the state folder together may cost a patient. The node refuses an
        attempt, or another release of a round, that would cross it. A plan that costs more than its own epsilon is
        always refused. Null sets no further limit.
    delta
        The delta at which the hospital judges what a plan costs, and of the cap, or the plan's if that is smaller. A
        larger delta makes every plan look cheap, so write more than 0.001 only if you know why.
    backbone
        File of the public backbone, where the plan names one; null takes the one that comes with the package.
    answer_seconds
        Answers leave at whole multiples of this number of seconds after the request, because the duration of a round
        reveals how many patients were drawn. Choose more than a round takes in which every patient is drawn.
    limit_seconds
        A longer computation ends the node's process, which a service manager starts again.
    device
        ``auto``, ``cpu`` or ``cuda``.
    threads
        Threads of PyTorch; null leaves the choice to PyTorch.
    chunk
        Images in one pass at most; null for as many as hold half a GiB, or 4 GiB on a GPU. Exact noise takes one
        patient a pass, or all of them (`zetadp.training.round`).
    simulation
        True for simulated patients only: permits seeded noise and runs without noise. It declares that no person needs
        protection.
    """

    SITE: ClassVar[str] = "a hospital's node"

    name: str
    plan: Path
    images: Path
    state: Path
    one_record_per_patient: bool = False
    attempts: Count = 1
    cap: Positive | None = None
    delta: Delta = OWN_DELTA
    backbone: Path | None = None
    answer_seconds: NotNegative = 10.0
    limit_seconds: Annotated[float, Within(gt=0, le=1e9)] = 3600.0
    device: Device = "auto"
    threads: Count | None = None
    chunk: Count | None = None
    simulation: bool = False

    def __post_init__(self) -> None:
        """Check every setting, and refuse those without protection unless the patients are simulated."""
        super().__post_init__()
        if not self.simulation and self.answer_seconds < LEAST_ANSWER_SECONDS:
            raise UserError(
                f"Expected answer_seconds of at least {LEAST_ANSWER_SECONDS:g} where patients are real, found "
                f"{self.answer_seconds:g}: the time of an answer would show how many patients were drawn. Write more "
                "than a round takes in which every patient is drawn."
            )


@dataclass(frozen=True)
class ServerSettings(SiteSettings):
    """Settings that the server decides for itself.

    Attributes
    ----------
    plan
        The server's copy of the plan, or with masked sums of the roster, which holds the plan.
    keys
        For each node of the plan, the file of its public key in PEM. None with masked sums: the roster holds the keys.
    model, history, ledger
        Files for the finished model, the training history and a sealed copy of the ledger.
    ledger_file
        The live ledger. It outlives failed runs and must never be deleted.
    checkpoint
        Checkpoint of an interrupted run; removed at the end.
    watched
        Folder in Decathlon layout with test patients of the server, looked at while training; null for none.
    watched_patients
        Declared number of its patients.
    backbone
        File of the public backbone, where the plan names one; null takes the one that comes with the package.
    evaluate_every, checkpoint_seconds
        Rounds between two looks at the watched patients; seconds between two checkpoints.
    threads
        Threads of PyTorch; null leaves the choice to PyTorch.
    patience
        Limits for nodes that do not answer.
    once
        Whether another attempt is possible only if the ledger permits it; false leaves that to
        the nodes.
    cap
        The most that all runs recorded next to ``ledger_file`` may cost a patient: ``epsilon`` and ``delta``.
    series
        The runs that were declared together with this one: ``name`` and ``runs``.
    data
        Keyed hash of the training data, for the ledger; empty if it is not written.
    """

    SITE: ClassVar[str] = "a federation's server"

    plan: Path
    model: Path
    history: Path
    ledger: Path
    ledger_file: Path
    checkpoint: Path
    keys: dict[str, Path] = field(default_factory=dict)
    watched: Path | None = None
    watched_patients: int = 0
    backbone: Path | None = None
    evaluate_every: Count = 20
    checkpoint_seconds: float = 30.0
    threads: Count | None = None
    patience: Patience = field(default_factory=Patience)
    once: bool = False
    cap: Cap | None = None
    series: Series | None = None
    data: str = ""

    @cached_property
    def agreed(self) -> tuple[Plan, dict[str, EllipticCurvePublicKey], Roster | None]:
        """The plan, the public key of each of its nodes, and the roster where the plan has masked sums.

        Raises
        ------
        UserError
            If a file cannot be read, or plan and keys do not agree.
        """
        plan, roster = read_terms(self.plan)
        if roster is not None:
            if self.keys:
                raise UserError(f"Expected no keys with a roster, which contains them, found {sorted(self.keys)}.")
            return plan, {member.name: member.verifier for member in roster.members}, roster
        names = [node.name for node in plan.nodes]
        if set(self.keys) != set(names):
            raise UserError(f"Expected in keys a key for each of {names}, found {sorted(self.keys)}.")
        keys = {name: read_public_key(path) for name, path in self.keys.items()}
        same = Counter(key.public_numbers() for key in keys.values())
        if double := [name for name, key in keys.items() if same[key.public_numbers()] > 1]:
            raise UserError(f"Expected in keys a different key for each node, found the same one at {double}.")
        return plan, keys, None

    @property
    def is_finished(self) -> bool:
        """Whether this plan was trained to its end: its last attempt made the model, and no checkpoint remains."""
        if not (self.model.exists() and self.ledger_file.exists()) or self.checkpoint.exists():
            return False
        return made_model(read_ledger(self.ledger_file)[-1:], self.model)

    def check_files(self) -> None:
        """Refuse files of another training: its ledger would count this one too, and its model would be lost.

        Raises
        ------
        UserError
            If the ledger is that of another run, or the model is there and does not come from this ledger.
        """
        plan = self.agreed[0]
        attempts = read_ledger(self.ledger_file) if self.ledger_file.exists() else []
        if attempts and (recorded := attempts[-1].declaration.run) != plan.run.to_json():
            raise UserError(
                f"ledger_file: Expected the ledger of this training or a new file, found {self.ledger_file} of the run "
                f"{' '.join(map(str, recorded.values()))}. Name other files for each training: ledger_file, "
                "checkpoint, model, history and ledger."
            )
        # A simulation may be begun again with other settings, and with `once` its ledger decides.
        spent = plan.protects_people and not self.once and not all(attempt.unused for attempt in attempts)
        if spent and (last := attempts[-1].declaration).plan != plan.digest:
            differing = plan_difference(last.to_json(), plan.declaration().to_json())
            raise UserError(
                f"ledger_file: Expected the ledger of this plan or a new file, found {self.ledger_file} of another "
                f"plan with the name {plan.label}. Settings that differ: {differing}. "
                f"{ANOTHER_NAME}, and name other files for each training: ledger_file, checkpoint, model, history and "
                "ledger. Nothing was released."
            )
        if self.model.exists() and not made_model(attempts, self.model):
            raise UserError(
                f"model: Expected a new file, found {self.model}, which does not come from {self.ledger_file} and "
                "would be overwritten. Name other files for each training: model, history and ledger."
            )
