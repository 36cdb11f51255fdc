"""The simulated cohort: patients with brain tumours, written in the layout of the Decathlon brain task.

Brains are grown from the ICBM 152 tissue maps and deformed (`anatomy`), given tumours (`lesions`), and
scanned by the signal equation of each sequence (`physics`, `scanners`). A patient's volume is
a function of the settings and the patient's number, so shards of the cohort can be written in any order. Other
populations of patients and scanners are in `populations`.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import logging
from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path, PurePosixPath
from typing import Any

import nibabel as nib
import numpy as np

from zetadp.base.randomness import Purpose, stream
from zetadp.base.storage import read_json, write_json, write_text, written_whole
from zetadp.base.validation import UserError
from zetadp.mri.decathlon import write_task
from zetadp.phantom.physics import draw_tissues
from zetadp.phantom.populations import POPULATIONS, Population, drawn_population
from zetadp.phantom.scanners import acquire
from zetadp.phantom.settings import CHANNELS, DRAWN, Simulated


class CohortStream(IntEnum):
    """Purpose of a random stream of the cohort; first part of its place."""

    SCANNER = 0
    ASSIGNMENT = 1
    SHAPE = 2
    TUMOUR = 3
    TISSUES = 4
    ACQUISITION = 5


def patient_name(number: int) -> str:
    """Return the identifier of a patient, as the Decathlon brain task writes it.

    Examples
    --------
    >>> patient_name(7)
    'BRATS_007'
    """
    return f"BRATS_{number:03d}"


def scanner_of(settings: Simulated, number: int) -> int:
    """Return the index, from 0, of the scanner that a patient was examined with."""
    if settings.scanner_patients is not None and number <= sum(settings.scanner_patients):
        return int(np.searchsorted(np.cumsum(settings.scanner_patients), number))
    return int(_stream(settings, CohortStream.ASSIGNMENT, number).integers(settings.scanners))


def population_of(settings: Simulated) -> Population:
    """Return the population of a cohort."""
    return drawn_population(settings.seed) if settings.population == DRAWN else POPULATIONS[settings.population]


def simulate_patient(settings: Simulated, number: int) -> np.ndarray:
    """Simulate the examination of one patient.

    Parameters
    ----------
    settings
        The cohort.
    number
        Number of the patient, from 1.

    Returns
    -------
    Intensities (x, y, z, sequence) in arbitrary units, int16, zero outside the brain; sequences as in `CHANNELS`. They
    are the same on every call.
    """
    grid, population = settings.voxels(), population_of(settings)
    machine = population.scanner(_stream(settings, CohortStream.SCANNER, scanner_of(settings, number)))
    brain = population.brain(_stream(settings, CohortStream.SHAPE, number), grid)
    inside = brain.inside
    fractions = population.tissue(_stream(settings, CohortStream.TUMOUR, number), brain)
    tissues = draw_tissues(_stream(settings, CohortStream.TISSUES, number), machine.field_strength)
    volume = np.zeros((*grid.shape, len(CHANNELS)), dtype=np.int16)
    for channel, (name, protocol) in enumerate(zip(CHANNELS, machine.protocols, strict=True)):
        rng = _stream(settings, CohortStream.ACQUISITION, number, channel)
        present = tissues.after_contrast() if name == "t1gd" else tissues
        signal = protocol.jittered(rng, 0.05).signal(present).astype(np.float32) @ fractions
        volume[inside, channel] = acquire(signal, inside, grid, machine, channel, rng)
    return volume


def write_patients(settings: Simulated, train: int, folder: Path, numbers: Iterable[int]) -> dict[str, dict[str, str]]:
    """Write volumes below the task folder; their bytes depend on the settings and the patient alone.

    Parameters
    ----------
    settings
        The cohort.
    train
        Number of training patients, who have the first numbers.
    folder
        The task folder, which holds ``imagesTr`` and ``imagesTs``.
    numbers
        Patients to write; any subset, in any order.

    Returns
    -------
    For every file written, by its name relative to the folder, its ``sha256``, which the index is compared with.
    """
    written = {}
    for number in numbers:
        name = str(_image_path(number, train))
        data = _nifti(simulate_patient(settings, number), settings.voxels().affine)
        with written_whole(folder / name) as temporary:
            temporary.write_bytes(data)
        written[name] = {"sha256": hashlib.sha256(data).hexdigest()}
    return written


def write_shard(
    *, receipt: Path, shard: str, shards: int, folder: str, settings: dict[str, Any], sizes: dict[str, int]
) -> None:
    """Write the volumes of a shard of the cohort, then a receipt with the hash of every file."""
    numbers = np.array_split(np.arange(1, sum(sizes.values()) + 1), shards)[int(shard)]
    files = write_patients(Simulated(**settings), sizes["train"], Path(folder), numbers.tolist())
    write_json(receipt, {"settings": settings, "files": files})
    logging.getLogger(__name__).info("simulated %d patients", len(numbers))


def assemble(*, receipts: list[Path], dataset: Path, settings: dict[str, Any], sizes: dict[str, int]) -> None:
    """Check that every file of all shards is there, then write ``dataset.json``."""
    for receipt in receipts:
        missing = [name for name in read_json(receipt)["files"] if not (dataset.parent / name).is_file()]
        if missing:
            raise UserError(
                f"{len(missing)} volume(s) that {receipt} lists are gone, the first is {missing[0]}. Delete {receipt} "
                "and run again."
            )
    write_dataset_json(Simulated(**settings), dataset.parent, **sizes)


def write_dataset_json(settings: Simulated, folder: Path, train: int, test: int) -> None:
    """Write ``dataset.json`` with the official keys, and ``participants.tsv`` with the scanner of each patient."""
    numbers = range(1, train + test + 1)
    rows = [f"{patient_name(n)}\t{scanner_of(settings, n) + 1}" for n in numbers]
    write_text(folder / "participants.tsv", "\n".join(["participant_id\tscanner", *rows]) + "\n")
    population = population_of(settings)
    about = {
        "name": "BRATS",
        "description": population.description,
        "reference": population.reference,
        "licence": population.licence,
        "release": f"simulated, seed {settings.seed}",
    }
    files = [_image_path(number, train) for number in numbers]
    # Written last, because a cohort with this file counts as complete.
    write_task(folder, about, sequences=CHANNELS, training=files[:train], test=files[train:])


def _image_path(number: int, train: int) -> PurePosixPath:
    return PurePosixPath("imagesTr" if number <= train else "imagesTs", f"{patient_name(number)}.nii.gz")


def _nifti(values: np.ndarray, affine: np.ndarray) -> bytes:
    """Return a gzipped NIfTI-1 file whose bytes depend on the arguments alone."""
    image = nib.Nifti1Image(values, affine)  # type: ignore[no-untyped-call]
    image.header.set_xyzt_units("mm")  # type: ignore[no-untyped-call]
    packed = io.BytesIO()
    # The time stamp of gzip would make the bytes differ; level 1 is written and read fast.
    with gzip.GzipFile(filename="", fileobj=packed, mode="wb", compresslevel=1, mtime=0) as archive:
        archive.write(image.to_bytes())
    return packed.getvalue()


def _stream(settings: Simulated, purpose: CohortStream, *place: int) -> np.random.Generator:
    return stream(settings.seed, Purpose.COHORT, int(purpose), *place)
