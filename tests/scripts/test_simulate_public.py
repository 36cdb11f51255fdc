"""The stage that writes the public patients, without Snakemake."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np

from zetadp.base.storage import read_stack
from zetadp.mri.decathlon import SEQUENCES
from zetadp.phantom.public import PublicSettings, simulate_public_patient

SCRIPT = Path(__file__).parents[2] / "scripts/simulate_public.py"


def write(path: Path, shard: int, shards: int, anatomy: str = "atlas"):
    main = runpy.run_path(str(SCRIPT))["main"]
    settings = {"seed": 3, "patients": 5}
    main(images=path, shard=f"{shard:02d}", shards=shards, settings=settings, anatomy=anatomy, slice_count=4, size=16)
    return read_stack(path)


def test_shards_hold_every_public_patient_once_in_the_format_of_slices(tmp_path):
    stacks = [write(tmp_path / f"{shard}.h5", shard, 2) for shard in range(2)]
    assert [name for stack in stacks for name in stack.patients] == [f"public-{n:04d}" for n in range(5)]
    values = np.concatenate([stack.values for stack in stacks])
    assert values.shape == (5, 4, 4, 16, 16)
    assert np.array_equal(values[4], simulate_public_patient(PublicSettings(seed=3, patients=5), 4, 4, 16))
    for stack in stacks:
        assert stack.sequences == SEQUENCES
        assert stack.axes == ("record", "sequence", "slice", "row", "column")
        assert stack.provenance["simulated"] == {"seed": 3, "patients": 5, "anatomy": "atlas"}


def test_cut_into_shards_does_not_matter(tmp_path):
    whole = write(tmp_path / "whole.h5", 0, 1).values
    parts = [write(tmp_path / f"{shard}.h5", shard, 3).values for shard in range(3)]
    assert np.array_equal(np.concatenate(parts), whole)
