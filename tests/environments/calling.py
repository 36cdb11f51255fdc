"""Call a script's ``main`` with recorded arguments: ``python -I calling.py SRC SCRIPT ARGUMENTS.json``.

It runs in an environment that has what the environment file lists and nothing else, so it imports only the standard
library itself.
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


if __name__ == "__main__":
    source, script, arguments = sys.argv[1:]
    sys.path.insert(0, source)
    runpy.run_path(script)["main"](**restored({"dict": json.loads(arguments)}))
