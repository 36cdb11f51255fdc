"""What the server asks of a node in a round, and what it is told: nothing but the privatised sum and public facts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Request:
    """A request for a round.

    Attributes
    ----------
    plan
        Hash of the plan that the server follows.
    attempt
        What the server's training is known by; another one is another attempt, which a node has to permit.
    round
        The round, counted from zero.
    checkpointed
        Rounds that the server will never ask for again.
    head
        Last head of the node's ledger that the server has seen; empty where it has seen none.
    weights
        The weights, as `zetadp.federation.flower.updates` encodes them in float32.
    """

    plan: str
    attempt: str
    round: int
    checkpointed: int
    head: str
    weights: bytes


@dataclass(frozen=True)
class Answer:
    """A node's answer: its privatised mean gradient, and the lines that its ledger gained.

    Attributes
    ----------
    name
        The node.
    attempt, round
        What it answers.
    update
        The privatised mean gradient in the plan's form.
    lines
        The lines of the node's ledger after the head that the request named: public constants of releases.
    """

    name: str
    attempt: str
    round: int
    update: bytes
    lines: Sequence[str]


class Reason(StrEnum):
    """Why a node sends no update. It is one of these words and nothing else: an error's text could tell of patients."""

    PLAN = "the node follows another plan"
    ROUND = "the plan has no such round"
    SHAPE = "the weights are not those of the plan's network"
    ATTEMPTS = "the node permits no further training from the start"
    ANSWERED = "the node has answered this round, for other weights or too long ago"
    LEDGER = "the node's ledger lacks lines that the server has seen"
    BUSY = "the node is at work on an earlier request"
    TIME = "the node's computation took too long and was ended"
    FAILED = "the node failed; its own log says why"


@dataclass(frozen=True)
class Refusal:
    """A node's answer that there will be no update.

    Attributes
    ----------
    name
        The node.
    attempt, round
        What it answers.
    reason
        Why.
    """

    name: str
    attempt: str
    round: int
    reason: Reason

    @property
    def final(self) -> bool:
        """Whether asking again, with nothing changed, can only bring the same."""
        return self.reason not in (Reason.BUSY, Reason.TIME, Reason.FAILED)


class Line(Protocol):
    """How the server reaches its nodes."""

    def reachable(self) -> set[str]:
        """Return the names of the nodes that are connected."""

    def ask(self, name: str, request: Request) -> None:
        """Send a request to a node."""

    def asked(self, name: str) -> bool:
        """Tell whether a request to a node is under way; it is not after an answer, nor where the node began anew."""

    def collect(self) -> list[Answer | Refusal]:
        """Return what has arrived."""
