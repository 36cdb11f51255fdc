"""A hospital in one training: its settings, its copy of the plan, its keys, and its signed approval.

The approval's signature covers one hash and the number of permitted attempts, which together fix what a patient can
lose. The hash is that of the plan, or with masked sums that of the roster, which names the plan. So a plan, a roster or
a number that was changed after somebody approved it is refused, whether by mistake or by anybody who can write the
hospital's files and cannot read its key. It does not protect against somebody who has the key.

A hospital makes its agreement key for one plan, since a key that is used for several and stolen later would open the
recorded messages of all of them. Its signing key stays the same for all plans.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from zetadp.account.attempts import read_ledger
from zetadp.account.book import Book
from zetadp.account.budget import Cap, CapError, check_unit
from zetadp.account.declaration import Declaration, Series
from zetadp.account.exposure import condition_of, declared_run, total
from zetadp.account.offers import ANOTHER_NAME, plan_difference
from zetadp.base.epsilon import rounded_up
from zetadp.base.storage import make_folder, read_json, write_json
from zetadp.base.validation import UserError, counted, shown
from zetadp.hospitals.certificates import Credentials, check_signature, make_private_key, read_node_key, signature
from zetadp.hospitals.roster import Member, Roster, read_terms
from zetadp.hospitals.settings import HospitalSettings
from zetadp.mri.decathlon import PATIENT_KEY
from zetadp.training.plan import Plan
from zetadp.training.promise import Promise, check_promise
from zetadp.training.settings import GAUSSIAN, NO_EXACT_SAMPLER

MIN_DIGITS = 12
"""Fewest digits of a hash that name a plan or a roster, also in names of files."""
MEMBER_COMMAND = "zetadp federation member"
"""Command that makes an agreement key."""


def agreement_file(key: Path, plan: Plan) -> Path:
    """Return the file of a node's agreement key for a plan, which is next to its signing key."""
    return key.with_name(f"{key.stem}.{plan.digest[:MIN_DIGITS]}.agreement.key")


def make_member(plan: Plan, name: str, key: Path, folder: Path) -> Path:
    """Make a node's agreement key for a plan next to its signing key, and return the member file for the coordinator.

    Parameters
    ----------
    plan, name
        The plan, and the node's name in it.
    key
        The node's private signing key.
    folder
        Folder for the member file.

    Raises
    ------
    UserError
        If the plan has no masked sums or no such node, or the agreement key exists already.
    """
    if not plan.masked:
        raise UserError(
            f"Expected a plan with masked sums, found {plan.label} with threat {plan.threat}: nothing to do."
        )
    plan.position(name)
    signing, private = read_node_key(key), agreement_file(key, plan)
    if private.exists():
        raise UserError(f"Expected {private} to be absent, found a file. A key in use must not be lost.")
    path = folder / f"{name}.member.json"
    write_json(path, asdict(Member.create(plan, name, make_private_key(private), signing)))
    return path


def make_roster(plan: Plan, credentials: Credentials) -> Path | None:
    """Make agreement keys and the roster of nodes whose keys all lie in one folder: for trials and on one machine.

    Returns
    -------
    The roster's file; None where the plan has no masked sums.
    """
    if not plan.masked:
        return None
    members = [make_member(plan, node.name, credentials.node(node.name)[1], credentials.folder) for node in plan.nodes]
    path = credentials.folder / "roster.json"
    Roster.from_files(plan, members).write(path)
    return path


@dataclass(frozen=True)
class Participant:
    """One hospital in one training. Its settings allow the plan, and the roster states its own keys.

    Attributes
    ----------
    settings
        Settings of the hospital.
    plan
        The hospital's copy of the plan.
    key
        The node's private key, which signs its ledger, its approvals and its fresh values.
    roster, agreement
        With masked sums, the roster and the node's private agreement key.
    promise
        Cost of the plan for one patient, at the hospital's own delta.

    Raises
    ------
    UserError
        If the plan does not know the hospital, if the roster states other keys of it, if the plan protects nobody, or
        an image instead of a patient, where patients are real, or if it costs more than the epsilon in its name.
    """

    settings: HospitalSettings
    plan: Plan
    key: EllipticCurvePrivateKey
    roster: Roster | None = None
    agreement: EllipticCurvePrivateKey | None = None
    promise: Promise = field(init=False)

    def __post_init__(self) -> None:
        """Check the roster and the terms of the plan."""
        name, training, plan = self.name, self.plan.training, self.plan
        sigma = plan.nodes[plan.position(name)].noise_multiplier
        if plan.masked:
            if self.roster is None or self.agreement is None:
                raise ValueError("Expected roster and agreement key for a plan with masked sums.")
            self.roster.check_own(name, self.agreement, self.key)
        if training.mechanism != GAUSSIAN:
            raise UserError(
                f"Expected a plan with mechanism {GAUSSIAN} at {name}, found {training.mechanism}: {NO_EXACT_SAMPLER}. "
                "It is for simulations without a federation."
            )
        simulated = "Where no patient is real, set simulation in the node's own settings."
        if not self.settings.simulation and not plan.protects_people:
            raise UserError(
                f"Expected a plan with noise from the operating system at {name}, found noise: {training.noise} with "
                f"multiplier {sigma}. It would protect nobody. {simulated}"
            )
        if not self.settings.simulation and plan.unit == "image":
            raise UserError(
                f"Expected a plan that protects a patient at {name}, found unit image, which protects one of a "
                f"patient's {plan.units_of_a_person} images. {simulated}"
            )
        object.__setattr__(self, "promise", check_promise(plan, name, self.settings.delta))

    @classmethod
    def read(cls, settings: HospitalSettings, key: Path) -> Self:
        """Read the plan that settings name, and the keys: the node's private one, and those of masked sums.

        Raises
        ------
        UserError
            If a file cannot be read or does not fit, if another plan of the same name was trained, or if the plan
            protects another unit than earlier ones or would exceed the hospital's cap.
        """
        (plan, roster), signing = read_terms(settings.plan), read_node_key(key)
        plan.position(settings.name)
        agreement = None if roster is None else read_node_key(agreement_file(key, plan), MEMBER_COMMAND)
        participant = cls(settings, plan, signing, roster, agreement)
        participant.check_ledger()
        check_unit(participant.ledger, participant.declaration(plan.declaration()))
        participant.check_cap()
        return participant

    @property
    def name(self) -> str:
        """The node's name in the plan."""
        return self.settings.name

    @property
    def ledger(self) -> Path:
        """The hospital's ledger for the plan."""
        return self.settings.state / "ledgers" / f"{self.plan.label}.jsonl"

    @property
    def messages(self) -> Path:
        """Folder of the messages that were sent."""
        return self.settings.state / "messages" / self.plan.label

    @property
    def at_work(self) -> Path:
        """The note of what the node is at work on; a process that ended meanwhile has left it."""
        return self.settings.state / "messages" / f"{self.plan.label}.at_work.json"

    @property
    def cap(self) -> Cap | None:
        """The most that all runs in the state folder may cost a patient, at the delta of the promise."""
        return None if self.settings.cap is None else Cap(self.settings.cap, self.promise.delta)

    def check_ledger(self) -> None:
        """Refuse a plan if another one of its name has used the permitted attempts, before any hospital pays for it."""
        attempts = read_ledger(self.ledger) if self.ledger.exists() else []
        if len(attempts) < self.settings.attempts or attempts[-1].declaration.plan == self.plan.digest:
            return
        now = self.declaration(self.plan.declaration())
        differing = plan_difference(attempts[-1].declaration.to_json(), now.to_json())
        raise UserError(
            f"plan: Expected a plan of a new name, or the one that {self.ledger} records, found another one with the "
            f"name {self.plan.label}. Settings that differ: {differing}. Its {counted(len(attempts), 'attempt')} "
            f"{'counts' if len(attempts) == 1 else 'count'}, and "
            f"attempts: {self.settings.attempts} in the settings permits no more. {ANOTHER_NAME}. Nothing was released."
        )

    def check_cap(self) -> None:
        """Refuse a plan whose attempts would bring the hospital's patients above its cap."""
        if self.cap is None:
            return
        with cap_is_a_setting():
            if self.ledger.exists() and any(attempt.events for attempt in read_ledger(self.ledger)):
                self.cap.continuing(self.ledger)
            else:
                self.cap.check_plan(self.ledger, self.declaration(self.plan.declaration()), self.settings.attempts)

    def check_patients(self) -> None:
        """Refuse a folder that is not there, and a promise for persons if it is not known whose each record is.

        Raises
        ------
        UserError
            If the folder is missing, or has no key of patients and the settings do not declare that none is needed.
        """
        settings, key = self.settings, self.settings.images / PATIENT_KEY
        if settings.simulation:
            return
        if not settings.images.is_dir():
            raise UserError(
                "Expected the folder of this hospital's patients as images in the settings, found no folder "
                f"{settings.images}. Name the one that zetadp convert made. The user who runs the node must have "
                "access."
            )
        if self.plan.protects == "record" or settings.one_record_per_patient or key.is_file():
            return
        raise UserError(
            f"Expected {key}, since the plan promises a guarantee for each {self.plan.cohort_unit}, found no file. "
            "Write it (zetadp convert with --patients or --patient-pattern), or if no person has two records in the "
            "folder, set one_record_per_patient: true in the node's settings. Or ask the coordinator for a plan with "
            "unit record."
        )

    def with_recorded(self) -> str:
        """Return a line on what all trainings of the state folder cost a patient; nothing before the first one."""
        delta, recorded = self.promise.delta, Book.read(self.ledger.parent).runs(about=self.ledger)
        if not recorded:
            return ""
        attempts = read_ledger(self.ledger) if self.ledger.exists() else []
        left = self.settings.attempts - sum(bool(attempt.events) for attempt in attempts)
        after = [*recorded, *[declared_run(self.plan.label, self.declaration(self.plan.declaration()))] * left]
        together = rounded_up(total(after, delta))
        return (
            f"Runs recorded in {self.settings.state} cost these patients epsilon {rounded_up(total(recorded, delta))}, "
            f"and {together} with all attempts of this one, at delta {delta:g}{condition_of(after)}. To agree to this "
            f"total, `cap` in node.yaml must be at least {together}.\n"
        )

    def declaration(self, of_plan: Declaration) -> Declaration:
        """Return what this hospital's ledger declares: also whose it is, and the number of attempts."""
        runs = self.settings.attempts
        return replace(of_plan, node=self.name, attempts=runs, series=Series(self.plan.digest, runs), engine="flower")

    @property
    def digest(self) -> str:
        """Hash of all that the hospital approves: of the roster, which names the plan, or of the plan."""
        return (self.roster or self.plan).digest

    @property
    def approval(self) -> Path:
        """The file of the approval."""
        return self.settings.state / "approvals" / f"{self.digest[:16]}.json"

    def approve(self, who: str, digits: str) -> Path:
        """Sign the approval, and return its file.

        Parameters
        ----------
        who
            Name of the person who approves.
        digits
            The first digits of `digest` of what was read, at least twelve.

        Raises
        ------
        UserError
            If plan or roster has another hash.
        """
        if not (len(digits) >= MIN_DIGITS and self.digest.startswith(digits.lower())):
            raise UserError(
                f"Expected at least the first {MIN_DIGITS} digits of the hash of {self.settings.plan}, which is "
                f"{self.digest}, found {shown(digits)}. Read it again before you approve it."
            )
        date = datetime.now(UTC).strftime("%Y-%m-%d")
        content = {**self._approved(self.settings.attempts), "who": who, "date": date}
        make_folder(self.approval.parent)
        write_json(self.approval, content | {"signature": signature(content, self.key)})
        return self.approval

    def check_approved(self) -> str:
        """Return who approved, in words, and when.

        Raises
        ------
        UserError
            If nobody approved this very plan and roster with this key, for as many attempts as the settings now permit.
        """
        path, remedy = self.approval, "Read it and approve it: zetadp federation approve NODE.yaml --key NODE.key"
        if not path.exists():
            raise UserError(f"Nobody has approved {self.settings.plan} (hash {self.digest[:16]}). {remedy}")
        content = read_json(path)
        try:
            check_signature(content, self.key.public_key())
            who, attempts = f"approved by {content['who']} on {content['date']}", int(content["attempts"])
        except (KeyError, UserError) as error:
            raise UserError(f"The approval {path} is not valid for this node's key: {error}. {remedy}") from error
        if not self._approved(attempts).items() <= content.items():
            raise UserError(f"The approval {path} is for another plan, roster or node. {remedy}")
        if self.settings.attempts > attempts:
            raise UserError(
                f"The approval {path} permits {counted(attempts, 'attempt')}, and the settings now say "
                f"{self.settings.attempts}, which costs patients more. {remedy}"
            )
        return shown(who)

    def _approved(self, attempts: int) -> dict[str, Any]:
        return {"node": self.name, "digest": self.digest, "attempts": attempts}


@contextmanager
def cap_is_a_setting() -> Iterator[None]:
    """Add to a refusal by the cap which setting it is, and that it covers the earlier runs too."""
    try:
        yield
    except CapError as error:
        raise CapError(
            f"{error} It is `cap` in node.yaml, which must cover this run and all earlier ones with the same state "
            "folder. Raise it to the total if you agree to that."
        ) from error
