"""What each process of a federation keeps to: it calls no other host, has folder and port for itself, and ends.

`main` runs one of the programs of `zetadp.federation.flower.launcher`, which reads in its log why it ended.
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib
import json
import logging
import select
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path

from zetadp.base.validation import UserError

FLOWER = ("1.41", "1.42")
"""Versions of Flower that were tried."""
SILENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
"""No telemetry, no question for updates, no installation of packages; and no thread that a fork would lose."""
LOCK = "lock"
"""File in a folder in use; it stays there, and means nothing once its lock is gone."""
SET_PARENT_DEATH_SIGNAL = 1
FORM = "%(asctime)s %(levelname)s %(name)s: %(message)s"

logger = logging.getLogger("zetadp.federation.flower.processes")  # not __main__, as it is called


def check_flower() -> None:
    """Raise a `UserError` if the version of Flower was not tried, before anything of it is imported.

    `zetadp.federation.flower.superlink` and `zetadp.federation.flower.node` use insides of Flower, for which it
    guarantees nothing.
    """
    if (found := version("flwr")).rpartition(".")[0] not in FLOWER:
        raise UserError(
            f"A federation needs Flower {' or '.join(FLOWER)}, found {found}. Run: pip install zetadp[federation]"
        )


@contextmanager
def ended_by_signal() -> Iterator[None]:
    """End the block on SIGTERM as on Ctrl-C, so that its clean-up runs; neither counts as an error."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def folder_in_use(folder: Path, option: str) -> Iterator[None]:
    """Create a folder if needed, and lock it against other processes until the block or this process ends.

    Parameters
    ----------
    folder
        The folder.
    option
        How the user names another one.

    Raises
    ------
    UserError
        If another process uses the folder, or it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("ab")
    except OSError as error:
        raise UserError(
            f"Cannot write the folder {folder}: {error.strerror}. Mend it, or name another ({option})."
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            busy = isinstance(error, BlockingIOError)
            why = "is in use by another process of a federation" if busy else f"cannot be locked: {error.strerror}"
            raise UserError(f"The folder {folder} {why}. End that process, or name another ({option}).") from error
        yield


def require_free_port(host: str, port: int) -> None:
    """Raise a `UserError` if this machine cannot listen at a port."""
    try:
        if not port:
            raise OverflowError("it stands for any port")
        with socket.socket() as probe:
            # As the server itself will bind: connections of an earlier one that are still closing do not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except (OSError, OverflowError) as error:
        raise UserError(
            f"Cannot listen at port {port} of {host}: {getattr(error, 'strerror', error)}. If another program listens "
            "there, perhaps another federation, end it; or name another port (--port)."
        ) from error


def free_port() -> int:
    """Return a free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Run the function that the first argument names, as ``module:function``, with those that the second holds as JSON.

    It ends with the process that started it, which holds the other end of its input. A user's mistake is the last line
    of the log, and gives exit code 1.
    """
    die_with_parent()
    if select.select([sys.stdin], [], [], 0)[0]:
        sys.exit(1)  # the process that started this one ended before
    module, _, function = sys.argv[1].partition(":")
    program = getattr(importlib.import_module(module), function)
    logging.basicConfig(level=logging.INFO, format=FORM, stream=sys.stderr)
    for library in ("httpx", "flwr"):
        logging.getLogger(library).setLevel(logging.WARNING)
    try:
        program(**json.loads(sys.argv[2]))
    except UserError as error:
        logger.critical("%s", error)
        sys.exit(1)


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends, however that happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


if __name__ == "__main__":
    main()
