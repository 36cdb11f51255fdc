"""The node of a hospital: it checks each request against its own plan, ledger and permissions, and answers once.

A request decides nothing about the computation except the weights. The node sends the privatised sum and the new lines
of its ledger, which hold public constants. It never sends a count, a loss, a time or the text of an error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from zetadp.account.attempts import LostError, heads_of, read_ledger
from zetadp.account.book import ledger_files
from zetadp.account.budget import CapError, begin_attempt
from zetadp.account.ledger import Ledger
from zetadp.base.logs import is_milestone
from zetadp.base.storage import make_folder, read_json, write_json
from zetadp.base.tensors import pick_device
from zetadp.base.validation import UserError, counted
from zetadp.hospitals.health import Health
from zetadp.hospitals.ledgers import head_of, signed_head, spent_so_far
from zetadp.hospitals.masks import FreshValue, Masking, Place, Try, UnsafeTryError, fresh_value
from zetadp.hospitals.participant import Participant, cap_is_a_setting
from zetadp.hospitals.protocol import (
    Answer,
    Reason,
    Refusal,
    Reply,
    Request,
    WrongUpdateError,
    decode,
    encode,
    signed_reply,
)
from zetadp.training.assembly import Assembly
from zetadp.training.independence import checked_phase
from zetadp.training.outbox import Outbox, SupersededError, digest_of
from zetadp.training.pretrained import backbone_of, starting_weights
from zetadp.training.records import LabelledItems, Node, checked_units, units_among
from zetadp.training.round import do_round
from zetadp.training.seeding import entropy_of
from zetadp.training.task import site_task_of

logger = logging.getLogger(__name__)

REASONS = {
    CapError: Reason.CAP,
    UnsafeTryError: Reason.TRY,
    LostError: Reason.LEDGER,
    SupersededError: Reason.ANSWERED,
}
"""Reasons that the server receives for errors; all others become `Reason.FAILED`."""


class Hospital:
    """A node of a federation.

    Parameters
    ----------
    participant
        The hospital in this training.
    records
        Items of the hospital's patients.
    patients
        For each patient, in the order of their identifiers, the positions of the patient's items.
    start
        Public starting weights. Requests carry those that are trained; the others stay what they are.
    health
        Counters to keep.

    Attributes
    ----------
    is_finished
        Whether the node has answered the last round.

    Raises
    ------
    UserError
        If plan and patients do not agree.
    """

    def __init__(
        self,
        participant: Participant,
        records: LabelledItems,
        patients: Sequence[Sequence[int]],
        start: Mapping[str, Tensor] | None = None,
        health: Health | None = None,
    ) -> None:
        self.health = health or Health(participant.plan.training.rounds)
        plan, name = participant.plan, participant.name
        self.participant, self.settings, self.plan = participant, participant.settings, plan
        self.records, self.start = records, start
        self._unused_value: tuple[Place, FreshValue] | None = None
        self._warned_of_delay = False
        self.is_finished = False
        declared = plan.nodes[plan.position(name)].population // plan.units_of_a_person
        if len(patients) != declared:
            raise UserError(
                f"Expected {counted(declared, 'training patient')} at {name}, as the plan declares, found "
                f"{len(patients)} in {participant.settings.images}."
            )
        (self.units,) = checked_units([units_among(plan, patients)], records.strata, plan.together)
        phase = checked_phase(Assembly.of(plan, records, start), records, self.units, self.settings.chunk)
        self.rules, self.chunk = phase.has_rules, phase.chunk

    def exchange(self, request: Request) -> Reply:
        """Reply to a request, with masked sums also by a fresh value, and sign the reply as a whole.

        Fresh values stay in the memory of this process, and the one for a try is taken out before its computation
        begins. So no two computations have the same masks, whatever happens to either.
        """
        return self.sign(self._exchanged(request), request)

    def sign(self, reply: Reply, request: Request) -> Reply:
        """Return a reply to a request with the node's signature."""
        return signed_reply(reply, request, self.participant.key)

    def _exchanged(self, request: Request) -> Reply:
        if self.participant.roster is None:
            return self.reply(request)
        if not request.weights and not request.values:
            if request.plan != self.plan.digest:
                return self.refuse(request, Reason.PLAN)
            return Answer(self.participant.name, request.place, b"", (), self._fresh(request.place))
        fresh, self._unused_value = self._unused_value, None
        reply = self.reply(request, fresh[1] if fresh is not None and fresh[0] == request.place else None)
        following = Place(request.place.training, request.place.round + 1)
        if isinstance(reply, Answer) and following.round < self.plan.training.rounds:
            return replace(reply, value=self._fresh(following))
        return reply

    def _fresh(self, position: Place) -> FreshValue:
        """Return a fresh value for a try, which replaces the stored value."""
        participant = self.participant
        assert participant.roster is not None  # as in `exchange`
        value = fresh_value(participant.roster, participant.name, participant.key, position)
        self._unused_value = position, value
        return value

    def reply(self, request: Request, value: FreshValue | None = None) -> Reply:
        """Answer a request, or refuse it with one of a few fixed reasons.

        Parameters
        ----------
        request
            The request.
        value
            With masked sums, the fresh value that this node gave for the try; None if it gave none or has used it.
        """
        number = request.place.round + 1
        try:
            with cap_is_a_setting(), self._note_work(request.place):
                return self._answer(request, value)
        except _RefusedError as refused:
            logger.warning("refused round %d: %s", number, refused.reason)
            return self.refuse(request, refused.reason)
        except UserError as error:
            logger.error("refused round %d: %s", number, error)
            locked = isinstance(error.__cause__, BlockingIOError)
            reasons = (reason for kind, reason in REASONS.items() if isinstance(error, kind))
            return self.refuse(request, Reason.BUSY if locked else next(reasons, Reason.FAILED))
        except Exception:  # whatever it is, its text must stay here
            logger.exception("round %d failed", number)
            return self.refuse(request, Reason.FAILED)

    @contextmanager
    def _note_work(self, position: Place) -> Iterator[None]:
        """Note the request that the node works on, and refuse once a request during which a process ended.

        Without that refusal, the server would ask without end a node whose computation always ends its process.
        """
        note, content = self.participant.at_work, asdict(position)
        if note.exists() and read_json(note) == content:
            note.unlink()
            raise _RefusedError(Reason.ENDED)
        make_folder(note.parent)
        write_json(note, content)
        try:
            yield
        finally:
            note.unlink(missing_ok=True)

    def refuse(self, request: Request, reason: Reason) -> Refusal:
        """Return a refusal of a request."""
        return Refusal(self.participant.name, request.place, reason)

    def check_time(self, seconds: float) -> None:
        """Log once that a round took longer than ``answer_seconds``, so that the time of its answer shows something."""
        if seconds <= self.settings.answer_seconds or self.settings.simulation or self._warned_of_delay:
            return
        self._warned_of_delay = True
        logger.warning(
            "a round took longer than answer_seconds (%g), so the time of its answer shows how long it took, and with "
            "that perhaps how many patients were drawn. Stop the node, write more seconds than a round takes in which "
            "every patient is drawn, and start it again: the training continues",
            self.settings.answer_seconds,
        )

    def report(self, number: int) -> None:
        """Log the progress of the training run and its cost so far, at most twenty times."""
        rounds = self.plan.training.rounds
        self.health.round.set(number + 1)
        self.health.tries.inc()
        if not is_milestone(number + 1, rounds):
            return
        spent = spent_so_far(self.plan, read_ledger(self.participant.ledger))
        logger.info("round %d of %d is recorded; %s", number + 1, rounds, spent)
        self.is_finished = number + 1 == rounds
        if self.is_finished:
            logger.info(
                "finished, all rounds are recorded. Stop %s when the coordinator reports that the model exists: until "
                "then the server may ask again for the last answer.",
                self.participant.name,
            )

    def _answer(self, request: Request, node_value: FreshValue | None) -> Answer:
        plan, roster, number = self.plan, self.participant.roster, request.place.round
        if request.plan != plan.digest:
            raise _RefusedError(Reason.PLAN)
        if not (0 <= number < plan.training.rounds and 0 <= request.checkpointed <= number):
            raise _RefusedError(Reason.ROUND)
        device = pick_device(self.settings.device)
        records = self.records.to(device)
        parts = Assembly.of(plan, records, self.start)
        phase = replace(parts.phase.with_rules() if self.rules else parts.phase, chunk=self.chunk)
        try:
            weights = decode(request.weights, phase.layout.dimension)
        except WrongUpdateError as error:
            raise _RefusedError(Reason.SHAPE) from error
        with torch.no_grad():
            for name, value in phase.layout.unflatten(weights.to(device)).items():
                phase.model.get_parameter(name).copy_(value)

        digest, attempt = digest_of(phase.weights()), None
        if roster is not None:
            attempt = Try(roster, request.place, request.values)
        with Ledger(self.participant.ledger) as ledger:
            if (cap := self.participant.cap) is not None:
                ledger.before_record = partial(cap.check_again, ledger)
            self._begin(ledger, request, parts)
            outbox = Outbox(ledger, self.participant.messages, "" if attempt is None else attempt.digest(digest))
            _refuse_repetition(outbox, number, phase.weights())
            # Every attempt has its own draws: two releases with the same noise would protect less.
            mechanism = parts.mechanism(self.participant.name, entropy_of(plan, len(ledger.attempts) - 1), ledger)
            before = ledger.releases(number)
            node = Node(mechanism, self.units)
            if attempt is None:
                messages, _ = do_round(phase, [node], records, outbox, number)
            elif (stored := outbox.replay(number, phase.weights(), device)) is not None:
                messages = stored
            else:
                mask = self._masking(ledger, attempt, node_value, digest)
                messages, _ = do_round(phase, [node], records, outbox, number, mask)
            if ledger.releases(number) > before:
                # Only now: what was just recorded is synced, and with it the note that the older ones were sent.
                outbox.discard(request.checkpointed)
            ledger.sign(partial(signed_head, self.participant.name, self.participant.key))
            lines = _lines_after(self.participant.ledger, request.head)
        # Closing the ledger has put these lines on disk: the server may remember them.
        update = encode(messages[0])
        return Answer(self.participant.name, request.place, update, lines)

    def _masking(self, ledger: Ledger, attempt: Try, value: FreshValue | None, weights: str) -> Masking:
        """Return the masks of a try that was not answered before; refuse one that the plan does not allow."""
        if sum(ledger.releases(number) for number in range(self.plan.training.rounds)) >= self.plan.tries:
            raise _RefusedError(Reason.TRIES)
        if value is None or self.participant.agreement is None:
            raise _RefusedError(Reason.VALUE)
        return Masking(attempt, self.participant.name, self.participant.agreement, value, weights)

    def _begin(self, ledger: Ledger, request: Request, parts: Assembly) -> None:
        """Refuse if the ledger has lost lines; start a new attempt if the server did and it is permitted."""
        if request.head and not ledger.ever_had_head(request.head):
            raise _RefusedError(Reason.LEDGER)
        ledgers = map(read_ledger, ledger_files(self.participant.ledger.parent))
        if lost := set(request.seen).difference(*map(heads_of, ledgers)):
            logger.error(
                "the ledgers in %s lack lines that the server has seen in an earlier training: an older copy was put "
                "back. Restore the newest copy; no total can be computed from this one. The line that is missing has "
                "the hash %s",
                self.participant.ledger.parent,
                min(lost),
            )
            raise _RefusedError(Reason.LEDGER)
        declaration = replace(self.participant.declaration(parts.declaration()), federation=request.place.training)
        last = ledger.attempts[-1].declaration if ledger.attempts else None
        # The server's name of an attempt alone identifies nothing: it could give the name to another plan.
        if last is not None and (last.federation, last.plan) == (declaration.federation, declaration.plan):
            return
        spare = self.settings.attempts - len(ledger.attempts)
        if spare <= 0:
            raise _RefusedError(Reason.ATTEMPTS)
        begin_attempt(ledger, declaration, self.participant.cap, attempts=spare)


def _refuse_repetition(outbox: Outbox, number: int, weights: Tensor) -> None:
    """Refuse a round that was answered for other weights, or whose message is gone."""
    times = outbox.ledger.releases(number)
    if not times:
        return
    try:
        stored = outbox.answered(number, weights)
    except UserError as error:
        logger.warning("%s", error)
        raise _RefusedError(Reason.ANSWERED) from error
    if not stored and any(outbox.ledger.sent(number, again) is not None for again in range(times)):
        raise _RefusedError(Reason.ANSWERED)


class _RefusedError(Exception):
    """A request that gets no update."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason


def _lines_after(path: Path, head: str) -> tuple[str, ...]:
    """Return the lines of a ledger after the one with a certain head; all of them where no head is given."""
    lines = tuple(path.read_text(encoding="utf-8").splitlines())
    if not head:
        return lines
    heads = [head_of(line) for line in lines]
    return lines[heads.index(head) + 1 :]


def load_hospital(participant: Participant, health: Health | None = None) -> Hospital:
    """Check that the plan is approved, then check and prepare the hospital's patients.

    Raises
    ------
    UserError
        If the plan is not approved, or settings, plan and patients do not agree.
    """
    settings, plan = participant.settings, participant.plan
    participant.check_approved()
    if settings.threads:
        torch.set_num_threads(settings.threads)
    participant.check_patients()
    backbone = backbone_of(plan, settings.backbone, pick_device(settings.device))
    records = site_task_of(plan.task).site(
        settings.images,
        plan,
        settings.state / "images",
        part="train",
        patients=plan.nodes[plan.position(settings.name)].population // plan.units_of_a_person,
        backbone=backbone,
    )
    return Hospital(participant, records, records.units(), starting_weights(plan.network, backbone), health)
