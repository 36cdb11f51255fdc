"""Call what rules run again, with recorded arguments: ``python -I calling.py SRC < CALLS.json``.

It runs in an environment that has what the environment file lists and nothing else, so it imports only the standard
library itself, and of this one the module that every script imports first. One process calls all scripts of an
environment, so that they import their packages once.
"""

import json
import runpy
import sys
from pathlib import Path


def restored(value):
    """Return what was recorded as it was given."""
    if isinstance(value, list):
        return [restored(each) for each in value]
    if isinstance(value, dict) and "path" in value:
        return Path(value["path"])
    if isinstance(value, dict):
        return {key: restored(each) for key, each in value["dict"].items()}
    return value


def call(script, arguments, made):
    """Call a script's ``main``, or a function MODULE:NAME, and check that it makes its files, deleted before."""
    from zetadp.base.workflow import find_stage, typed

    sys.stdout.write(f"Calling {script}\n")
    for path in made:
        Path(path).unlink(missing_ok=True)
    main = find_stage(script) if ":" in script else runpy.run_path(script)["main"]
    main(**typed(main, restored(arguments)))
    absent = [path for path in made if not Path(path).exists()]
    assert not absent, f"{script} did not make {absent}"


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    for said in json.load(sys.stdin):
        call(**said)
