"""Public numbers of a server or node for Prometheus and health checks."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from zetadp.base.validation import UserError
from zetadp.hospitals.certificates import checked_server


class Health:
    """Counters of one server or node.

    A node shows no seconds: how long a round took depends on how many patients were drawn.

    Parameters
    ----------
    rounds
        Rounds of the plan.
    node
        Whether they are those of a node.

    Attributes
    ----------
    registry
        The registry of the counters.
    round, rounds
        Rounds done, or at a node recorded, and rounds of the plan.
    away
        Members that are not connected, at the server; at a node, 1 while it is not connected to the server.
    tries
        Started requests for a round, including repeated ones.
    seconds
        Seconds that the last round took, at the server.
    """

    def __init__(self, rounds: int, *, node: bool = False) -> None:
        self.registry = CollectorRegistry()
        self.round = Gauge("zetadp_round", "Rounds that are done", registry=self.registry)
        self.rounds = Gauge("zetadp_rounds", "Rounds of the plan", registry=self.registry)
        away = "1 while this node is not connected to the server" if node else "Members that are not connected"
        self.away = Gauge("zetadp_members_away", away, registry=self.registry)
        self.tries = Counter("zetadp_tries", "Tries of rounds that were started", registry=self.registry)
        seconds = "Seconds of the last round at the server"
        self.seconds = Gauge("zetadp_round_seconds", seconds, registry=None if node else self.registry)
        self.rounds.set(rounds)

    def serve(self, address: str) -> None:
        """Answer requests at ``host:port``, also ``/metrics``, until the process ends.

        Raises
        ------
        UserError
            If it is not an address of this machine, or the port is in use.
        """
        host, port = checked_server(address, "--health")
        try:
            start_http_server(port, host, self.registry)
        except OSError as error:
            raise UserError(f"--health: Cannot listen at {address}: {error.strerror}. Name another port.") from error
