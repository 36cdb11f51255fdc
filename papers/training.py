"""One training run of a program, and what its ledger says that it cost."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from zetadp.account.book import recorded_runs
from zetadp.accounting import composition
from zetadp.training.checkpoint import RunFiles
from zetadp.training.holders import LocalHolders
from zetadp.training.loop import Trained, train

if TYPE_CHECKING:
    from zetadp.training.plan import Plan
    from zetadp.training.records import LabelledItems


def train_once(plan: Plan, records: LabelledItems, units: list[list[int]]) -> tuple[Trained, float]:
    """Train in a temporary folder; return the result, and epsilon by the run's ledger.

    Parameters
    ----------
    plan
        Plan of one node, with its noise.
    records
        Items of all units.
    units
        For each unit, the positions of its items.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = RunFiles(Path(folder) / "run.jsonl", Path(folder) / "run.checkpoint")
        trained = train(LocalHolders(plan, records, [units]), files)
        (recorded,) = recorded_runs(files.ledger)
    (node,) = recorded.nodes.values()
    return trained, composition.epsilon(node.mechanisms, plan.delta)
