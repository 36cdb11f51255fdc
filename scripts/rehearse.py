"""Try all steps after training, before the first run releases anything."""

from pathlib import Path
from typing import Any

from zetadp.base.storage import write_text
from zetadp.base.tensors import keep_freed_memory
from zetadp.base.workflow import run
from zetadp.report.provenance import Cohort
from zetadp.report.rehearsal import rehearse


def main(
    *,
    partition: Path,
    table: Path,
    noise: list[Path],
    prepared: list[Path],
    done: Path,
    runs: list[dict[str, Any]],
    ledger_folder: str,
    device: str,
    cohort: Cohort,
) -> None:
    """Evaluate the starting weights of every run, and note that nothing failed.

    ``prepared`` are the files that ``runs`` name.
    """
    keep_freed_memory()
    rehearse(
        runs,
        partition,
        table,
        noise,
        results=done.parent,
        ledgers=Path(ledger_folder),
        device=device,
        cohort=cohort,
    )
    tried = f"{len(runs)} run(s) with {len(prepared)} file(s)"
    write_text(done, f"{tried} were tried before the first training. Nothing was released.\n")


if __name__ == "__main__":
    run(main)
