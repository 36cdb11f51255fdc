"""Test the networks of reconstruction.yaml on data that are not simulated: three patients' volumes and one slice.

    python -m papers.complex_dp.reconstruct_real --data FOLDER

FOLDER contains ``decathlon_sample/Task01_BrainTumour`` (magnitude volumes in the layout of the Decathlon) and
``kspace/cartesian_ksp.npy`` (measured k-space of one slice, eight coils, undersampled). Needs the finished runs of the
scenario. It writes real.csv, real.md, real_patient.svg and real_slice.svg. No network is
trained on these data.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from papers.complex_dp.tabulate_reconstruction import (
    METRICS,
    OUTPUT,
    PRIVATE,
    SCENARIO,
    TRAINED,
    WITHOUT_NOISE,
    Tested,
    declared,
    drawn,
    untrained,
)
from papers.experiments import Experiment, ended
from zetadp.base.epsilon import epsilon_shown
from zetadp.base.storage import read_json, write_text
from zetadp.base.tables import MISSING, Sheet
from zetadp.base.validation import UserError
from zetadp.core.evaluation import outputs_of
from zetadp.core.pretrained import load_model
from zetadp.core.task import pipeline_task_of
from zetadp.mri.decathlon import SEQUENCES
from zetadp.mri.kspace import to_image, to_kspace
from zetadp.mri.volumes import read_centre_slices
from zetadp.report.figurestyle import save_svg
from zetadp.report.provenance import origin
from zetadp.report.rendering import to_csv, to_markdown
from zetadp.tasks.reconstruction.volumes import KspaceVolume, undersampled

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zetadp.tasks.reconstruction.task import Reconstruction

VOLUMES, MEASURED = "decathlon_sample/Task01_BrainTumour", "kspace/cartesian_ksp.npy"
SEQUENCE = "T2w"
"""As the private patients have it."""
APART, SLICES = 4, 4
"""Millimetres between two slices, and slices of a patient, as those of the simulation."""
CENTRE = 24
"""Side of the centre of the measured k-space that is complete, for the coils' sensitivities."""
PENALTY = 0.01
"""Of the squared norm of the reference, whose k-space has maximum intensity one."""
DATA = {"patients": "three patients, T2w volumes", "slice": "one measured slice, eight coils"}


def patients(folder: Path, size: int) -> list[KspaceVolume]:
    """Return the middle T2w slices of every volume, with the k-space that their magnitude images have."""
    found = []
    for path in sorted(folder.glob("images*/*.nii.gz")):
        images = read_centre_slices(path, SEQUENCES, APART * (SLICES - 1) + 1, size)[SEQUENCES.index(SEQUENCE), ::APART]
        name = path.name.removesuffix(".nii.gz")
        found.append(KspaceVolume(name, name, SEQUENCE, to_kspace(images), np.abs(images)))
    if not found:
        raise UserError(f"Expected volumes (images*/*.nii.gz) in {folder}, found none.")
    return found


def measured_slice(file: Path, size: int) -> KspaceVolume:
    """Convert a slice that was measured by eight coils to complete data of a single coil.

    The lowest frequencies are reconstructed from all coils (SENSE, with sensitivities by ESPIRiT). This uses no
    sparsity because compressed sensing is one of the methods under test. The complex image is the reference, and its
    k-space is undersampled again.
    """
    from sigpy.mri import app

    if not file.is_file():
        raise UserError(f"Expected {file} with k-space (coil, ky, kx) of one slice, found none.")
    coils = np.load(file)
    top, left = ((length - size) // 2 for length in coils.shape[1:])
    coils = coils[:, top : top + size, left : left + size]
    coils = coils / np.sqrt((np.abs(to_image(coils)) ** 2).sum(axis=0)).max()
    np.random.seed(0)  # noqa: NPY002  (sigpy draws where it starts from the global generator)
    maps = app.EspiritCalib(coils, calib_width=CENTRE, show_pbar=False).run()
    image = app.SenseRecon(coils, maps, lamda=PENALTY, max_iter=30, show_pbar=False).run()[None].astype(np.complex64)
    return KspaceVolume("measured", "measured", "T1w", to_kspace(image), np.abs(image))


def tested_of(volumes: Iterable[KspaceVolume], task: Reconstruction) -> Tested:
    """Leave out lines of volumes by the masks of their names, as for every private patient."""
    own = undersampled((("test", volume) for volume in volumes), task.masks(), task.size)
    rows = {str(who): places for who, places in own.names.groupby("patient").indices.items()}
    return Tested(task, own.arrays["kspace"], own.arrays["targets"], rows)


def trained_images(experiment: Experiment, tested: Tested) -> dict[tuple[str, str], list[np.ndarray]]:
    """Return the images of every seed of the networks that start from the public one."""
    found: dict[tuple[str, str], list[np.ndarray]] = {}
    for name, epsilon in ((PRIVATE, "8"), (WITHOUT_NOISE, "inf")):
        network = TRAINED[name, epsilon]
        for seed in experiment.metrics(network, "central", epsilon):
            file = experiment.results / f"runs/{network}/central/eps-{epsilon}/seed-{seed}/model.safetensors"
            model = load_model(file).network
            images = outputs_of(model, torch.from_numpy(tested.kspace)[:, None]).numpy()
            found.setdefault((name, epsilon), []).append(images)
    return found


def rows_of(data: str, tested: Tested, images: dict[tuple[str, str], list[np.ndarray]]) -> list[dict[str, Any]]:
    """Return one row per method: means over volumes and seeds, and the standard deviation over seeds."""
    rows = []
    for (method, epsilon), every in images.items():
        row: dict[str, Any] = {"data": DATA[data], "method": method, "epsilon": epsilon, "seeds": len(every)}
        values = [{name: np.mean(list(own.values())) for name, own in tested.measured(each).items()} for each in every]
        for metric in METRICS:
            of_seeds = [value[metric] for value in values]
            row[metric] = np.mean(of_seeds)
            row[f"{metric}_std"] = np.std(of_seeds, ddof=1) if len(of_seeds) > 1 else np.nan
        rows.append(row)
    return rows


def sheet(found: pd.DataFrame, made: tuple[str, ...]) -> Sheet:
    """Lay the table out, one line per method."""

    def cell(row: pd.Series, metric: str, digits: int) -> str:
        spread = row[f"{metric}_std"]
        return f"{row[metric]:.{digits}f}" + ("" if pd.isna(spread) else f" ± {spread:.{digits}f}")

    lines = tuple(
        (
            row["data"],
            row["method"],
            "0" if row["epsilon"] == "0" else epsilon_shown(row["epsilon"]),
            *(cell(row, metric, digits) for metric, digits in zip(METRICS, (3, 4, 2), strict=True)),
            str(int(row["seeds"])) if row["epsilon"] != "0" else MISSING,
        )
        for _, row in found.iterrows()
    )
    notes = (
        "Nothing was trained or chosen on these data: networks are those of the simulated patients (cohort below). "
        "Means over volumes and seeds, standard deviation over seeds. Three patients and one slice allow no interval.",
        f"Patients: {SLICES} slices each of magnitude images ({SEQUENCE}). Their k-space is simulated: the Fourier "
        "transform of the magnitude, without phase or further noise.",
        "Measured slice: the reference is reconstructed from eight coils, which measured 30 % of its frequencies "
        "(SENSE). Its k-space, with the measured phase, is then undersampled as one coil's. No complete measurement "
        "exists, so errors of the reference count as well.",
        *made,
    )
    headings = ("data", "method", "ε", *METRICS, "seeds")
    title = "Reconstruction of 4 times accelerated k-space of real heads"
    return Sheet(title, headings, lines, notes, names=2)


def write_real(folder: Path, output: Path) -> None:
    """Write the table and a figure for each kind of data."""
    experiment = Experiment.of(SCENARIO)
    task = pipeline_task_of(read_json(experiment.results / "runs/tuned/central/eps-8/seed-0/plan.json")["task"])
    volumes = {
        "patients": patients(folder / VOLUMES, task.size),
        "slice": [measured_slice(folder / MEASURED, task.size)],
    }
    shown = {"patients": ("real_patient", "T2w volume of a patient"), "slice": ("real_slice", "Measured slice")}
    rows = []
    for data, own in volumes.items():
        tested = tested_of(own, task)
        made = {name: make() for name, make in untrained(tested).items()}
        images = {(name, "0"): [each] for name, each in made.items() if not name.startswith("real twin")}
        images |= trained_images(experiment, tested)
        rows += rows_of(data, tested, images)
        labels = {PRIVATE: "private, ε = 8", WITHOUT_NOISE: "trained, no noise"}
        first = {labels.get(name, name): every[0] for (name, _), every in images.items()}
        file, title = shown[data]
        figure = drawn(tested, first, own[0].patient, title=f"{title}, k-space undersampled 4 times")
        save_svg(figure, output / f"{file}.svg")
    found, origins = pd.DataFrame(rows), origin(*declared(), runs=experiment.environments())
    laid_out = to_markdown(sheet(found, origins))
    write_text(output / "real.csv", to_csv(found, origins, float_format="%.6g"))
    write_text(output / "real.md", laid_out)
    print(laid_out)


def main() -> None:
    """Write the table and the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the volumes and of the measured slice")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args()
    torch.set_num_threads(1)
    write_real(given.data, given.output)


if __name__ == "__main__":
    ended(main)
