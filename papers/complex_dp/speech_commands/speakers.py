"""The cost in privacy of every run for a whole speaker, with all clips."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pandas as pd

from zetadp.account.attempts import read_ledger
from zetadp.account.exposure import distinct, run_of, seen_by
from zetadp.accounting import composition
from zetadp.base.storage import written_whole

if TYPE_CHECKING:
    from pathlib import Path


def account_speakers(*, ledgers: list[Path], table: Path, runs: list[list[str]], delta: float, clips: int) -> None:
    """Write one row for each run: its name, and epsilon per speaker by group privacy over ``clips`` units."""
    rows = []
    for ledger, name in zip(ledgers, runs, strict=True):
        happened = run_of(str(ledger), read_ledger(ledger)[-1])
        totals = seen_by(happened, "server") or {}
        private = happened.private
        worst = max((composition.epsilon_group(total, delta, clips) for total in distinct(totals.values())), default=0)
        rows.append([*name, clips, worst if private else math.inf])
    columns = ["network", "arm", "epsilon", "seed", "units_of_a_speaker", "epsilon_per_speaker"]
    with written_whole(table) as temporary:
        pd.DataFrame(rows, columns=columns).to_csv(temporary, index=False)
