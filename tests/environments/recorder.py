"""Write down how Snakemake calls every script's ``main``: wraps the library's seam in a copy of the repository."""

from __future__ import annotations

import functools
import json
from pathlib import Path


def recording(run):
    """Return the seam's ``run``, which also writes the first call of each script that ends well to ``recorded/``."""

    def instead(main, snakemake):
        @functools.wraps(main)
        def recorded(**arguments):
            main(**arguments)
            place = Path("recorded") / f"{snakemake.rule}.json"
            place.parent.mkdir(exist_ok=True)
            if not place.exists():
                made = [str(path) for path in snakemake.output]
                place.write_text(json.dumps({"arguments": plain(arguments), "made": made}))

        run(recorded, snakemake)

    return instead


def plain(value):
    """Return a value as JSON has it, with paths and mappings marked."""
    if isinstance(value, Path):
        return {"path": str(value)}
    if isinstance(value, dict):
        return {"dict": {key: plain(each) for key, each in value.items()}}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value
