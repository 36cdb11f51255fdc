"""The folder of a private run: what it is, where its ledger lies, its weights, and its seal."""

from __future__ import annotations

import copy
import json
import os
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from zetadp.account.attempts import read_ledger
from zetadp.account.book import Book, note_people
from zetadp.account.offers import SAME_SETTINGS, offer, plan_difference
from zetadp.account.recorded import check_neighbours
from zetadp.account.register import REGISTER, Secret
from zetadp.account.statement import Statement, last_statement
from zetadp.base.differences import differences
from zetadp.base.names import checked_name, checked_path
from zetadp.base.runfolder import RunFolder
from zetadp.base.storage import keep_private, make_folder, read_json, settle, write_json
from zetadp.base.tensors import load_tensors, save_tensors, tensors_digest
from zetadp.base.validation import UserError
from zetadp.own.records import Records
from zetadp.training.checkpoint import RunFiles
from zetadp.training.networks import state_tensors, take_tensors
from zetadp.training.plan import Plan

ARGUMENTS = {
    "images_per_patient": "items_per_patient",
    "learning_rate": "optimiser",
    "recipe": "optimiser",
    "ledger": "account",
    "nodes": "hospitals",
    "expected": "per_round",
    "task": "loss or task",
    "classes": "number of classes",
}
"""Arguments of `private` whose values a run's file has under other names."""


@dataclass(frozen=True)
class PrivateFolder:
    """The folder of a private run, which is its identity, and its place in the patients' account.

    Attributes
    ----------
    path
        The run's folder.
    account
        Folder of the ledgers of all runs on the same patients.
    """

    path: Path
    account: Path

    @classmethod
    def of_arguments(cls, folder: object, account: object) -> PrivateFolder:
        """Return the folders that the arguments ``folder`` and ``account`` of `zetadp.private` name."""
        path = checked_path(folder, "folder")
        ledgers = path.resolve().parent / "ledgers" if account is None else checked_path(account, "account")
        for argument, candidate in (("folder", path), ("account", ledgers)):
            for part in (candidate, *candidate.parents):
                if os.path.lexists(part) and not part.is_dir():
                    raise UserError(f"{argument}: Expected a folder, found the file {part}. Choose another name.")
        checked_name(path.resolve().name, "folder")
        return cls(path, ledgers)

    @property
    def name(self) -> str:
        """Name of the run in the account."""
        return self.path.resolve().name

    @property
    def run(self) -> RunFolder:
        """The files in the folder."""
        return RunFolder(self.path)

    @property
    def ledger(self) -> Path:
        """The run's ledger, in the account."""
        return self.account / f"{self.name}.jsonl"

    @property
    def statement(self) -> Statement:
        """What may be said of the run, from its ledger alone; an error if nothing was recorded yet."""
        attempts = Book.read(self.account).ledgers.get(self.ledger)  # or an error, if it is lost
        if not attempts:
            raise UserError(f"statement: Expected a run that has begun, found no ledger {self.ledger}. Call train().")
        return last_statement(attempts, self.name)

    def enter(self, plan: Plan, model: nn.Module, records: Records) -> None:
        """Write what a run is into a new folder; of a known one, check that it is this run, and load its start.

        Parameters
        ----------
        plan, records
            What the run is.
        model
            The network with its starting weights, which are replaced by those that a known run began with.

        Raises
        ------
        UserError
            If the folder holds another run, or if the account has a ledger of this name.
        """
        identity, start = self.run.identity, self.run.start
        stored = read_json(identity) if identity.exists() else {}
        mixed = (self.path / REGISTER).exists() or RunFolder(self.account).identity.exists()
        if mixed or self.path.resolve() == self.account.resolve():
            raise UserError(
                f"folder: Expected a run and an account in folders of their own, found {self.path} and "
                f"{self.account}. The run's files would be mixed with ledgers. Choose another folder or account."
            )
        ledger = os.path.relpath(self.ledger.resolve(), self.path.resolve())
        if ledger == stored.get("ledger") and not (self.account / REGISTER).exists():
            raise UserError(
                f"account: Expected the account {self.account}, in which {self.path} is recorded, found none. "
                "Restore it from a backup."
            )
        if not stored:
            check_neighbours(self.path.resolve(), self.account)
        secret = Secret.of(self.account)
        now = {
            "plan": plan.to_json(),
            "ledger": ledger,
            "records": secret.tag(records.digest),  # only keyed hashes are written
            "patients": secret.tag(json.dumps([records.texts, records.owner.tolist()])),
        }
        if stored:
            self._check_same(_changed_arguments(stored, now), model)
            take_weights(model, start)
            return
        if self.run.model.exists():
            raise UserError(f"folder: Expected a new folder or one of a run, found the model {self.run.model} alone.")
        if self.ledger.exists():
            raise UserError(self._known_name(plan))
        note_people(self.ledger, records.texts)  # before the folder is made: what is refused leaves nothing
        make_folder(self.path)
        keep_private(self.path)
        tensors = state_tensors(model)
        save_tensors(start, tensors, {"weights": tensors_digest(tensors)})
        plan.write(self.run.plan)
        write_json(identity, now)

    def _check_same(self, changed: dict[str, str], model: nn.Module) -> None:
        """Refuse a call whose arguments differ from those that the folder's run was begun with."""
        if not changed:
            return
        if len(changed) > 1:
            changed.pop("noise_multiplier", None)  # which follows from the others
        if "optimiser" in changed:  # its lists of parameters may differ only because the networks do
            take_weights(copy.deepcopy(model), self.run.start)
        if changed.keys() <= {"records", "patients"}:
            raise UserError(
                f"records: Expected the items, labels and patients that {self.path} was begun with, found other "
                f"{'patients' if 'records' not in changed else 'items or labels'}: a keyed hash differs. Give the same "
                "items of the same patients in the same order, or give this run another folder. zetadp.load opens "
                f"{self.run.model} without any."
            )
        both = "; ".join(f"{argument} {values}" for argument, values in changed.items())
        raise UserError(
            f"folder: Expected the run that {self.path} holds, with {both}. "
            f"{offer('repeat the first call', 'give this run another folder')}"
        )

    def _known_name(self, plan: Plan) -> str:
        """Return the message on a new folder whose name the account knows from a run in another one, or a lost one."""
        known = f"folder: Expected a name that the account {self.account} does not hold, found {self.name}, of which"
        attempts = read_ledger(self.ledger)
        before = attempts[-1].declaration.to_json() if attempts else {}
        differing = plan_difference(before, plan.declaration().to_json())
        if differing != SAME_SETTINGS:
            return (
                f"{known} {self.ledger} records a run with another plan. Settings that differ: {differing}. Give this "
                "run a folder of another name: both runs then count together. Nothing was released."
            )
        return (
            f"{known} {self.ledger} records a run with the same settings. "
            f"{offer('restore its folder from a backup', 'give the run a folder of another name')}"
        )

    def check_unchanged(self, what: str, model: nn.Module) -> None:
        """Refuse a network whose weights are no longer the final ones, or before the end the starting ones."""
        path = self.run.model if self.run.model.exists() else self.run.start
        if tensors_digest(state_tensors(model)) != tensors_digest(load_tensors(path)[0]):
            raise UserError(
                f"{what}: Expected the weights that {path} holds, found others: run.model was changed. The statement "
                "of the run says nothing about them. Change a copy (copy.deepcopy(run.model)), and open the run again "
                "by the same call."
            )

    def write_model(self, path: Path, model: nn.Module, plan: Plan, **more: str) -> None:
        """Write weights with plan and statement, here or elsewhere."""
        content = {"plan": plan.to_json(), "statement": self.statement.text, **more}
        save_tensors(path, state_tensors(model), content)

    def seal(self, files: RunFiles) -> None:
        """Write the statement and a copy of the ledger, seal all for `zetadp verify`, and remove the checkpoint.

        At the end all files are their owner's only and have one time.
        """
        if not self.run.seal.exists():
            statement = self.statement
            files.seal_ledger(self.run.ledger)
            statement.seal(self.run)
        files.finish()
        settle([self.ledger, *self.path.rglob("*"), self.path])


def take_weights(model: nn.Module, path: Path) -> None:
    """Give a network the weights and buffers of a file; raise `UserError` if they are of another network."""
    try:
        take_tensors(model, load_tensors(path)[0])
    except RuntimeError as error:
        raise UserError(
            f"model: Expected the network whose weights {path} holds, found another: {error}. Give that network, or "
            "another folder."
        ) from error


def _changed_arguments(before: object, now: object) -> dict[str, str]:
    """Return the arguments of `private` in which two runs' files differ, each with both values as a text."""
    changed = {}
    for change in differences(before, json.loads(json.dumps(now))):
        keys = [step for step in change.path if isinstance(step, str)]
        # An optimiser and a task are arguments as a whole.
        key = next((step for step in keys if step in ("recipe", "task")), keys[-1])
        if keys[-1] == "classes" and None not in (change.before, change.now):
            key = "classes"
        # A keyed hash says nothing.
        texts = ("as at the start", "others") if key in ("records", "patients") else change.texts
        changed[ARGUMENTS.get(key, key)] = "{}, found {}".format(*texts)
    return changed
