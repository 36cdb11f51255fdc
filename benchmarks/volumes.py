"""Measure the costs of a volume of the Decathlon's full grid in each stage before training: processor time, and bytes.

A chosen number of volumes of 240 x 240 x 155 voxels and four sequences is simulated and passed through the functions
that the stages call. Times are medians over volumes and turns, in processor time of one thread, because machines are
shared. The last column is the time of 750 volumes on 8 cores, of which indexing uses four. It leaves out the disk and
the start of jobs.

    python -m benchmarks.volumes
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from benchmarks.growth import RESULTS
from zetadp.base.storage import content_hash, write_text
from zetadp.brain.backbone import load_backbone, shipped_backbone
from zetadp.brain.images import check_backbone
from zetadp.mri.decathlon import SEQUENCES
from zetadp.mri.index import index_cohort
from zetadp.mri.kspace import to_kspace, whiten_records
from zetadp.mri.nifti import read_volume
from zetadp.mri.volumes import read_centre_slices
from zetadp.nn.settings import NetworkSettings
from zetadp.phantom.cohort import write_dataset_json, write_patients
from zetadp.phantom.settings import Simulated
from zetadp.report.provenance import origin
from zetadp.report.rendering import to_csv

GRID, SLICES = [240, 240, 155], 20
PATIENTS, CORES, INDEXING = 750, 8, 4
SEED = 2026


def measure_stages(folder: Path, count: int, turns: int) -> pd.DataFrame:
    """Return one row for each stage, and one each for the hash and the decompression in them.

    Parameters
    ----------
    folder
        Empty folder for the volumes.
    count
        Number of volumes; one of them is a test patient.
    turns
        Number of passes of each volume through each stage.
    """
    settings = Simulated(seed=SEED, grid=GRID)
    began = time.process_time()
    written = write_patients(settings, count - 1, folder, range(1, count + 1))
    simulation = (time.process_time() - began) / count
    write_dataset_json(settings, folder, count - 1, 1)
    paths = {folder / name: file["sha256"] for name, file in written.items()}
    compressed = float(np.mean([path.stat().st_size for path in paths]))

    def index() -> object:
        return index_cohort(folder, train_patients=count - 1, test_patients=1, slices=SLICES)

    def cut(path: Path) -> np.ndarray:
        return read_centre_slices(path, SEQUENCES, SLICES, sha256=paths[path])

    stored = {path: path.read_bytes() for path in paths}
    volumes = {path: read_volume(path) for path in paths}
    images = {path: cut(path) for path in paths}
    kspace = {path: to_kspace(backbone) for path, backbone in images.items()}
    heads = [NetworkSettings("head", domain, components=64) for domain in ("features", "study")]
    backbones = {head.domain: check_backbone(load_backbone(shipped_backbone(head))) for head in heads}
    features = {
        domain: {path: backbone.record_features(values[None]) for path, values in kspace.items()}
        for domain, backbone in backbones.items()
    }
    decompressed = float(np.mean([volume.size for volume in volumes.values()]))

    def bytes_of(arrays: dict[Path, np.ndarray]) -> float:
        return float(np.mean([array.nbytes for array in arrays.values()]))

    rows = [
        ("simulate", simulation, 0.0, compressed),
        ("index", median_seconds(lambda _: index(), [folder], turns) / count, compressed, 0.0),
        ("index, its hash alone", median_seconds(content_hash, paths, turns), compressed, 0.0),
        ("slice", median_seconds(cut, paths, turns), compressed, bytes_of(images)),
        (
            "slice, its decompression alone",
            median_seconds(lambda p: volumes[p].decompress(stored[p]), paths, turns),
            compressed,
            decompressed,
        ),
        ("k-space", median_seconds(lambda p: to_kspace(images[p]), paths, turns), bytes_of(images), bytes_of(kspace)),
        (
            "whiten",
            median_seconds(lambda p: whiten_records(kspace[p][None]), paths, turns),
            bytes_of(kspace),
            bytes_of(kspace),
        ),
    ]
    for domain, backbone in backbones.items():
        seconds = median_seconds(lambda p, backbone=backbone: backbone.record_features(kspace[p][None]), paths, turns)  # type: ignore[misc]  # mypy infers no type of such a lambda
        rows.append((f"features, domain {domain}", seconds, bytes_of(kspace), bytes_of(features[domain])))
    table = pd.DataFrame(rows, columns=["stage", "seconds", "bytes_read", "bytes_written"])
    cores = np.where(table["stage"].str.startswith("index"), INDEXING, CORES)  # threads of the only job, or jobs
    table["seconds_750_on_8_cores"] = (PATIENTS * table["seconds"] / cores).round(1)
    return table.assign(seconds=table["seconds"].round(4)).astype({"bytes_read": int, "bytes_written": int})


def median_seconds(action: Callable[[Path], object], paths: dict[Path, str] | list[Path], turns: int) -> float:
    """Return the median processor time of an action on a path, in seconds; its first turn is not counted."""
    seconds = []
    for turn in range(turns + 1):
        for path in paths:
            began = time.process_time()
            action(path)
            seconds.append(time.process_time() - began if turn else math.nan)
    return float(np.nanmedian(seconds))


def main() -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--volumes", type=int, default=3, help="number of volumes, at least 2 (%(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="measurements of each volume (%(default)s)")
    parser.add_argument("--output", type=Path, default=RESULTS / "volumes.csv")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        table = measure_stages(Path(folder), chosen.volumes, chosen.turns)
    print(table.to_string(index=False))
    declared = f"{chosen.volumes} simulated volumes of {' x '.join(map(str, GRID))} voxels, 4 sequences", str(SEED)
    write_text(chosen.output, to_csv(table, origin(*declared)))


if __name__ == "__main__":
    main()
