"""Messages that are stored on disk before they are sent, and until they are no longer needed.

After an interruption, the server may request a round again that a node has already answered. The node then sends the
same bytes: one release, however often it is transmitted. A newly computed answer would be a second release, and for
other weights it would reveal more about the same patients, so the node refuses such a request.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from zetadp.base.tensors import load_tensors, save_tensors
from zetadp.base.validation import UserError


@dataclass(frozen=True)
class Kept:
    """Messages of one round.

    Attributes
    ----------
    messages
        The messages, bit for bit.
    ledger_head
        Head of the ledger's chain when they were stored. A ledger without it has lost the record of their release.
    """

    messages: Tensor
    ledger_head: str


class MessageStore:
    """Messages of the rounds of one attempt.

    Parameters
    ----------
    folder
        Folder with one file a round; it is created with the first file. Messages are privatised, but the time when they
        were computed is not, because a round takes longer if it draws more patients. So all files get the same time.
    attempt
        Identity of the attempt. Messages of other attempts are ignored.

    Attributes
    ----------
    size
        Bytes stored since the store was opened or `discard` was last called.
    """

    def __init__(self, folder: Path, attempt: str) -> None:
        self.folder, self.attempt = folder, attempt
        self.size = 0

    def keep(self, round_number: int, weights: str, messages: Tensor, ledger_head: str) -> None:
        """Write messages to disk and sync them; only then may they be sent.

        Parameters
        ----------
        round_number
            The round, counted from zero.
        weights
            Hash of the weights that the messages answer.
        messages
            Messages to send, of any shape.
        ledger_head
            Head of the ledger's chain, which records the release.

        Raises
        ------
        UserError
            If the disk is full or the folder read-only. Then nothing was sent.
        """
        content = {"attempt": self.attempt, "round": round_number, "weights": weights, "ledger_head": ledger_head}
        path = self._path(round_number)
        save_tensors(path, {"messages": messages.detach().cpu().contiguous()}, content)
        for place in (path, self.folder):
            os.utime(place, (0, 0))
        self.size += path.stat().st_size

    def find(self, round_number: int, weights: str, device: torch.device | str = "cpu") -> Kept | None:
        """Return the messages of a round if it was answered, bit for bit; None if it was not.

        Raises
        ------
        UserError
            If the round was answered for other weights, or if the stored file cannot be read.
        """
        path = self._path(round_number)
        if not path.exists():
            return None
        tensors, content = load_tensors(path, device)
        if content["attempt"] != self.attempt:
            return None
        if content["weights"] != weights:
            raise UserError(
                f"Round {round_number} was answered already, for other weights ({path}). A second answer is refused: "
                "it would release more about the same patients than the ledger records. To start over, delete the "
                "checkpoint of the run; all releases so far still count."
            )
        return Kept(tensors["messages"], content["ledger_head"])

    def discard(self, before: int) -> None:
        """Remove the messages of rounds that can no longer be requested."""
        for path in self.folder.glob("round-*.safetensors"):
            if int(path.stem.removeprefix("round-")) < before:
                path.unlink(missing_ok=True)
        self.size = 0

    def _path(self, round_number: int) -> Path:
        return self.folder / f"round-{round_number:06d}.safetensors"
