"""Compare the time to read centre slices with the time that nibabel needs to decompress the volumes.

Both read the same file directly after each other, in alternating order, so that a slow moment of the machine affects
both. The result is the median ratio. The bound is 1.3: reading may take 30 % longer than nibabel's decompression.

    python benchmarks/slicing.py                                  # three synthetic volumes of 240 x 240 x 155 x 4
    python benchmarks/slicing.py --folder data/Task01_BrainTumour  # the volumes of a task
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

import nibabel as nib
import numpy as np

from zetadp.mri.decathlon import SEQUENCES, read_task
from zetadp.mri.volumes import read_centre_slices

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BOUND = 1.3
SHAPE = (240, 240, 155, 4)


def decompress(path: Path) -> object:
    """Read all voxels as nibabel does."""
    return np.asarray(nib.load(path).dataobj)


def synthetic_volume(path: Path, seed: int) -> None:
    """Write a volume that compresses about as well as a skull-stripped brain: zeros around a noisy ellipsoid."""
    rng = np.random.default_rng(seed)
    axes = (np.linspace(-1, 1, n) / extent for n, extent in zip(SHAPE[:3], (0.58, 0.72, 0.9), strict=True))
    inside = sum(np.meshgrid(*(axis**2 for axis in axes), indexing="ij", sparse=True)) < 1
    volume = np.zeros(SHAPE, dtype=np.int16, order="F")
    for channel in range(SHAPE[3]):
        volume[inside, channel] = 600 + 40 * rng.standard_normal(np.count_nonzero(inside))
    nib.save(nib.Nifti1Image(volume, np.diag([-1.0, -1.0, 1.0, 1.0])), path)


def seconds(action: Callable[[], object]) -> float:
    """Return the duration of an action in seconds."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def peak(action: Callable[[], object]) -> float:
    """Return the peak memory of an action, in MB."""
    tracemalloc.start()
    action()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most / 1e6


def compare(path: Path, order: Sequence[str], repetitions: int) -> list[tuple[float, float]]:
    """Return pairs of seconds: nibabel's decompression, and our reading including the small slices."""
    pairs = []
    for repetition in range(repetitions + 1):
        actions = [lambda: decompress(path), lambda: read_centre_slices(path, order)]
        if repetition % 2:
            ours, floor = seconds(actions[1]), seconds(actions[0])
        else:
            floor, ours = seconds(actions[0]), seconds(actions[1])
        pairs.append((floor, ours))
    return pairs[1:]  # the first one warms the file cache


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line per volume and the median of all; fail above the bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="a task in the Decathlon layout; synthetic volumes without it")
    parser.add_argument("--volumes", type=int, default=3, help="read at most so many volumes (default: 3)")
    parser.add_argument("--repetitions", type=int, default=9, help="pairs of timings per volume (default: 9)")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        order: Sequence[str] = SEQUENCES
        if chosen.folder:
            task = read_task(chosen.folder)
            paths = [task.root / file for file in (*task.training, *task.test)][: chosen.volumes]
            order = task.sequences
        else:
            paths = [Path(temporary) / f"volume_{number}.nii.gz" for number in range(chosen.volumes)]
            for number, path in enumerate(paths):
                synthetic_volume(path, number)
        ratios = []
        print("volume                    MB   nibabel s   slices s   ratio   peak MB (nibabel, slices)")
        for path in paths:
            pairs = compare(path, order, chosen.repetitions)
            ratio = [ours / floor for floor, ours in pairs]
            ratios += ratio
            floor, ours = (statistics.median(times) for times in zip(*pairs, strict=True))
            memory = peak(lambda path=path: decompress(path)), peak(lambda path=path: read_centre_slices(path, order))
            print(
                f"{path.name:22} {path.stat().st_size / 1e6:5.1f} {floor:11.3f} {ours:10.3f} "
                f"{statistics.median(ratio):7.2f} {memory[0]:13.0f} {memory[1]:7.0f}"
            )
    result = statistics.median(ratios)
    print(f"median ratio {result:.2f} (lowest {min(ratios):.2f}, highest {max(ratios):.2f}); bound {BOUND}")
    return int(result > BOUND)


if __name__ == "__main__":
    sys.exit(main())
