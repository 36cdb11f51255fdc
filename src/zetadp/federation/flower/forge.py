"""A warm process from which all others of a machine are forked: Flower and PyTorch are imported once, not by each.

It reads one order a line from its standard input, as JSON, and writes the number of the new process; it ends with its
input, and with it all that it forked.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING, Any

from zetadp.federation.flower import superlink, supernode, worker
from zetadp.federation.flower.processes import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Mapping

PROGRAMS = {"superlink": superlink.main, "supernode": supernode.main, "worker": worker.main}


def main() -> None:
    """Fork what is ordered until the input ends."""
    die_with_parent()
    # The kernel takes note of children that end; each child has this set back for its own children.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        print(_forked(json.loads(line)), flush=True)  # noqa: T201  (the answer to the order)


def _forked(order: Mapping[str, Any]) -> int:
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        die_with_parent()
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.environ.update(order["environment"])
        sys.argv = [f"flower-{order['program']}", *order["arguments"]]
        code = PROGRAMS[order["program"]]() or 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001  (a child must not go on as its parent)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
