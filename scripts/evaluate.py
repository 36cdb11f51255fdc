"""Evaluate a finished run on held-out patients, account for its privacy, and write its model card."""

from pathlib import Path

from zetadp.base.runfolder import RunFolder
from zetadp.base.tensors import keep_freed_memory
from zetadp.base.workflow import run
from zetadp.report.evaluation import RunInputs, evaluate_run
from zetadp.report.provenance import Cohort


def main(
    *,
    model: Path,
    images: list[Path],
    partition: Path,
    table: Path,
    backbone: list[Path],
    ledger_file: str,
    device: str,
    cohort: Cohort,
) -> None:
    """Write predictions and metrics, the privacy statement as JSON and as text, the card of the model, and the seal.

    One job does everything, because each part takes less time than the start of a job. Ledger, plan and all that is
    written are in the folder of the model.
    """
    keep_freed_memory()
    inputs = RunInputs(images, partition, table, backbone)
    evaluate_run(RunFolder(model.parent), inputs, account=Path(ledger_file), device=device, cohort=cohort)


if __name__ == "__main__":
    run(main, unread=("ledger", "agreed", "predictions", "metrics", "privacy", "text", "card", "sealed"))
