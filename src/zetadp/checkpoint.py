"""Where an interrupted training goes on from, and the form in which a finished model is kept.

Both are safetensors files: tensors plus text, no pickle, nothing that runs when it is read.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from zetadp.storage import written_whole
from zetadp.validation import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

FORMAT = "zetadp-1"


@dataclass(frozen=True)
class Checkpoint:
    """The state of a training between two rounds.

    Attributes
    ----------
    round
        Rounds done.
    fingerprint
        What tells the run from others. A checkpoint of another run is not continued. Where it depends on patients'
        data, it is keyed with the secret beside the ledgers.
    state
        Weights and optimiser moments.
    history
        Rows of the training history so far.
    ledger_head
        Head of the ledger's hash chain when the checkpoint was written: a ledger without it has lost lines.
    not_finite
        Patient gradients so far that were not finite; zero where that may not be known.
    secret
        Name of the secret that keyed the fingerprint; empty where it depends on no private data.
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
        """Read a checkpoint."""
        tensors, content = load_tensors(path, device)
        return cls(
            round=content["round"],
            fingerprint=content["fingerprint"],
            state=tensors,
            history=pd.DataFrame(content["history"]),
            ledger_head=content["ledger_head"],
            not_finite=content["not_finite"],
            secret=content.get("secret", ""),
        )


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """Return a hash of named tensors."""
    digest = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def save_tensors(path: Path, tensors: Mapping[str, Tensor], content: Mapping[str, Any]) -> None:
    """Write tensors and a JSON object to a safetensors file, whole or not at all."""
    # safetensors' own writer leaves a temporary file of its own behind when it is killed.
    metadata = {"format": FORMAT, "content": json.dumps(content)}
    packed = save({key: value.clone() for key, value in tensors.items()}, metadata=metadata)
    with written_whole(path) as temporary:
        temporary.write_bytes(packed)


def load_tensors(path: Path, device: torch.device | str = "cpu") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_tensors` wrote.

    Raises
    ------
    UserError
        If the file is absent, damaged or of another program.
    """
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                msg = f"Expected {path} to be a file written by zetadp ({FORMAT}), found {metadata.get('format')}."
                raise UserError(msg)
            return {key: file.get_tensor(key) for key in file.keys()}, json.loads(metadata["content"])  # noqa: SIM118  (not a dict)
    except (OSError, SafetensorError) as error:
        msg = f"Cannot read {path}: {error}."
        raise UserError(msg) from error
