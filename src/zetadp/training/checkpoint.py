"""The files of a run that survive an interruption: its ledger, and its checkpoint, a safetensors file."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import torch
from torch import Tensor

from zetadp.account.budget import Cap, begin_attempt, check_permitted
from zetadp.account.declaration import Declaration, Series
from zetadp.account.ledger import Ledger
from zetadp.account.offers import START_OVER, offer
from zetadp.base.storage import remove_leftovers, written_whole
from zetadp.base.tensors import load_tensors, save_tensors
from zetadp.base.validation import UserError

if TYPE_CHECKING:
    from zetadp.training.server import Receiver

logger = logging.getLogger(__name__)


@dataclass
class Checkpoint:
    """The state of a run between two rounds.

    Attributes
    ----------
    round
        Number of rounds done.
    fingerprint
        Hash that identifies the run. A checkpoint of another run is not continued. If the hash depends on patients'
        data, it is keyed with the secret next to the ledgers.
    state
        State of the receiver, such as weights and moments.
    history
        Rows of the training history so far.
    ledger_head
        Head of the ledger's hash chain when the checkpoint was written. A ledger without it has lost lines.
    not_finite
        Number of contributions so far that were not finite; zero where noise protects real patients.
    secret
        Name of the secret that keyed the fingerprint; empty if the fingerprint depends on no private data.
    """

    round: int
    fingerprint: str
    state: Mapping[str, Tensor]
    history: pd.DataFrame
    ledger_head: str
    not_finite: int = 0
    secret: str = ""

    def save(self, path: Path, receiver: Receiver, ledger: Ledger) -> None:
        """Write the run as it is now, with the state of its receiver, whole or not at all."""
        self.state, self.ledger_head = receiver.state(), ledger.head
        content = {**vars(self), "history": self.history.to_dict("list")}
        state = content.pop("state")
        save_tensors(path, {key: value.detach().cpu().contiguous() for key, value in state.items()}, content)

    @classmethod
    def load(cls, path: Path, device: torch.device) -> Checkpoint:
        """Read a checkpoint; raise `UserError` if the file is damaged, or of another version."""
        tensors, content = load_tensors(path, device)
        history = pd.DataFrame(content["history"]).astype(float)
        try:
            return cls(**{**content, "state": tensors, "history": history})
        except TypeError as error:
            raise UserError(f"Expected a checkpoint of this version in {path}, found {error}. Delete it.") from error

    def check(self, path: Path, ledger: Ledger, secret: str) -> None:
        """Raise `UserError` if the ledger's lines or the secret are lost.

        Without this check the run would start over and release everything again.
        """
        if not ledger.ever_had_head(self.ledger_head):
            raise UserError(
                f"The ledger {ledger.path} has lost lines: some are missing that it held when the checkpoint {path} "
                f"was written, after round {self.round}. "
                f"{offer('restore the ledger, without which no true epsilon can be stated', START_OVER)}"
            )
        if self.secret != secret:
            raise UserError(
                f"The checkpoint {path} was written with another secret than the one in {ledger.path.parent}, so it "
                "cannot be checked whether it belongs to this run. "
                f"{offer('restore the secret from a backup', START_OVER)}"
            )


@dataclass(frozen=True)
class RunFiles:
    """Files that survive when a run is interrupted or repeated.

    Attributes
    ----------
    ledger
        The run's ledger, which outlives failed and repeated jobs.
    checkpoint
        Checkpoint of an interrupted run, with its messages in a folder next to it; `finish` removes both.
    once
        Whether the run may start again from its first round only if its ledger permits it.
    cap
        Largest total privacy cost of all runs on the same patients; None sets no limit.
    series
        The series of runs that this one was declared with, before the first of them; None if it stands alone.
    data
        Keyed hash of the data that an attempt is made on (`zetadp.training.partition.training_data`); empty if it is
        not written.
    """

    ledger: Path
    checkpoint: Path
    once: bool = False
    cap: Cap | None = None
    series: Series | None = None
    data: str = ""

    @property
    def messages(self) -> Path:
        """Folder of the messages that are stored until the next checkpoint."""
        return self.checkpoint.with_name(f"{self.checkpoint.stem}.messages")

    def begin(
        self,
        run: Checkpoint,
        ledger: Ledger,
        declaration: Declaration,
        receiver: Receiver,
        draws: Mapping[str, str] | None = None,
    ) -> Checkpoint:
        """Continue from the run's checkpoint if there is one; otherwise start a new attempt in the ledger.

        Parameters
        ----------
        run
            The run before its first round.
        ledger, declaration
            Its open ledger, and what a new attempt declares.
        receiver
            Takes over the state of an interrupted run.
        draws
            What seeded draws of a new attempt follow from.

        Returns
        -------
        The interrupted run, or the given one.

        Raises
        ------
        UserError
            If ledger or secret are lost, or if the attempt is not permitted or would exceed the cap.
        """
        if self.checkpoint.exists():
            saved = Checkpoint.load(self.checkpoint, receiver.weights.device)
            # A fingerprint that depends on no private data has no secret, no matter who wrote the checkpoint.
            saved.check(self.checkpoint, ledger, run.secret or saved.secret)
            if ledger.has_head(saved.ledger_head) and saved.fingerprint == run.fingerprint:
                if self.cap is not None:
                    self.cap.continuing(ledger.path)
                receiver.load(saved.state)
                ledger.resume(saved.round, self.cap)
                logger.info("continuing after round %d of an interrupted run", saved.round)
                return saved
            logger.info("the checkpoint %s belongs to another run; starting from the first round", self.checkpoint)
        if self.once:
            check_permitted(ledger, declaration)
        declared = replace(declaration, series=self.series, data=self.data or None)
        begin_attempt(ledger, declared, self.cap, draws=draws)
        self.remove_messages()  # they answer rounds of another attempt, so `Outbox.replay` would never send them
        return run

    def seal_ledger(self, path: Path) -> None:
        """Write a copy of the ledger as it is now."""
        with written_whole(path) as temporary:
            shutil.copyfile(self.ledger, temporary)

    def finish(self) -> None:
        """Remove the checkpoint and the stored messages of a run whose outputs are all written."""
        # The checkpoint goes first: messages without a checkpoint are never read, but a checkpoint without its messages
        # would be continued.
        self.checkpoint.unlink(missing_ok=True)
        remove_leftovers(self.checkpoint)  # of a job that died while it wrote one
        self.remove_messages()

    def remove_messages(self) -> None:
        """Remove the stored messages."""
        shutil.rmtree(self.messages, ignore_errors=True)
