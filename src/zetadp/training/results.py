"""What a finished run leaves: its model, its history and a sealed copy of its ledger."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from zetadp.base.storage import written_whole
from zetadp.training.pretrained import save_model

if TYPE_CHECKING:
    from zetadp.training.checkpoint import RunFiles
    from zetadp.training.loop import Trained
    from zetadp.training.plan import Plan
    from zetadp.training.task import PublicNetwork


class Results(Protocol):
    """Where a finished run is written: its folder, or the files that a server's settings name."""

    @property
    def model(self) -> Path:
        """File of the model."""

    @property
    def history(self) -> Path:
        """File of the history, a CSV."""

    @property
    def ledger(self) -> Path:
        """File of the sealed copy of the ledger."""


def write_results(
    results: Results, trained: Trained, plan: Plan, files: RunFiles, *, inputs: int, backbone: PublicNetwork | None
) -> None:
    """Write what a finished run leaves, then remove what an interrupted one would need.

    Parameters
    ----------
    results
        The files to write, each whole or not at all.
    trained, plan, files
        Result of the run, its plan, and its live ledger and checkpoint.
    inputs, backbone
        As in `save_model`.
    """
    save_model(results.model, trained, plan, inputs=inputs, backbone=backbone, ledger=files.ledger)
    with written_whole(results.history) as temporary:
        trained.history.to_csv(temporary, index=False)
    files.seal_ledger(results.ledger)
    files.finish()  # last: a job that is killed before continues from the checkpoint, and writes all of it again
