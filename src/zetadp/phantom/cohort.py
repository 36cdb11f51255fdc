"""The simulated cohort: populations of patients and scanners, written in the layout of the Decathlon brain task.

Brains are grown from the ICBM 152 tissue maps and deformed (`anatomy`), or made of implicit shapes (`procedural`),
given tumours (`lesions`), and scanned by the signal equation of each sequence (`scanners`). A patient's volume is a
function of the settings and the patient's number, so shards of the cohort can be written in any order.

Methods were developed on the standard population. The others show how a method works on other patients and scanners
than those it was designed for. None is fitted to data: they are only meant to be plausible. The properties of one
further population, `drawn`, follow from the cohort's seed: no method can be tuned to it. If the seed follows from an
older fact, such as the hash of the commit that fixed a method, that cohort is a fair test of the method.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path, PurePosixPath
from typing import Any

import nibabel as nib
import numpy as np

from zetadp.base.randomness import Purpose, stream
from zetadp.base.storage import read_json, write_json, write_text, written_whole
from zetadp.base.validation import UserError
from zetadp.mri.decathlon import write_task
from zetadp.phantom.anatomy import Brain, Tissue, Variability, atlas_coordinates, brain_of_atlas
from zetadp.phantom.lesions import add_tumours, draw_tumour, hollow_cores, with_no_lesion
from zetadp.phantom.procedural import draw_procedural_brain
from zetadp.phantom.scanners import Scanner, acquire, draw_scanner, draw_tissues, draw_vendor_scanner
from zetadp.phantom.settings import CHANNELS, DRAWN, Simulated, VoxelGrid

CHARACTER_STREAM = 2**20
"""Index of the stream of a drawn population among those of the cohort; all other indices are much smaller."""


@dataclass(frozen=True)
class Lesions:
    """The lesions of patients.

    Attributes
    ----------
    share
        Share of the patients with lesions.
    count
        Least and largest number.
    radius, oedema
        Least and largest radius, and width of the oedema, in mm; None for the values of `draw_tumour`.
    hollowed
        Share of the patients whose lesions are cavities.
    """

    share: float = 0.9
    count: tuple[int, int] = (1, 1)
    radius: tuple[float, float] | None = None
    oedema: tuple[float, float] | None = None
    hollowed: float = 0.0


@dataclass(frozen=True)
class Population:
    """Properties that the patients and scanners of a population share.

    Attributes
    ----------
    without_atlas
        Share of brains from implicit shapes; the others come from the atlas.
    aged
        Whether sulci and ventricles of brains from the atlas widen together, with an age from 18 to 95 years.
    shape
        Variation of shape between patients; None for the default of each kind of brain.
    lesions
        Lesions of the patients; None for a healthy population.
    vendor
        Share of centres whose scanners are those of `draw_vendor_scanner`.
    jitter
        Largest relative change of the settings of a centre's protocols.
    noise, bias
        Factors on the scanner's noise and receive field.
    description, reference, licence
        Texts for ``dataset.json``.
    """

    without_atlas: float = 0.0
    aged: bool = False
    shape: Variability | None = None
    lesions: Lesions | None = Lesions()
    vendor: float = 0.0
    jitter: float = 0.0
    noise: float = 1.0
    bias: float = 1.0
    description: str = "Simulated patients with gliomas, in the layout of the Decathlon brain task; not real data"
    reference: str = "zetadp simulated cohort; anatomy from ICBM 152, doi:10.1016/j.neuroimage.2010.07.033"
    licence: str = "simulated; the anatomy is grown from the ICBM 152 maps, see NOTICE"

    def brain(self, rng: np.random.Generator, grid: VoxelGrid) -> Brain:
        """Draw a healthy brain on a grid."""
        if _is_chosen(rng, self.without_atlas):
            return _draw_from_shapes(rng, grid, self.shape)
        return _draw_from_atlas(rng, grid, self.shape, aged=self.aged)

    def tissue(self, rng: np.random.Generator, brain: Brain) -> np.ndarray:
        """Add lesions to a brain, unless the patient has none, and return the fractions (7, n)."""
        if self.lesions is None or rng.random() >= self.lesions.share:
            return with_no_lesion(brain.healthy)
        least, most = self.lesions.count
        tumours = []
        for _ in range(rng.integers(least, most + 1)):
            tumour = draw_tumour(rng, brain.white)
            if self.lesions.radius is not None:
                tumour = replace(tumour, radius=float(rng.uniform(*self.lesions.radius)))
            if self.lesions.oedema is not None:
                tumour = replace(tumour, oedema=float(rng.uniform(*self.lesions.oedema)))
            tumours.append(tumour)
        fractions = add_tumours(brain.healthy, brain.points, tumours)
        return hollow_cores(fractions) if _is_chosen(rng, self.lesions.hollowed) else fractions

    def scanner(self, rng: np.random.Generator) -> Scanner:
        """Draw a scanner with its protocols."""
        machine = (draw_vendor_scanner if _is_chosen(rng, self.vendor) else draw_scanner)(rng)
        if self.jitter:
            flair, t1, _, t2 = (protocol.jittered(rng, self.jitter) for protocol in machine.protocols)
            # The same T1 weighting before and after contrast, as in the other populations.
            machine = replace(machine, protocols=(flair, t1, t1, t2))
        return replace(machine, noise=machine.noise * self.noise, bias=machine.bias * self.bias)


POPULATIONS = {
    "standard": Population(),
    # The same anatomies on scanners of another kind.
    "vendor": Population(vendor=1.0),
    "healthy": Population(
        aged=True,
        lesions=None,
        description="Simulated healthy adults, in the layout of the Decathlon brain task; not real data",
    ),
    # Two to four large gliomas with wide oedema, which are cavities in two patients of five.
    "heavy": Population(lesions=Lesions(count=(2, 4), radius=(14, 27), oedema=(8, 24), hollowed=0.4)),
    "procedural": Population(
        without_atlas=1.0,
        reference="zetadp simulated cohort; anatomy from implicit shapes, no atlas",
        licence="simulated",
    ),
}
"""Populations by their name, `settings.FIXED`."""


def drawn_population(seed: int) -> Population:
    """Draw a population from a cohort's seed: between the others, or beyond them."""
    rng = stream(seed, Purpose.COHORT, CHARACTER_STREAM)
    low, high = sorted(rng.uniform(4, 28, 2))
    narrow, wide = sorted(rng.uniform(2, 24, 2))
    return Population(
        without_atlas=float(rng.uniform(0.3, 1.0)),
        shape=Variability(
            rotation=float(rng.uniform(2, 7)),
            scale=float(rng.uniform(0.04, 0.1)),
            shift=float(rng.uniform(1.5, 5)),
            displacements=((60.0, float(rng.uniform(4, 9))), (25.0, float(rng.uniform(2, 4)))),
            ventricles=(float(rng.uniform(-0.3, 0)), float(rng.uniform(0, 0.9))),
        ),
        lesions=Lesions(
            count=(1, int(rng.integers(1, 6))),
            radius=(float(low), float(high)),
            oedema=(float(narrow), float(wide)),
            hollowed=float(rng.uniform(0, 0.5)),
        ),
        vendor=float(rng.uniform(0, 1)),
        jitter=float(rng.uniform(0.02, 0.1)),
        noise=float(rng.uniform(0.7, 2.0)),
        bias=float(rng.uniform(0.7, 2.0)),
        description="Simulated patients of a population that a seed decides, in the layout of the Decathlon; not real",
        reference="zetadp simulated cohort; anatomy from ICBM 152, doi:10.1016/j.neuroimage.2010.07.033, and from "
        "implicit shapes",
    )


def _draw_from_atlas(rng: np.random.Generator, grid: VoxelGrid, shape: Variability | None, *, aged: bool) -> Brain:
    """Draw a brain from the atlas: of any adult age, or ``aged`` by 18 to 95 years."""
    if not aged:
        cut, atrophy, vessels = rng.uniform(0.35, 0.65), rng.uniform(-0.5, 0.9), rng.uniform(0.12, 0.3)
        return brain_of_atlas(atlas_coordinates(rng, grid, shape), grid, cut, atrophy, vessels)
    old = (rng.uniform(18, 95) - 18) / (95 - 18)
    atrophy = float(np.clip(-0.7 + 1.5 * old + rng.normal(0, 0.12), -0.9, 0.95))
    # Fluid in the ventricles grows slowly until sixty, then fast.
    swelling = float(np.clip(-0.3 + 1.1 * old**1.7 + rng.normal(0, 0.08), -0.4, 0.95))
    cut, vessels = rng.uniform(0.35, 0.65), rng.uniform(0.12, 0.3)
    points = atlas_coordinates(rng, grid, Variability(ventricles=(swelling, swelling)))
    return brain_of_atlas(points, grid, cut, atrophy, vessels)


def _draw_from_shapes(rng: np.random.Generator, grid: VoxelGrid, shape: Variability | None) -> Brain:
    """Draw a procedural brain."""
    form = draw_procedural_brain(rng)
    margin = rng.uniform(-0.5, 1.0)
    points = atlas_coordinates(rng, grid, shape or Variability(ventricles=(0.0, 0.0)))
    inside = (form.below_surface(points.reshape(3, -1)) > margin).reshape(grid.shape)
    points = points[:, inside]
    voxel = float(np.mean(grid.voxel))

    def white(at: np.ndarray) -> np.ndarray:
        # Fractions are defined below the surface only.
        return np.where(form.below_surface(at) > margin, form.fractions(at, voxel)[Tissue.WHITE], 0)

    return Brain(inside, points, form.fractions(points, voxel), white)


def _is_chosen(rng: np.random.Generator, share: float) -> bool:
    """Return True with probability ``share``; nothing is drawn for 0 and 1."""
    return share == 1 or (share > 0 and bool(rng.random() < share))


class CohortStream(IntEnum):
    """Purpose of a random stream of the cohort; first of its indices."""

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
    """Return the index, from 0, of a patient's scanner."""
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
    """Write volumes below the task folder; their bytes depend on the settings and the patient only.

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
    For every file written, by its name relative to the folder, its ``sha256``, to compare with the index.
    """
    written = {}
    for number in numbers:
        name = str(_image_path(number, train))
        data = _encode_nifti(simulate_patient(settings, number), settings.voxels().affine)
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
    """Check that all files of all shards exist, then write ``dataset.json``."""
    for receipt in receipts:
        missing = [name for name in read_json(receipt)["files"] if not (dataset.parent / name).is_file()]
        if missing:
            raise UserError(
                f"Expected the volumes that {receipt} lists, found {len(missing)} of them gone, the first "
                f"{missing[0]}. Delete {receipt} and run again."
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


def _encode_nifti(values: np.ndarray, affine: np.ndarray) -> bytes:
    """Return a gzipped NIfTI-1 file whose bytes depend on the arguments only."""
    image = nib.Nifti1Image(values, affine)  # type: ignore[no-untyped-call]
    image.header.set_xyzt_units("mm")  # type: ignore[no-untyped-call]
    packed = io.BytesIO()
    # The time stamp of gzip would make the bytes differ; level 1 is written and read fast.
    with gzip.GzipFile(filename="", fileobj=packed, mode="wb", compresslevel=1, mtime=0) as archive:
        archive.write(image.to_bytes())
    return packed.getvalue()


def _stream(settings: Simulated, purpose: CohortStream, *indices: int) -> np.random.Generator:
    return stream(settings.seed, Purpose.COHORT, int(purpose), *indices)
