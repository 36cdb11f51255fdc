"""Write ``dataset.json`` of a simulated cohort once all its volumes are there."""

from pathlib import Path
from typing import Any

from zetadp.base.storage import read_json
from zetadp.base.validation import UserError
from zetadp.base.workflow import run
from zetadp.phantom.cohort import PhantomSettings, write_dataset_json


def main(*, receipts: list[Path], dataset: Path, settings: dict[str, Any]) -> None:
    """Check that every file of the receipts is there, then write ``dataset.json``."""
    for receipt in receipts:
        missing = [name for name in read_json(receipt)["files"] if not (dataset.parent / name).is_file()]
        if missing:
            msg = (
                f"{len(missing)} volume(s) that {receipt} lists are gone, the first is {missing[0]}. "
                f"Delete {receipt} and run again."
            )
            raise UserError(msg)
    write_dataset_json(PhantomSettings(**settings), dataset.parent)


if __name__ == "__main__":
    run(main)
