"""Progress messages on a site's terminal, from its ledger and the logs of its processes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from zetadp.base.epsilon import rounded_up
from zetadp.base.validation import UserError
from zetadp.core.plan import Plan
from zetadp.federation.flower.processes import Processes
from zetadp.federation.flower.settings import HospitalSettings, ledger_of
from zetadp.privacy import accounting
from zetadp.privacy.ledger import read_ledger

OURS = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ (?P<level>INFO|WARNING|ERROR) (?P<text>\S.*)")
"""A line of a log that this package wrote, or one of `FLOWERS`; Flower's other lines have another form."""
FLOWERS = ("[flwr", "Task stopped by user.")
"""How lines of Flower's begin that have our form."""
PROBLEM = re.compile(r"^\d+\. ")
"""A further line of a message that lists problems."""

_KEY = "Send the public key (.pub.pem) that belongs to --key to the coordinator"
_OTHER = "another program than a zetadp server answers at this address"
REASONS = (
    (
        "CERTIFICATE_VERIFY_FAILED",
        "the server's certificate does not go back to the certificate in --authority, is not in force, or is for "
        "another name. Ask the coordinator for authority.pem, and for the name in the server's certificate",
    ),
    ("code: 2004", f"the server does not know this node's key, or the node is connected already. {_KEY}"),
    ("code: 2001", f"the server does not know this node's key. {_KEY}"),
    (
        "Connection attempt failed",
        "no server answers at this address. It has not started or has ended, the address is wrong, or a firewall "
        "stands between",
    ),
    ("without sending a response", _OTHER),
    ("SSL/TLS handshake error", _OTHER),
)
"""What Flower's log says of a connection that failed, and what it means."""
AGAIN = "Connection successful"
"""What Flower's log says when a connection that was lost is back."""
ENDING = "Exit Code: "
"""What Flower's log says when its process is about to end."""


def reason_in(text: str) -> str | None:
    """Return in plain words why Flower could not connect, where its log says so."""
    last = max(REASONS, key=lambda pair: text.rfind(pair[0]))
    return last[1] if last[0] in text else None


class Log:
    """The lines that a log gains.

    Parameters
    ----------
    path
        The log; it need not be there yet. What it holds already is passed over.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = path.stat().st_size if path.exists() else 0

    def new(self) -> str:
        """Return the whole lines that came since the last call."""
        if not self.path.exists():
            return ""
        with self.path.open("rb") as file:
            file.seek(self._read)
            whole = file.read().rpartition(b"\n")
        self._read += len(whole[0]) + len(whole[1])
        return (whole[0] + whole[1]).decode(errors="replace")

    def own(self, *levels: str) -> Iterator[tuple[str, str]]:
        """Yield what this package said since at some levels, each with its level; a list of problems is one message."""
        level, text = "", ""
        for line in self.new().splitlines():
            if text and PROBLEM.match(line):
                text += f"\n{line}"
                continue
            if text:
                yield level, text
            found = OURS.match(line)
            ours = found and found["level"] in levels and not found["text"].startswith(FLOWERS)
            level, text = (found["level"], found["text"]) if found and ours else ("", "")
        if text:
            yield level, text


class NodeTold:
    """Messages for a hospital's terminal while its node runs.

    Parameters
    ----------
    processes
        The node's two processes.
    settings, plan
        The hospital's settings, and its plan.
    server
        Where the server is.
    memory
        File in which the node notes its number when it has connected.
    say
        Takes what happens, a line each.
    """

    def __init__(
        self,
        processes: Processes,
        settings: HospitalSettings,
        plan: Plan,
        server: str,
        memory: Path,
        say: Callable[[str], None],
    ) -> None:
        self.processes, self.plan, self.server, self.say = processes, plan, server, say
        self.name = name = settings.name
        self.ledger = ledger_of(settings, plan)
        self._worker, self._link = (Log(processes.log(each)) for each in (f"{name}-worker", name))
        self._memory, self._noted = memory, memory.stat().st_mtime_ns if memory.exists() else 0
        self._size, self._told, self._trouble, self._fatal = -1, 0, "", ""
        self._held: list[tuple[str, str]] = []

    def look(self) -> None:
        """Say what is new.

        Raises
        ------
        UserError
            If a process has ended by itself, with the reason where it is known.
        """
        runs = self.processes.runs
        # Before the logs are read: what has ended by now has written the reason.
        link = runs(self.name)
        both = link and runs(f"{self.name}-worker")
        fresh = list(self._worker.own("INFO", "WARNING", "ERROR"))
        lines = [*self._held, *fresh]
        # An error may be about to end the node. The next look knows whether it did, and says it.
        self._held = [lines.pop()] if both and fresh and fresh[-1][0] == "ERROR" else []
        for level, line in lines:
            if level == "ERROR" and not both:
                raise UserError(f"{self.name} cannot take part: {line}")
            self.say(f"{self.name}: {line}")
        self._connection(link)
        if not both:
            self.processes.check()
        self._rounds()

    def _connection(self, link: bool) -> None:
        said = self._link.new()
        noted = self._memory.stat().st_mtime_ns if self._memory.exists() else 0
        trouble = reason_in(said)
        if noted != self._noted or (self._trouble and AGAIN in said):
            self._noted, self._trouble = noted, ""
            self.say(f"{self.name}: connected to {self.server}; waiting for requests")
        elif (trouble or self._fatal) and not link:
            raise UserError(f"{self.name} cannot connect to {self.server}: {trouble or self._fatal}.")
        elif ENDING in said:
            self._fatal = trouble or ""
        elif trouble and trouble != self._trouble:
            self._trouble = trouble
            self.say(f"{self.name}: no connection to {self.server}: {trouble}. Trying again.")

    def _rounds(self) -> None:
        size = self.ledger.stat().st_size if self.ledger.exists() else 0
        if size == self._size or not size:
            return
        self._size = size
        attempts = read_ledger(self.ledger)
        answered = len({event.round for event in attempts[-1].events}) if attempts else 0
        if answered == self._told:
            return
        self._told, rounds = answered, self.plan.training.rounds
        releases = [event for attempt in attempts for event in attempt.releases()]
        spent = rounded_up(accounting.epsilon(accounting.compose(releases), self.plan.delta))
        self.say(
            f"{self.name}: round {answered} of {rounds} recorded; epsilon spent so far {spent} per {self.plan.unit}, "
            f"at delta {self.plan.delta:g}"
        )
        if answered == rounds:
            self.say(
                f"{self.name}: finished, all rounds are recorded. Stop the node when the coordinator says that the "
                "model is there: until then the server may ask again for the last answer."
            )
