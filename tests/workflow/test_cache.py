"""Files that experiments share through Snakemake's cache."""

from __future__ import annotations

import shutil

import pytest

from zetadp.base.storage import content_hash

pytestmark = pytest.mark.slow

SHARDS = ("shard-00.h5", "shard-01.h5")
IMAGES = [f"resources/phantom-smoke/{kind}/{shard}" for kind in ("slices", "kspace", "whitened") for shard in SHARDS]
FILES = [*IMAGES, *(f"resources/public-1-6-4x32/images/{shard}" for shard in SHARDS)]
CACHED = ("slice_volumes", "make_kspace", "whiten", "simulate_public")


def test_what_comes_from_the_cache_is_what_the_experiment_would_have_made(finished, copies, cache):
    made = contents(finished, FILES)
    assert len(set(made)) == len(FILES), "two shards hold the same"
    first, second = copies("first"), copies("second")
    for there in (first, second):
        for name in FILES:
            (there.root / name).unlink()
        for rule in CACHED:
            shutil.rmtree(there.root / "logs" / rule)
        there.snakemake(*FILES, "--cache")
        assert contents(there, FILES) == made
        assert len(list(cache.iterdir())) == len(FILES)
    # The second checkout computed none of it: Snakemake touches the log of a job that it does not run.
    assert not [log for rule in CACHED for log in (second.root / "logs" / rule).iterdir() if log.stat().st_size]

    # Another cohort and other slices under the same names: the cache holds nothing of theirs, and keeps what it has.
    others = ("--config", "cohort={simulated: {seed: 8}}", "task={settings: {slices: 3}}")
    first.snakemake(*IMAGES, "--cache", *others)
    assert len(list(cache.iterdir())) == len(FILES) + len(IMAGES)
    assert contents(second, FILES) == made
    second.snakemake(*IMAGES, *others)
    assert contents(first, IMAGES) == contents(second, IMAGES)


def contents(checkout, files):
    return [content_hash(checkout.root / name) for name in files]
