"""What a running site has to itself: its folder, and of a server the port and the operators' secret."""

from __future__ import annotations

import errno
import fcntl
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

from zetadp.validation import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK = "lock"
"""File in a folder in use; it stays there, and means nothing once its lock is gone."""
HOSTS = ("0.0.0.0", "127.0.0.1", "localhost")  # noqa: S104  (nodes are on other machines)
"""Addresses at which the server's own processes reach it, too: they use the loopback interface."""

OPERATOR = "x-zetadp-operator"
"""Header by which a SuperLink and its operators know each other: their secret, in requests and in the answers."""


@contextmanager
def folder_in_use(folder: Path, option: str) -> Iterator[None]:
    """Make a folder where there is none and keep other processes out of it, until the block or this process ends.

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
        msg = f"Cannot write the folder {folder}: {error.strerror}. Mend it, or name another ({option})."
        raise UserError(msg) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            msg = (
                f"The folder {folder} is in use by another process of a federation. Wait for that process or end it, "
                f"or name another folder ({option})."
            )
            raise UserError(msg) from error
        except OSError as error:
            msg = f"Cannot lock {folder / LOCK}: {error.strerror}. Name a folder on a local disk ({option})."
            raise UserError(msg) from error
        yield


def require_free_port(host: str, port: int) -> None:
    """Refuse a port at which this machine cannot listen.

    Raises
    ------
    UserError
        If another program listens there, if the port is not permitted, or if the server's own processes could not
        reach the host.
    """
    if host not in HOSTS:
        msg = (
            f"Expected the host 0.0.0.0 (all addresses of this machine) or 127.0.0.1, found {host}. The server's own "
            "processes reach it at 127.0.0.1; keep other networks out with a firewall."
        )
        raise UserError(msg)
    if not 0 < port < 1 << 16:
        msg = f"Expected a port from 1 to 65535, found {port}."
        raise UserError(msg)
    try:
        with socket.socket() as probe:
            # As the server itself will bind: connections of an earlier one that are still closing do not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            msg = (
                f"Port {port} of {host} is taken: another program listens there, perhaps another federation. End that "
                "program, or name another port (--port)."
            )
        else:
            msg = f"Cannot listen at port {port} of {host}: {error.strerror}. Name another port (--port)."
        raise UserError(msg) from error
