"""Checkpoints of interrupted runs, as safetensors files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from zetadp.base.tensors import load_tensors, save_tensors


@dataclass(frozen=True)
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

    def save(self, path: Path) -> None:
        """Write the checkpoint, whole or not at all."""
        content = {
            "round": self.round,
            "fingerprint": self.fingerprint,
            "history": self.history.to_dict("list"),
            "ledger_head": self.ledger_head,
            "not_finite": self.not_finite,
            "secret": self.secret,
        }
        tensors = {key: value.detach().cpu().contiguous() for key, value in self.state.items()}
        save_tensors(path, tensors, content)

    @classmethod
    def load(cls, path: Path, device: torch.device) -> Checkpoint:
        """Read a checkpoint; raise `UserError` if the file is damaged."""
        tensors, content = load_tensors(path, device)
        return cls(
            round=content["round"],
            fingerprint=content["fingerprint"],
            state=tensors,
            history=pd.DataFrame(content["history"]),
            ledger_head=content["ledger_head"],
            not_finite=content["not_finite"],
            secret=content["secret"],
        )
