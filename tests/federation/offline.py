"""Train a federation of two nodes while every address leads here, and count who else is called.

To be run where ``ip route add local 0.0.0.0/0 dev lo`` was said: a connection to the web, or a question for a name,
ends at the sockets of this process, whatever the address.
"""

from __future__ import annotations

import json
import select
import socket
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "src")]

from federation.consortium import Consortium  # noqa: E402
from federation.sites import make_plan  # noqa: E402

from zetadp.base.tensors import load_tensors  # noqa: E402

ELSEWHERE = "192.0.2.7"  # an address that nobody has: RFC 5737


class Trap:
    """Sockets at which calls to other hosts end."""

    def __init__(self) -> None:
        self.web = [socket.create_server(("", port), backlog=100) for port in (80, 443)]
        self.names = socket.socket(type=socket.SOCK_DGRAM)
        self.names.bind(("", 53))

    def caught(self) -> dict[str, int]:
        """Return how many calls came since it was asked last."""
        count = {"web": 0, "names": 0}
        while ready := select.select([*self.web, self.names], [], [], 0.2)[0]:
            for each in ready:
                if each is self.names:
                    each.recv(4096)
                    count["names"] += 1
                else:
                    each.accept()[0].close()
                    count["web"] += 1
        return count


if __name__ == "__main__":
    trap = Trap()
    socket.create_connection((ELSEWHERE, 443)).close()
    socket.socket(type=socket.SOCK_DGRAM).sendto(b"who is it?", (ELSEWHERE, 53))
    probes = trap.caught()
    with Consortium(Path(sys.argv[1]), make_plan(nodes=2, rounds=2)) as consortium:
        consortium.start_nodes()
        server = consortium.training()
        consortium.run(server)
    norm = sum(float(value.abs().square().sum()) for value in load_tensors(server.model)[0].values())
    sys.stdout.write(json.dumps({"probes": probes, "calls": trap.caught(), "norm": norm}))
