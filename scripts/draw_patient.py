"""Draw one held-out patient: slices, k-space, whitened k-space."""

from pathlib import Path

import numpy as np

from zetadp.base.storage import Items, present
from zetadp.base.workflow import run
from zetadp.mri.decathlon import SEQUENCES
from zetadp.report.figurestyle import save_svg
from zetadp.report.patientfigure import patient_figure
from zetadp.report.provenance import Cohort
from zetadp.training.partition import read_partition


def main(
    *,
    slices: list[Path],
    kspace: list[Path],
    whitened: list[Path],
    partition: Path,
    patient: Path,
    cohort: Cohort,
) -> None:
    """Draw the middle slice of the first test patient."""
    rows = read_partition(partition)
    record = rows.loc[rows["role"] == "test", "record"].iloc[0]
    images = images_of(slices, record)
    (acquired,) = present(images[None])
    middle = images.shape[1] // 2
    owner = "Simulated patient" if cohort.simulated else "Patient"
    figure = patient_figure(
        images[acquired, middle],
        images_of(kspace, record)[acquired, middle],
        images_of(whitened, record)[acquired, middle],
        [name for name, is_acquired in zip(SEQUENCES, acquired, strict=True) if is_acquired],
        title=f"{owner} {record}, held out, slice {middle} of those used (axial, from 0), {cohort}",
    )
    save_svg(figure, patient)


def images_of(files: list[Path], record: str) -> np.ndarray:
    """Return one record's images of shape (sequence, slice, row, column)."""
    for file in files:
        shard = Items.read(file, ("values",))
        for values in shard.arrays["values"][shard.names["record"] == record]:
            return np.asarray(values)
    message = f"No file holds record {record}."
    raise ValueError(message)


if __name__ == "__main__":
    run(main)
