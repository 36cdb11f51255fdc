"""The server's end of the link to the data holders: request their updates, check them, and account for them.

The loop of `zetadp.training` averages the updates, takes a step, evaluates and saves. The server never sees a node's
patients: everything it does is post-processing of privatised sums. Its ledger of these sums must be right. The server
uses a message only after it has found the release in the lines of the node's ledger. It records which nodes were
missing from a round, so that no guarantee counts on noise that was not added.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, TypeGuard

import torch
from torch import Tensor

from zetadp.account.ledger import Ledger
from zetadp.account.register import BrokenChainError
from zetadp.accounting.events import Event
from zetadp.base.logs import is_milestone
from zetadp.base.storage import make_folder
from zetadp.base.validation import UserError, counted
from zetadp.hospitals.health import Health
from zetadp.hospitals.ledgers import Mirror, copies_of, heads_elsewhere, note_identities, spent_so_far
from zetadp.hospitals.masks import Place
from zetadp.hospitals.protocol import (
    Reason,
    Refusal,
    Reply,
    Request,
    Unreadable,
    WrongUpdateError,
    check_reply,
    decode,
    encode,
)
from zetadp.hospitals.superlink import SuperLink
from zetadp.training.assembly import Assembly
from zetadp.training.checkpoint import Checkpoint, RunFiles
from zetadp.training.loop import Released, Trained, no_history, train
from zetadp.training.plan import Plan
from zetadp.training.promise import check_noise
from zetadp.training.records import LabelledItems
from zetadp.training.settings import Patience, Performance

logger = logging.getLogger(__name__)

REMINDER_SECONDS = 60.0
"""Seconds between two log lines that name the nodes a round waits for."""


class Coordinator:
    """One training, from its beginning or from its checkpoint to its end.

    Parameters
    ----------
    plan
        The plan of all sites.
    patience
        Limits for nodes that do not answer.
    line
        The connection with the nodes.
    watched
        Images of patients that the server holds, evaluated during training; may be empty.
    files
        The server's ledger of the federation's releases, which has the form of a simulation's ledger and outlives
        failed runs; copies of the nodes' ledgers are in a folder next to it. Also the checkpoint from which an
        interrupted run continues, and whether another attempt is permitted; None leaves that to the nodes.
    start
        Public starting weights; None draws them from the run's seed.
    performance
        Intervals of evaluation and of checkpoints.
    health
        Counters to update.

    Attributes
    ----------
    parts, receiver, performance
        As in `zetadp.training.loop.Holders`.
    ledger, state
        The server's open ledger, and the training at its last checkpoint, from `begin` on.
    numbers
        Type of the numbers in a message.
    """

    numbers: ClassVar[torch.dtype] = torch.float32

    def __init__(
        self,
        plan: Plan,
        patience: Patience,
        line: SuperLink,
        watched: LabelledItems,
        files: RunFiles,
        *,
        start: Mapping[str, Tensor] | None = None,
        performance: Performance | None = None,
        health: Health | None = None,
    ) -> None:
        check_noise(plan)
        self.plan, self.patience, self.line, self.watched, self.files = plan, patience, line, watched, files
        self.performance, self.health = performance or Performance(), health or Health(plan.training.rounds)
        self.names = [node.name for node in plan.nodes]
        self.least = patience.least_of(len(self.names))
        if plan.sums is not None:
            # Without noise, parts of sums travel unmasked, and the sum needs every one of them.
            self.least = len(self.names)
        parts = self.parts = Assembly.of(plan, watched, start)
        self.receiver, self.phase = parts.receiver(), parts.phase
        copies = copies_of(files.ledger)
        self.mirrors = {name: Mirror(copies / f"{name}.jsonl") for name in self.names}
        make_folder(copies)
        note_identities(copies, {name: line.identity(name) for name in self.names})
        self._heads_seen = {name: tuple(heads_elsewhere(copies, line.identity(name))) for name in self.names}
        self.ledger: Ledger
        self.state: Checkpoint
        self._absent: set[str] = set()
        self._recorded: set[str] = set()
        self._failed: defaultdict[str, list[str]] = defaultdict(list)
        self._connected: set[str] | None = None
        self._sessions: dict[str, str] = {}
        self._reminded = 0.0

    @property
    def may_continue(self) -> bool:
        """Whether a round may continue without some of the nodes."""
        return self.least < len(self.names)

    def run(self) -> Trained:
        """Train to the last round and return the result.

        Raises
        ------
        UserError
            If a node gives a forbidden answer, if nodes stay away for too long, if its ledger has lost lines, or if
            the disk is full. The checkpoint remains, and another run continues from it.
        """
        trained = train(self, self.files, validation=self.watched)
        logger.info("finished: all %d rounds are done; the model is being written", self.plan.training.rounds)
        return trained

    def begin(self, ledger: Ledger, files: RunFiles) -> Checkpoint:
        """Continue from the checkpoint, or start an attempt; return the state of the run."""
        self.ledger = ledger
        new = Checkpoint(0, self.plan.digest, {}, no_history(self.parts.task), "")
        self.state = files.begin(new, ledger, self.plan.declaration(), self.receiver)
        self._recorded = {event.node for event in ledger.attempts[-1].events}
        self.health.round.set(self.state.round)
        return self.state

    def do_round(self, number: int) -> Released:
        """Return the updates of a round in the order of the plan, which are all in the ledger."""
        started = time.monotonic()
        messages, missing = self._round(number)
        self.health.seconds.set(time.monotonic() - started)
        # Save after every round with a missing node. A repeat of such a round could give a different result, and nodes
        # that had already answered the next round would then hold outdated weights. With masked sums a repeat might
        # need another try, for which nodes pay again.
        return Released(messages, missing, must_save=bool(missing) or self.plan.masked)

    def report(self, done: int, metric: float) -> None:
        """Log at most twenty times how many rounds are done, and what they cost."""
        rounds = self.plan.training.rounds
        self.health.round.set(done)
        if is_milestone(done, rounds):
            spent = spent_so_far(self.plan, *(mirror.attempts for mirror in self.mirrors.values()))
            logger.info("round %d of %d is done; %s", done, rounds, spent)

    def discard(self, before: int) -> None:
        """Do nothing: requests report the last checkpoint to the nodes, which store the messages."""

    def finish(self) -> None:
        """Count nodes that never connected: the ledger must show that no average contained their noise."""
        for name in self.names:
            if name not in self._recorded:
                logger.warning("%s was never there; it is counted as if it had been", name)
                self.ledger.record([self.plan.event(name, 0)] * (1 if self.plan.masked else 2))

    def _round(self, number: int) -> tuple[Tensor, list[str]]:
        """Return the updates of a round in the order of the plan, which are all in the ledger, and the missing nodes.

        Raises
        ------
        UserError
            If the round cannot be completed.
        """
        request = self._request(Place(self.ledger.identity, number), encode(self.receiver.weights))
        self.health.tries.inc()
        messages: dict[str, Tensor] = {}
        self._gather(number)
        started = self._reminded = time.monotonic()
        while True:
            for reply in self._exchange(request, messages):
                update = self._accept(reply)
                if update is not None:
                    messages[reply.name] = update
            self._account(number)
            if self._is_over(number, messages, time.monotonic() - started):
                break
            time.sleep(self.patience.poll_seconds)
        self._close(number, messages)
        updates = [messages[name] for name in self.names if name in messages]
        return torch.stack(updates), [name for name in self.names if name not in messages]

    def _request(self, position: Place, weights: bytes) -> Request:
        """Return the request to all nodes."""
        return Request(self.plan.digest, position, self.state.round, "", weights)

    def _exchange(self, request: Request, done: Container[str]) -> Iterator[Reply]:
        """Send a request to the nodes that are ready, and yield the answers that have arrived.

        Parameters
        ----------
        request
            The request to all nodes. The last seen heads of each node's ledgers are added to it.
        done
            Nodes that need not answer any more; it may grow while answers arrive.
        """
        self._log_connections(request.place.round, done)
        # An answer that has already arrived counts, even if its node has reconnected and could be asked again.
        early = self.line.collect()
        answered = {reply.name for reply in early if reply.place == request.place}
        ready = [name for name in self._ready(done) if name not in answered]
        if request.weights:
            self._record_first_contact(ready, request.place.round)
        for name in ready:
            self.line.ask(name, replace(request, head=self.mirrors[name].known, seen=self._heads_seen[name]))
        for reply in (*early, *self.line.collect()):
            self._absent.discard(reply.name)
            # A late answer is left out: its release is in the node's ledger, whose lines come again.
            if reply.place == request.place and reply.name not in done and self._is_signed(reply, request):
                yield reply

    def _is_signed(self, reply: Reply | Unreadable, request: Request) -> TypeGuard[Reply]:
        """Return whether a node signed a reply to its request; note a failure if it did not.

        An attacker who can connect in the name of a node can take away its requests, but cannot send an answer that is
        used or recorded.
        """
        if isinstance(reply, Unreadable):
            self._fail(reply.name, request.place.round, "it sent what is not an answer")
            return False
        try:
            check_reply(reply, request, self.line.keys[reply.name])
        except UserError as error:
            self._fail(reply.name, request.place.round, f"its answer is refused: {error}")
            return False
        return True

    def _ready(self, done: Container[str]) -> list[str]:
        """Return the connected nodes that have no pending request and did not fail too often."""
        candidates = [
            name for name in sorted(self.line.reachable()) if name not in done and not self.line.is_pending(name)
        ]
        return [name for name in candidates if not self._has_failed(name)]

    def _fail(self, name: str, number: int, reason: str) -> None:
        """Note that a node failed in a round."""
        logger.warning("%s, round %d: %s", name, number + 1, reason)
        self._failed[name].append(reason)

    def _has_failed(self, name: str) -> bool:
        """Return whether a node failed too often in this round to be asked again."""
        return len(self._failed[name]) >= self.patience.tries

    def _gather(self, number: int) -> None:
        """Begin a round; before the first one wait for all nodes, so that no patient pays for a run that never starts.

        If a round may continue without some nodes, wait for ``round_seconds`` at most.

        Raises
        ------
        UserError
            If nodes stay away for too long.
        """
        patience, started = self.patience, time.monotonic()
        self._reminded = started
        self._failed.clear()
        longest = patience.round_seconds if self.may_continue else patience.give_up_seconds
        while not self._recorded and (away := [name for name in self.names if name not in self.line.reachable()]):
            self._log_connections(number, {})
            if time.monotonic() - started >= longest:
                if self.may_continue:
                    return
                raise self._no_answer(number, away, longest)
            time.sleep(patience.poll_seconds)

    def _log_connections(self, number: int, messages: Container[str]) -> None:
        """Log which nodes connected or left, and at intervals the nodes that a long round waits for."""
        connected, waiting = self.line.reachable(), [name for name in self.names if name not in messages]
        for name in sorted(connected):
            session = self.line.session(name)
            if self._sessions.setdefault(name, session) != session:
                logger.warning("%s was away and has connected again; its request is sent again", name)
                self._sessions[name] = session
        self.health.away.set(len(self.names) - len(connected))
        if connected != self._connected:
            for name in sorted((self._connected or set()) - connected):
                logger.warning("%s is not connected any more", name)
            self._connected = connected
            here, away = ([name for name in self.names if (name in connected) == on] for on in (True, False))
            logger.info("connected nodes: %s; not connected: %s", ", ".join(here) or "none", ", ".join(away) or "none")
        if waiting and time.monotonic() - self._reminded >= REMINDER_SECONDS:
            self._reminded = time.monotonic()
            state = (f"{name} ({'at work' if name in connected else 'not connected'})" for name in waiting)
            logger.info("round %d of %d waits for %s", number + 1, self.plan.training.rounds, ", ".join(state))

    def _record_first_contact(self, names: Sequence[str], number: int) -> None:
        """Record nodes in the ledger before the first request to them.

        A recorded node counts as having released in every declared round. This covers everything that it releases
        later, even if the node or this server is never heard of again.
        """
        if first := [name for name in names if name not in self._recorded]:
            self.ledger.record([self.plan.event(name, number) for name in first])
            self._recorded.update(first)

    def _is_over(self, number: int, messages: Mapping[str, object], waited: float) -> bool:
        """Return whether a round is over, with or without all nodes; raise if it cannot succeed.

        The round does not wait for a node that was left out of the last round and has not answered since then.
        """
        patience = self.patience
        missing = [name for name in self.names if name not in messages]
        if not missing:
            return True
        failed = [name for name in missing if self._has_failed(name)]
        late = waited >= patience.round_seconds
        if len(messages) >= self.least and (late or self._absent.issuperset(set(missing) - {*failed})):
            return True
        if len(self.names) - len(failed) < self.least:
            raise self._stopped(number, f"at least {self.least} of {len(self.names)} nodes must answer")
        if waited >= patience.give_up_seconds:
            raise self._no_answer(number, missing, patience.give_up_seconds)
        return False

    def _close(self, number: int, messages: dict[str, Tensor]) -> None:
        """Record the nodes that were left out. A known but unused release is written twice, as in `_account`."""
        left_out = [name for name in self.names if name not in messages]
        self._absent.update(left_out)
        unused = [self.plan.event(name, number) for name in left_out]
        if unused := [event for event in unused if self.ledger.holds(event)]:
            self.ledger.record(unused)
        for name in left_out:
            logger.warning("round %d continues without %s", number + 1, name)

    def _stopped(self, number: int, reason: str) -> UserError:
        """Return the error that ends a run, with all failures of its last round."""
        failed = [
            f"; {name} failed {counted(len(reasons), 'time')} ({'; '.join(dict.fromkeys(reasons))})"
            for name, reasons in sorted(self._failed.items())
            if reasons
        ]
        return UserError(
            f"Round {number + 1} of {self.plan.label} ended the run: {reason}{''.join(failed)}. The logs of those "
            f"nodes say more. The checkpoint after round {self.state.round} remains; start the run again to "
            "continue from it."
        )

    def _no_answer(self, number: int, names: Sequence[str], seconds: float) -> UserError:
        return self._stopped(number, f"no answer from {', '.join(names)} in {seconds:g} seconds")

    def _accept(self, reply: Reply) -> Tensor | None:
        """Return a reply's update; note a failure and return None if there is none and a new request may succeed.

        Raises
        ------
        UserError
            If the node reports that it will never answer, or its ledger does not continue the lines seen before.
        """
        number = reply.place.round
        if isinstance(reply, Refusal):
            if reply.final:
                raise self._stopped(number, f"{reply.name} refused: {reply.reason}")
            if reply.reason != Reason.VALUE:  # a node that was restarted has lost its value and nothing else
                self._fail(reply.name, number, reply.reason)
            return None
        mirror = self.mirrors[reply.name]
        try:
            update = decode(reply.update, self.phase.message, self.numbers)
        except WrongUpdateError as error:
            self._fail(reply.name, number, f"it sent a wrong update: {error}")
            update = None
        # The lines count even if the update is wrong: the node has recorded its release, which the ledger must show.
        try:
            mirror.extend(reply.lines)
        except BrokenChainError as error:
            reason = f"the ledger of {reply.name} does not follow from what was seen of it ({error})"
            raise self._stopped(number, reason) from error
        events = self._releases(reply.name, reply.place.training)
        if any(event != self.plan.event(reply.name, event.round) for event in events):
            raise self._stopped(number, f"the ledger of {reply.name} holds releases of another plan")
        if self.plan.event(reply.name, number) not in events:
            raise self._stopped(number, f"{reply.name} sent an update that its ledger does not hold")
        return update

    def _releases(self, name: str, attempt: str) -> list[Event]:
        return [event for event in self.mirrors[name].of_attempt(attempt) if event.node == name]

    def _account(self, number: int) -> None:
        """Add the releases that the nodes' ledgers show to the server's ledger.

        The message of an earlier release may have been lost, so that its round continued without it. Such a late
        release is written twice: once for its cost, and once so that the round never counts as one whose average
        contained every node's noise. Masked sums rely on no such count: every try is written once.
        """
        new = []
        for name in self.names:
            for event, count in Counter(self._releases(name, self.ledger.identity)).items():
                late = not self.plan.masked and event.round < number and not self.ledger.holds(event)
                expected = count + late
                new += [event] * sum(not self.ledger.holds(event, times) for times in range(1, expected + 1))
        if new:
            self.ledger.record(new)
