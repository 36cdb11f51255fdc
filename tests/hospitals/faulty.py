"""Programs of a federation of tests: a file in a node's state folder spoils what it answers, and calls are noted."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from zetadp.hospitals import launcher
from zetadp.hospitals.hospital import Hospital
from zetadp.hospitals.masks import FreshValue
from zetadp.hospitals.protocol import Answer, Refusal, Request

CALLS = "calls"
"""File in the folder of a federation with every address elsewhere that one of its processes has called or asked for."""
honest = Hospital.reply


def reply(self: Hospital, request: Request, own: FreshValue | None = None) -> Answer | Refusal:
    path = self.settings.state / "fault"
    fault, several, rest = (path.read_text() if path.exists() else "").partition(" ")
    if several:
        path.write_text(rest)
    if fault == "hang":
        time.sleep(1000)
    answer = honest(self, request, own)
    if fault == "dawdle":  # after the release, before the answer
        (self.settings.state / "released").touch()
        time.sleep(1000)
    return answer


def note_calls(event: str, arguments: tuple) -> None:
    """Note where sockets of this process connect or send to, and what hosts they ask for."""
    if event == "socket.getaddrinfo":
        host = arguments[0]
    elif event in {"socket.connect", "socket.sendto"} and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    else:
        return
    if host not in {None, "localhost", launcher.LOOPBACK}:
        with Path(os.environ["FLWR_HOME"]).with_name(CALLS).open("a") as file:
            file.write(f"{event} {host}\n")


if __name__ == "__main__":
    Hospital.reply = reply
    sys.addaudithook(note_calls)
    launcher.main()
