"""Make the examples of PhaseMNIST, or of plain digits, and the table of examples."""

import hashlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from zetadp.base.tables import write_table
from zetadp.base.validation import UserError
from zetadp.base.workflow import run
from zetadp.tasks.phase_mnist.digits import read_digits
from zetadp.tasks.phase_mnist.pairs import PARTS, disjoint_pairs, drawn_pairs
from zetadp.tasks.phase_mnist.task import Examples

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(*, files: list[Path], examples: Path, table: Path, composite: str, seed: int, sizes: dict[str, int]) -> None:
    """Write examples, and one row for each: patient, record, part, scanner, sha256."""
    made = []
    for part in PARTS:
        images, labels = read_digits(files[0].parent, part)
        # Test pairs are always drawn in the same way, so that accuracies can be compared.
        pairs = (disjoint_pairs if composite == "once" and part == "train" else drawn_pairs)(labels, part, seed)
        own = slice(0, sizes[part])
        names = [f"{part}-{number:05d}" for number in range(len(pairs.labels))][own]
        made.append(Examples(images, pairs.real[own], pairs.imaginary[own], pairs.labels[own], tuple(names)))
        if len(names) != sizes[part]:
            key = f"cohort.{part}_patients"
            msg = f"Expected {key} to be at most {len(names)} for composite {composite}, found {sizes[part]}."
            raise UserError(msg)
    whole = Examples.joined(*made)
    whole.write(examples)
    values = whole.values(np.arange(len(whole.names)), plain=composite == "none")
    rows = pd.DataFrame(
        {
            "patient": whole.names,
            "record": whole.names,
            "part": np.repeat(PARTS, [len(part.names) for part in made]),
            "scanner": "",
            "sha256": [hashlib.sha256(value.tobytes()).hexdigest() for value in values],
        }
    )
    write_table(table, rows)
    logging.getLogger(__name__).info("made %d examples", len(rows))


if __name__ == "__main__":
    run(main, snakemake)
