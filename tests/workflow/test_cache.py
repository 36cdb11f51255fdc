"""Files that experiments share through Snakemake's cache."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

import pytest

from zetadp.base.storage import content_hash
from zetadp.mri.kspace import write_kspace, write_whitened

pytestmark = pytest.mark.slow

COHORT = "resources/phantom-smoke"
PUBLIC = "resources/public-1-6-4x32/images"
SCRIPTS = Path(__file__).parents[2] / "scripts"
KINDS = ("slices", "kspace", "whitened")
CACHED = ("slice_volumes", "make_kspace", "whiten", "simulate_public")
SHARDS = ("shard-00.h5", "shard-01.h5")
IMAGES = [f"{COHORT}/{kind}/{shard}" for kind in KINDS for shard in SHARDS]
FILES = [*IMAGES, *(f"{PUBLIC}/{shard}" for shard in SHARDS)]


def test_what_comes_from_the_cache_is_what_the_experiment_would_have_made(finished, copies, tmp_path, cache):
    made = contents(finished)
    assert len(set(made.values())) == len(FILES), "two shards hold the same"

    first = without_images(copies("first"))
    first.snakemake(*FILES, "--cache")
    assert contents(first) == made
    assert len(list(cache.iterdir())) == len(FILES)

    # Another checkout with the same settings computes none of it.
    second = without_images(copies("second"))
    second.snakemake(*FILES, "--cache")
    assert contents(second) == made
    # Snakemake touches the log of a job that it does not run.
    assert not [log for rule in CACHED for log in (second.root / "logs" / rule).iterdir() if log.stat().st_size]

    # Another cohort and other slices under the same names: the cache holds nothing of theirs, and keeps what it has.
    first.snakemake(*IMAGES, "--cache", "--config", "cohort={simulated: {seed: 8}}", "slices={count: 3}")
    assert {name: content_hash(first.root / name) for name in IMAGES} == computed(first.root / COHORT, tmp_path)
    assert len(list(cache.iterdir())) == len(FILES) + len(IMAGES)
    assert contents(second) == made


def without_images(checkout):
    """Take all that can be cached from a finished experiment, with the logs of its jobs."""
    for name in FILES:
        (checkout.root / name).unlink()
    for rule in CACHED:
        shutil.rmtree(checkout.root / "logs" / rule)
    return checkout


def contents(checkout):
    return {name: content_hash(checkout.root / name) for name in FILES}


def computed(cohort, scratch):
    """Return what the stages make of a cohort when they are called without Snakemake."""
    found = {}
    for number, shard in enumerate(SHARDS):
        slices, kspace, whitened = (scratch / f"{kind}-{shard}" for kind in KINDS)
        source = {"dataset": cohort / "Task01_BrainTumour/dataset.json", "table": cohort / "index.csv"}
        cut = {"shard": f"0{number}", "shards": len(SHARDS), "slice_count": 3, "size": 32}
        runpy.run_path(str(SCRIPTS / "slice_volumes.py"))["main"](**source, **cut, slices=slices)
        write_kspace(slices=slices, kspace=kspace)
        write_whitened(kspace=kspace, whitened=whitened)
        for kind, path in zip(KINDS, (slices, kspace, whitened), strict=True):
            found[f"{COHORT}/{kind}/{shard}"] = content_hash(path)
    return found
