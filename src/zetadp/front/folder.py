"""The folder of a run: what the run is, its weights, its history, and its seal."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from torch import Tensor, nn

from zetadp.base.storage import make_folder, read_json, write_json, write_text, writing, written_whole
from zetadp.base.tensors import load_tensors, save_tensors, tensors_digest
from zetadp.base.validation import UserError, checked_name
from zetadp.core.checkpoint import RunFiles
from zetadp.core.plan import Plan
from zetadp.front.promises import Statement
from zetadp.privacy.book import note_people, read_ledgers
from zetadp.privacy.budget import Cap, Permission
from zetadp.privacy.register import Secret
from zetadp.privacy.statement import last_statement
from zetadp.privacy.verification import RUN, SEAL, SEALED, seal

ARGUMENTS = {
    "images_per_patient": "items_per_patient",
    "learning_rate": "optimiser",
    "recipe": "optimiser",
    "ledger": "account",
    "nodes": "population, per_round or epsilon",
}
"""Arguments of `private` whose values a run's file has under other names."""


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run, which is the run's identity.

    Attributes
    ----------
    path
        The folder.
    account
        Folder of the patients' account: the ledgers of all runs on them.
    """

    path: Path
    account: Path

    @classmethod
    def of(cls, path: object, account: object) -> RunFolder:
        """Return the folder that the arguments ``folder`` and ``account`` of `private` name."""
        for name, place in (("folder", path), ("account", "ledgers" if account is None else account)):
            if not (isinstance(place, str | os.PathLike) and str(place).strip()):
                raise UserError(f"{name}: Expected the path of a folder, such as 'runs/mine', found {place!r}.")
            if Path(str(place)).is_file():
                raise UserError(f"{name}: Expected a folder, found the file {place}. Choose another name.")
        own = Path(str(path))
        checked_name(own.resolve().name, "folder")
        return cls(own, own.resolve().parent / "ledgers" if account is None else Path(str(account)))

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.path.resolve().name

    @property
    def ledger(self) -> Path:
        """The run's ledger, in the patients' account."""
        return self.account / f"{self.name}.jsonl"

    @property
    def model(self) -> Path:
        """The trained weights."""
        return self.path / "model.safetensors"

    @property
    def checkpoint(self) -> Path:
        """Checkpoint of an interrupted run."""
        return self.path / "checkpoint"

    @property
    def known(self) -> bool:
        """Whether the folder holds a run."""
        return (self.path / RUN).exists()

    @property
    def state(self) -> Literal["new", "interrupted", "finished"]:
        """How far the run is."""
        if self.model.exists():
            return "finished"
        return "interrupted" if self.checkpoint.exists() else "new"

    @property
    def statement(self) -> Statement:
        """What may be said of the run, from its ledger alone."""
        attempts = read_ledgers([self.ledger])[self.ledger] if self.ledger.exists() else []
        if not attempts:
            raise UserError(f"statement: Expected a run that has begun, found no ledger {self.ledger}. Call train().")
        return Statement(last_statement(attempts, self.name))

    def files(self, plan: Plan, most_epsilon: float | None) -> RunFiles:
        """Return the files that training keeps, with the limit on everything together."""
        # Whoever loses the checkpoint of a run on real patients must not pay for it twice without a word.
        permission = Permission(plan.delta) if plan.training.noise == "os" else None
        cap = None if most_epsilon is None else Cap(most_epsilon, plan.delta)
        return RunFiles(self.ledger, self.checkpoint, permission, cap)

    def enter(self, plan: Plan, model: nn.Module, records: str, patients: Iterable[str]) -> None:
        """Take over the folder. Starting weights of the first call win over the network's.

        Parameters
        ----------
        plan
            The plan.
        model
            The network, which gets the weights of the folder, if it has some.
        records
            Digest of all items and labels; only a keyed hash is written.
        patients
            Texts of the patients' ids; likewise.

        Raises
        ------
        UserError
            If the folder holds another run, or if the account has a ledger of this name.
        """
        secret, identity = Secret.of(self.account), self.path / RUN
        now = {
            "plan": plan.to_json(),
            "ledger": os.path.relpath(self.ledger.resolve(), self.path.resolve()),
            "records": secret.tag(records),
        }
        if self.known:
            for key, before, found in _differences(read_json(identity), now):
                raise UserError(
                    f"folder: Expected the run that {self.path} holds, with {key} {before}, found {found}. Give this "
                    "run another folder, or repeat the first call."
                )
            self.load(model, self.path / "start.safetensors")
            return
        make_folder(self.path)
        if self.ledger.exists():
            raise UserError(
                f"folder: Expected a name that the account {self.account} does not hold, found {self.name}. What was "
                "released stays released. Give the run another folder, or restore this one."
            )
        tensors = weights_of(model)
        save_tensors(self.path / "start.safetensors", tensors, {"weights": tensors_digest(tensors)})
        plan.write(self.path / "plan.json")
        note_people(self.ledger, map(secret.tag, patients))
        write_json(identity, now)

    def load(self, model: nn.Module, weights: Path) -> None:
        """Give a network the weights of a file in the folder."""
        device = next(model.parameters()).device
        try:
            model.load_state_dict(load_tensors(weights, device)[0])
        except RuntimeError as error:
            raise UserError(
                f"model: Expected the network that {self.path} holds, found another: {error}. Give this run another "
                "folder."
            ) from error

    def finish(self, model: nn.Module, plan: Plan, head: str) -> None:
        """Write the trained weights, which name the last line of the ledger, and seal the folder."""
        content = {"ledger_head": head, "plan": plan.to_json(), "statement": self.statement.text}
        save_tensors(self.model, weights_of(model), content)
        self.seal()

    def seal(self) -> None:
        """Write the statement and a copy of the ledger, seal all for `zetadp verify`, and remove the checkpoint."""
        if not (self.path / SEAL).exists():
            statement = self.statement
            with written_whole(self.path / "ledger.jsonl") as temporary:
                shutil.copyfile(self.ledger, temporary)
            write_json(self.path / "privacy.json", statement.content)
            write_text(self.path / "privacy.txt", statement.text)
            seal(self.path / SEAL, [self.path / name for name in sorted(SEALED)])
        RunFiles(self.ledger, self.checkpoint).finish()

    def history(self) -> pd.DataFrame:
        """Return the stored history of the rounds that were done."""
        path = self.path / "history.csv"
        if not path.exists():
            return pd.DataFrame({"round": pd.Series(dtype=int), "length": pd.Series(dtype=float)})
        return pd.read_csv(path)

    def add(self, history: pd.DataFrame, done: int, length: float) -> pd.DataFrame:
        """Add a round to a history, and store it."""
        # Rounds after a checkpoint are repeated after an interruption, with the same releases.
        before = history[history["round"] < done]
        row = pd.DataFrame({"round": [done], "length": [length]})
        longer = pd.concat([before, row], ignore_index=True)
        path = self.path / "history.csv"
        with writing(path):
            if len(before) < len(history) or not path.exists():
                longer.to_csv(path, index=False)
            else:
                row.to_csv(path, mode="a", header=False, index=False)
        return longer


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Return weights and buffers of a network, in the processor's memory."""
    return {name: value.detach().cpu() for name, value in model.state_dict().items()}


def _differences(before: Any, now: Any, key: str = "") -> Iterator[tuple[str, str, str]]:  # noqa: ANN401  (JSON)
    """Yield the keys in which two JSON objects differ, with both values, in the words of `private`."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for name in dict.fromkeys([*before, *now]):
            yield from _differences(before.get(name), now.get(name), name if key != "recipe" else key)
    elif json.dumps(before) != json.dumps(now):
        yield ARGUMENTS.get(key, key), json.dumps(before)[:60], json.dumps(now)[:60]
