"""The stage that writes the public patients, without Snakemake."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np

from zetadp.base.storage import Items
from zetadp.phantom.public import PublicSettings, simulate_public_patient

SCRIPT = Path(__file__).parents[2] / "scripts/simulate_public.py"


def write(path: Path, shard: int, shards: int, anatomy: str = "atlas") -> Items:
    main = runpy.run_path(str(SCRIPT))["main"]
    settings = {"seed": 3, "patients": 5}
    main(images=path, shard=f"{shard:02d}", shards=shards, settings=settings, anatomy=anatomy, slice_count=4, size=16)
    return Items.read(path, ("values",))


def test_shards_hold_every_public_patient_once(tmp_path):
    shards = [write(tmp_path / f"{shard}.h5", shard, 2) for shard in range(2)]
    assert [name for shard in shards for name in shard.names["record"]] == [f"public-{n:04d}" for n in range(5)]
    values = np.concatenate([shard.arrays["values"] for shard in shards])
    public = PublicSettings(seed=3, patients=5)
    assert np.array_equal(values, [simulate_public_patient(public, number, 4, 16) for number in range(5)])
    for shard in shards:
        assert shard.provenance["simulated"] == {"seed": 3, "patients": 5, "anatomy": "atlas"}
