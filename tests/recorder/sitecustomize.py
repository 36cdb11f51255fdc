"""Write down how Snakemake calls every script's ``main``, for `tests/environments` to call it again.

Python imports a module of this name when it starts. So every job with this folder on its path is recorded, and no file
of the checkout changes.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
import sys
from pathlib import Path

SEAM = "zetadp.base.workflow"
PLACE = Path(".snakemake/recorded")


class Recorder:
    """A finder of modules that wraps ``run`` of the library's seam when that is imported."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != SEAM:
            return None
        sys.meta_path.remove(Recorder)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def instead(module):
            execute(module)
            module.run = recording(module.run)

        spec.loader.exec_module = instead
        return spec


def recording(run):
    """Return the seam's ``run``, which also writes the first call of each script that ends well to `PLACE`."""

    def instead(main, snakemake=None, **options):
        snakemake = snakemake or main.__globals__["snakemake"]

        @functools.wraps(main)
        def recorded(**arguments):
            main(**arguments)
            place = PLACE / f"{snakemake.rule}.json"
            place.parent.mkdir(parents=True, exist_ok=True)
            if not place.exists():
                needed, made = ([str(path) for path in files] for files in (snakemake.input, snakemake.output))
                place.write_text(json.dumps({"arguments": plain(arguments), "needed": needed, "made": made}))

        run(recorded, snakemake, **options)

    return instead


def plain(value):
    """Return a value as JSON has it, with paths and mappings marked, as the rule gives it."""
    if isinstance(value, Path):
        return {"path": str(value)}
    if dataclasses.is_dataclass(value):
        # Paths inside of it are texts in a rule, and need not be inputs of the job.
        content = value.to_json() if hasattr(value, "to_json") else dataclasses.asdict(value)
        return plain(json.loads(json.dumps(content, default=str)))
    if isinstance(value, dict):
        return {"dict": {key: plain(each) for key, each in value.items()}}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


if __name__ == "sitecustomize":  # not where pytest looks for doctests
    sys.meta_path.insert(0, Recorder)
