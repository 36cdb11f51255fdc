"""The server of a federation: one run of its coordinator, with masked sums or without, and the files that it leaves.

With masked sums, every try is named and stored before the first request. A try is complete only with the messages
of all its members. Until then their sum is masked and of no use, so a try with a member missing is void. The next one
has other fresh values and other masks, the same weights, and at every member other patients and noise. The hospitals
pay for each, so a plan declares how many there may be.
"""

from __future__ import annotations

import logging
import time
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from zetadp.base.storage import make_folder, read_json, write_json
from zetadp.base.validation import needs_a_person
from zetadp.hospitals.certificates import Credentials
from zetadp.hospitals.coordinator import Coordinator
from zetadp.hospitals.health import Health
from zetadp.hospitals.masks import FreshValue, Place, Try, UnsafeTryError, check_value
from zetadp.hospitals.protocol import Answer, Refusal, encode, longest_message
from zetadp.hospitals.roster import Roster
from zetadp.hospitals.settings import ServerSettings
from zetadp.hospitals.superlink import SuperLink
from zetadp.training.assembly import Assembly
from zetadp.training.checkpoint import RunFiles
from zetadp.training.pretrained import backbone_of, starting_weights
from zetadp.training.records import LabelledItems
from zetadp.training.results import write_results
from zetadp.training.settings import Performance
from zetadp.training.task import site_task_of

if TYPE_CHECKING:
    from zetadp.training.plan import Plan
    from zetadp.training.task import PublicNetwork

logger = logging.getLogger(__name__)

FARTHEST_SUM = 1 << 62
"""No sum of messages is that large (`zetadp.accounting.threat.Sums.check_room`), and masks that do not cancel are."""


class SummingCoordinator(Coordinator):
    """A `Coordinator` that sees nothing but the sum of the nodes' messages.

    Parameters
    ----------
    *arguments, **options
        As for `Coordinator`.
    roster
        The roster of the plan.
    """

    numbers = torch.int64

    def __init__(self, *arguments: Any, roster: Roster, **options: Any) -> None:  # noqa: ANN401  (as for Coordinator)
        super().__init__(*arguments, **options)
        self.roster = roster
        self.note = self.files.messages / "try.json"
        self._values: dict[str, tuple[Place, str, FreshValue]] = {}
        self._missing: list[str] = []
        self.least = max(self.patience.least_of(len(self.names)), roster.least)

    def _round(self, number: int) -> tuple[Tensor, list[str]]:
        weights = encode(self.receiver.weights)
        self._gather(number)
        attempt, following = self._resume(Place(self.ledger.identity, number))
        while True:
            if attempt is None:
                attempt = self._new_try(following)
            self.health.tries.inc()
            total = self._sum_messages(attempt, weights)
            if total is not None:
                break
            following, attempt = replace(following, number=attempt.place.number + 1), None
            without = f" without {', '.join(self._missing)}" if self._missing else ""
            logger.warning("try %d of round %d is void%s; the next one follows", following.number, number + 1, without)
        missing = [name for name in self.names if name not in attempt.names]
        for name in missing:
            logger.warning("round %d is the sum of the others, without %s", number + 1, name)
        return total, missing

    def _resume(self, first: Place) -> tuple[Try | None, Place]:
        """Return the try of a round that was written down before a restart, if any, and the place of the next one."""
        content = read_json(self.note) if self.note.exists() else {}
        if (content.get("training"), content.get("round")) != (first.training, first.round):
            return None, first
        values, position = (FreshValue(**value) for value in content["values"]), replace(first, number=content["try"])
        following = replace(first, number=position.number + 1)
        try:
            return Try(self.roster, position, tuple(values)), following
        except UnsafeTryError as error:  # the roster was replaced
            logger.warning("%s", error)
            return None, following

    def _new_try(self, position: Place) -> Try:
        """Return a new try of the nodes that are there, after each has sent a fresh value for it.

        Raises
        ------
        UserError
            If too few of them are there for too long.
        """
        started = self._reminded = time.monotonic()
        request = self._request(position, b"")
        while not self._is_over(position.round, values := self._valid_values(position), time.monotonic() - started):
            for reply in self._exchange(request, values):
                if isinstance(reply, Refusal):
                    self._accept(reply)
                elif not self._store_value(reply, position):
                    self._fail(reply.name, position.round, "it sent no fresh value for the try")
            time.sleep(self.patience.poll_seconds)
        return Try(self.roster, position, tuple(values[name] for name in self.names if name in values))

    def _valid_values(self, position: Place) -> dict[str, FreshValue]:
        """Return the fresh values for a try that their nodes still have, unless they were restarted."""
        return {
            name: value
            for name, (of_value, session, value) in self._values.items()
            if of_value == position and session == self.line.session(name) != "" and not self._has_failed(name)
        }

    def _store_value(self, reply: Answer, position: Place) -> bool:
        """Keep the fresh value that a node sent for a try; return whether it is one."""
        if reply.value is None or reply.value.name != reply.name:
            return False
        try:
            check_value(self.roster, reply.value, position)
        except UnsafeTryError as error:
            logger.warning("%s", error)
            return False
        self._values[reply.name] = position, self.line.session(reply.name), reply.value
        return True

    def _sum_messages(self, attempt: Try, weights: bytes) -> Tensor | None:
        """Ask the members of a try, and return the sum of their messages, shape (1, number); None if it is void.

        Raises
        ------
        UserError
            If a member reports that it will never answer, or stays away for too long.
        """
        position, number, patience = attempt.place, attempt.place.round, self.patience
        values = [asdict(value) for value in attempt.values]
        make_folder(self.note.parent)
        write_json(
            self.note, {"training": position.training, "round": number, "try": position.number, "values": values}
        )
        request = replace(self._request(position, weights), values=attempt.values)
        total, void = torch.zeros(1, self.phase.message, dtype=torch.int64), False
        done = set(self.names) - set(attempt.names)
        started = self._reminded = time.monotonic()
        while True:
            for reply in self._exchange(request, done):
                if isinstance(reply, Answer) and not reply.update:
                    continue  # a late answer to the request for a value
                update = self._accept(reply)
                if update is None:
                    void = True
                elif isinstance(reply, Answer):
                    total += update
                    done.add(reply.name)
                    self._store_value(reply, Place(position.training, number + 1))
            self._account(number)
            missing = self._missing = [name for name in attempt.names if name not in done]
            waited = time.monotonic() - started
            void = void or any(self._has_failed(name) for name in missing)
            if not (missing or void):
                return total if self._in_range(total) else None
            if void or (self.may_continue and waited >= patience.round_seconds):
                self._absent.update(() if void else missing)
                return None
            if waited >= patience.give_up_seconds:
                raise self._no_answer(number, missing, patience.give_up_seconds)
            time.sleep(patience.poll_seconds)

    def _in_range(self, total: Tensor) -> bool:
        """Return whether a sum can be that of messages. No other check detects garbage from a node."""
        if bool(((total < FARTHEST_SUM) & (total > -FARTHEST_SUM)).all()):
            return True
        logger.error("the masks of a try did not cancel: a node sent a message that is not of this try")
        return False


def serve(
    settings: ServerSettings, credentials: Credentials, host: str, port: int, health: Health | None = None
) -> None:
    """Train with the nodes that connect, then write the model, its history and a sealed copy of its ledger.

    Parameters
    ----------
    settings
        The server's settings.
    credentials
        The server's certificates and keys.
    host, port
        Address at which the server listens.
    health
        Counters to keep.

    Raises
    ------
    UserError
        If the training ends without a model.
    """
    if settings.threads:
        torch.set_num_threads(settings.threads)
    plan, keys, roster = settings.agreed
    backbone = backbone_of(plan, settings.backbone)
    with needs_a_person():
        watched = _watched(settings, plan, backbone)
    patience = settings.patience
    needs_all = patience.least_of(len(plan.nodes)) == len(plan.nodes)
    lifetime = patience.give_up_seconds if needs_all else 2 * patience.round_seconds
    files = RunFiles(
        settings.ledger_file, settings.checkpoint, settings.once, settings.cap, settings.series, settings.data
    )
    start = starting_weights(plan.network, backbone)
    most = longest_message(Assembly.of(plan, watched, start).phase.message, plan.tries)
    with SuperLink(credentials, host, port, keys, lifetime, most) as line:
        # A server of masked sums sees no single message.
        kind = Coordinator if roster is None else partial(SummingCoordinator, roster=roster)
        coordinator = kind(
            plan,
            patience,
            line,
            watched,
            files,
            start=start,
            performance=Performance(settings.evaluate_every, settings.checkpoint_seconds),
            health=health,
        )
        try:
            trained = coordinator.run()
        finally:
            # Hospitals note them for a training that is given up too: its releases stay released.
            for name, mirror in coordinator.mirrors.items():
                if mirror.known:
                    logger.info("last line of the ledger of %s: %s", name, mirror.known)
    inputs = watched.inputs.shape[-1]
    write_results(settings, trained, plan, files, inputs=inputs, backbone=backbone)


def _watched(settings: ServerSettings, plan: Plan, backbone: PublicNetwork | None) -> LabelledItems:
    """Return the items of the patients that the server watches; none where it has none."""
    task = site_task_of(plan.task)
    if settings.watched is None:
        shape = task.input_shape(plan.network.domain, backbone)
        return LabelledItems(torch.empty(0, *shape), torch.empty(0, dtype=torch.int64), np.empty(0, dtype=np.int64))
    prepared, patients = settings.checkpoint.parent / "watched", settings.watched_patients
    return task.site(settings.watched, plan, prepared, part="test", patients=patients, backbone=backbone)
