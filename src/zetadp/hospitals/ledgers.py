"""The server's copies of the hospitals' ledgers, and a node's signature of the last line of its ledger.

A ledger whose chain and register were replaced looks complete, but only the node's key signs its head. A ledger that
was replaced by an older copy, with its register, holds an older signature. A head that the hospital noted elsewhere
reveals this: the server prints the last head that it has seen.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

from zetadp.account.attempts import Attempt, heads_of, releases_of, take_lines
from zetadp.account.book import Book
from zetadp.account.register import START, BrokenChainError
from zetadp.account.verification import Check, checked
from zetadp.accounting import composition
from zetadp.accounting.events import Event
from zetadp.accounting.threat import condition
from zetadp.base.epsilon import rounded_up
from zetadp.base.storage import make_folder, read_json, sync_folder, write_json, writing
from zetadp.base.validation import UserError, counted
from zetadp.hospitals.certificates import check_signature, read_public_key, signature
from zetadp.training.plan import Plan

IDENTITIES = "identities.json"
"""File next to the copies of the nodes' ledgers."""


class Mirror:
    """A copy of one node's ledger, on the server's disk. Every line is checked against the chain before it is believed.

    Parameters
    ----------
    path
        The copy; made when the first lines come.

    Attributes
    ----------
    head
        Head of the chain so far.
    attempts
        The attempts in the lines so far, as `zetadp.account.attempts.read_ledger` returns them.

    Raises
    ------
    UserError
        If the copy was edited.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head = START
        self.attempts: list[Attempt] = []
        if path.exists():
            *lines, torn = path.read_bytes().split(b"\n")
            try:
                self.head = take_lines(lines, self.attempts)
            except BrokenChainError as error:
                raise UserError(
                    f"The copy {path} of a node's ledger was edited or damaged: {error}. Restore it from a backup."
                ) from error
            if torn:  # a crash cut the last line off; the node sends it again, since the head is the one before
                with path.open("r+b") as file:
                    file.truncate(path.stat().st_size - len(torn))

    @property
    def known(self) -> str:
        """The head to name in a request; empty where no line is known."""
        return "" if self.head == START else self.head

    def extend(self, lines: Sequence[str]) -> None:
        """Check lines against the chain, then append and sync those that are new.

        Raises
        ------
        BrokenChainError
            If the lines do not follow: the node's ledger was cut, edited or exchanged. The file stays as it was, and
            this object is not to be used any more.
        UserError
            If the disk is full or read-only.
        """
        heads = {START, self.head} | heads_of(self.attempts)
        count = 0  # lines shown before: a head stands for its line and for all before it
        while count < len(lines) and head_of(lines[count]) in heads:
            count += 1
        if count == len(lines):
            return
        self.head = take_lines(lines[count:], self.attempts, self.head)
        with writing(self.path):
            make_folder(self.path.parent)
            with self.path.open("ab") as file:
                file.write("".join(f"{line}\n" for line in lines[count:]).encode())
                file.flush()
                os.fsync(file.fileno())
            sync_folder(self.path.parent)

    def of_attempt(self, identity: str) -> list[Event]:
        """Return the releases that the node has recorded for the server's present attempt, in their order."""
        if not self.attempts or self.attempts[-1].declaration.federation != identity:
            return []
        return self.attempts[-1].releases()


def spent_so_far(plan: Plan, *ledgers: Iterable[Attempt]) -> str:
    """Return in words what nodes' ledgers record, over all attempts, for a unit of the node that is most exposed."""
    exposures = (composition.compose(releases_of(attempts)) for attempts in ledgers)
    spent = rounded_up(max(composition.epsilon(exposure, plan.delta) for exposure in exposures))
    return f"epsilon spent so far {spent} per {plan.protects}, at delta {plan.delta:g}{condition(plan.masked)}"


def copies_of(ledger: Path) -> Path:
    """Return the folder of the copies of nodes' ledgers, next to the server's ledger of a training."""
    return ledger.with_name(f"{ledger.stem}.nodes")


def note_identities(folder: Path, identities: Mapping[str, str]) -> None:
    """Note whose ledgers the copies in a folder are: the identity of each node (`SuperLink.identity`)."""
    write_json(folder / IDENTITIES, identities)


def heads_elsewhere(folder: Path, identity: str) -> list[str]:
    """Return the last head of each copy of a node's ledgers from other trainings, in the folders next to one.

    Parameters
    ----------
    folder
        Folder of the copies of the present training.
    identity
        The node's.

    Raises
    ------
    UserError
        If a copy was edited.
    """
    heads = []
    for other in sorted(folder.parent.glob(f"*.nodes/{IDENTITIES}")):
        if other.parent == folder:
            continue
        names = [name for name, known in read_json(other).items() if known == identity]
        heads += [Mirror(other.with_name(f"{name}.jsonl")).known for name in names]
    return [head for head in heads if head]


def head_of(line: str) -> str | None:
    """Return the head that a line names, if it is a line of a chain."""
    try:
        head = json.loads(line)["chain"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return head if isinstance(head, str) else None


def signed_head(node: str, key: EllipticCurvePrivateKey, head: str) -> str:
    """Return a node's signature of a head of its ledger, which stands for every line up to it."""
    return signature({"node": node, "head": head}, key)


def check_ledger(ledger: Path, key: Path, head: str | None = None) -> list[Check]:
    """Check that a hospital's node signed its ledger up to the last line, and that a noted line is still in it.

    Parameters
    ----------
    ledger
        The ledger, or the server's copy of it. A register next to it must agree with the ledger's folder.
    key
        The node's public key.
    head
        A head of the ledger that was noted elsewhere, such as the last one that the server printed.

    Raises
    ------
    UserError
        If one of the files cannot be read, or the ledger's chain is broken.
    """
    if not ledger.is_file():
        raise UserError(f"Expected a ledger (.jsonl), found no file {ledger}.")
    public, attempts = read_public_key(key), Book.of(ledger).ledgers[ledger]
    checks = [
        Check(f"the chain of {ledger} is unbroken, {counted(len(releases_of(attempts)), 'release')}"),
        checked(f"{key} signed the last line of {ledger}", _signed, attempts, public),
    ]
    if head is not None:
        missing = f"{head} is not a head of it: an older copy was put back, or it is another ledger"
        fault = "" if head in heads_of(attempts) else missing
        checks.append(Check(f"{ledger} holds the head that was noted elsewhere", fault))
    return checks


def _signed(attempts: Sequence[Attempt], public: EllipticCurvePublicKey) -> None:
    last = attempts[-1] if attempts else None
    if last is None or last.signature is None:
        raise UserError(
            "no signature follows the last line: the chain was replaced, or the node was ended before it could sign. "
            "The node signs at its next answer"
        )
    content = {"node": last.declaration.node, "head": last.signature.head, "signature": last.signature.text}
    check_signature(content, public)
