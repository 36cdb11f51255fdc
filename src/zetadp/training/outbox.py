"""Messages of a site: recorded in the ledger, stored on disk before they are sent, and sent again unchanged.

After an interruption, the server may request a round again that a node has already answered. The node then sends the
same bytes: one release, however often it is transmitted. A newly computed answer would be a second release, and for
other weights it would reveal more about the same patients, so the node refuses such a request.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import torch
from torch import Tensor

from zetadp.account.ledger import Ledger
from zetadp.account.offers import START_OVER, offer
from zetadp.base.tensors import load_tensors, save_tensors, to_processor
from zetadp.base.validation import UserError


class SupersededError(UserError):
    """A request for a message of a round that was released again since."""


class Outbox:
    """The ledger of a site's nodes, and the messages of the rounds of its last attempt.

    Parameters
    ----------
    ledger
        Ledger that records a round before its release.
    folder
        Folder with one file per round, for nodes that cannot draw their noise again; it is created with the first file.
        None stores nothing. Messages are privatised, but the time when they were computed is not, because a round takes
        longer if it draws more patients. So all files get the same time.
    label
        What a message answers in addition to its round: the transcript of a try of masked sums. Empty where a round
        has one message.

    Attributes
    ----------
    size
        Bytes stored since the outbox was opened or `discard` was last called.
    """

    def __init__(self, ledger: Ledger, folder: Path | None = None, label: str = "") -> None:
        self.ledger, self.folder, self.label = ledger, folder, label
        self.size = 0

    def keep(self, number: int, weights: Tensor, messages: Tensor) -> None:
        """Write the messages of a recorded round to disk and sync them, then note them as sent; only then send them.

        Parameters
        ----------
        number
            The round, counted from zero.
        weights
            The weights that the messages answer.
        messages
            Messages to send, of any shape.

        Raises
        ------
        UserError
            If the disk is full or the folder read-only. Then nothing was sent.
        """
        # Stored before it is noted: a message that is noted as sent and not stored could not be sent again, and
        # computing it again would be another release. The head that it names is synced (`Ledger.head`), so a ledger
        # without that line has lost it.
        if self.folder is not None:
            content = {"attempt": self.ledger.identity, "round": number, "weights": digest_of(weights)}
            path = self._path(self.folder, number)
            save_tensors(
                path, {"messages": messages.detach().cpu().contiguous()}, {**content, "ledger_head": self.ledger.head}
            )
            for entry in (path, self.folder):
                os.utime(entry, (0, 0))
            self.size += path.stat().st_size
        again = self.ledger.releases(number) - 1
        if self.ledger.sent(number, again) is None:
            self.ledger.note_sent(number, again, digest_of(messages))

    def may_send(self, number: int, messages: Tensor) -> bool:
        """Return whether the last release of a round was never sent, or with these bytes."""
        return self.ledger.sent(number, self.ledger.releases(number) - 1) in (None, digest_of(messages))

    def replay(self, number: int, weights: Tensor, device: torch.device | str = "cpu") -> Tensor | None:
        """Return the messages of a round if it was answered, bit for bit; None if none are stored.

        Raises
        ------
        UserError
            If the round was answered for other weights, if the ledger has lost the line of a stored message, or if a
            stored message cannot be read or is not the one that was sent.
        SupersededError
            If the message was sent, and the round was released again since.
        """
        if self.folder is None or not (path := self._path(self.folder, number)).exists():
            return None
        if (stored := self._read(path, number, weights, device)) is None:
            return None
        messages, head = stored
        if not self.ledger.has_head(head):
            raise UserError(
                f"The ledger {self.ledger.path} has lost lines: it has no line for a stored message of round "
                f"{number}, which may have been sent. "
                f"{offer('restore the ledger, without which no true epsilon can be stated', START_OVER)}"
            )
        if not self.may_send(number, messages):
            earlier = [self.ledger.sent(number, again) for again in range(self.ledger.releases(number) - 1)]
            if digest_of(messages) in earlier:
                raise SupersededError(f"Round {number} was released again after the message that is asked for.")
            raise UserError(
                f"The stored message of round {number} is not the one that was sent. "
                f"{offer('restore it from a backup', START_OVER)}"
            )
        return messages

    def answered(self, number: int, weights: Tensor) -> bool:
        """Return whether a message of a round is stored, whatever its label; raise `UserError` on other weights."""
        paths = [] if self.folder is None else sorted(self.folder.glob(f"round-{number:06d}[-.]*safetensors"))
        messages = [self._read(path, number, weights, "cpu") for path in paths]
        return any(message is not None for message in messages)

    def discard(self, before: int) -> None:
        """Remove the messages of rounds that can no longer be requested."""
        for path in self.folder.glob("round-*.safetensors") if self.folder is not None else ():
            if int(path.stem.split("-")[1]) < before:
                path.unlink(missing_ok=True)
        self.size = 0

    def _read(self, path: Path, number: int, weights: Tensor, device: torch.device | str) -> tuple[Tensor, str] | None:
        """Return the messages in a file, if they are of the attempt, and the head of the ledger at that time."""
        tensors, content = load_tensors(path, device)
        if content["attempt"] != self.ledger.identity:
            return None
        if content["weights"] != digest_of(weights):
            raise UserError(
                f"Round {number} was answered already, for other weights ({path}). A second answer is refused: it "
                "would release more about the same patients than the ledger records. "
                f"{offer('restore the newest checkpoint of the run from a backup', START_OVER)}"
            )
        return tensors["messages"], content["ledger_head"]

    def _path(self, folder: Path, number: int) -> Path:
        return folder / ("-".join(filter(None, [f"round-{number:06d}", self.label])) + ".safetensors")


def digest_of(numbers: Tensor) -> str:
    """Return the hash of a tensor's bytes."""
    return hashlib.sha256(to_processor(numbers).reshape(-1).numpy().data).hexdigest()
