"""The server's copies of the hospitals' ledgers, and signatures of the last line of a ledger: in it, and in a receipt.

A ledger whose chain and register were made anew looks complete, but only the node's key signs its head. A ledger that
was replaced by an older copy, with its register, holds a signature of that time. A receipt that the hospital keeps
elsewhere shows it, and nobody needs to ask the server: the signature is checked by the server's certificate, which the
receipt holds, and that by the certificate of the authority.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from zetadp.base.storage import make_folder, read_json, sync_folder, write_json
from zetadp.base.validation import UserError, shown
from zetadp.core.plan import Plan
from zetadp.federation.certificates import (
    Credentials,
    check_issued,
    check_signature,
    checked_host,
    read_certificate,
    read_server_key,
    read_verifier,
    signature,
)
from zetadp.federation.settings import ServerSettings
from zetadp.privacy.book import Book, ledger_files, read_ledgers
from zetadp.privacy.events import Event
from zetadp.privacy.ledger import Attempt, read_ledger, take_lines
from zetadp.privacy.register import START, BrokenChainError
from zetadp.privacy.verification import Check, checked

KEYS = {"receipt", "head", "node", "plan", "round", "signed", "certificate", "signature"}
FOLDER = "receipts"
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
        What the lines so far say, as `zetadp.privacy.ledger.read_ledger` returns it.

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
        heads = {START, self.head}.union(*(attempt.heads for attempt in self.attempts))
        known = 0  # lines shown before: a head stands for its line and for all before it
        while known < len(lines) and _head_of(lines[known]) in heads:
            known += 1
        if known == len(lines):
            return
        self.head = take_lines(lines[known:], self.attempts, self.head)
        try:
            make_folder(self.path.parent)
            with self.path.open("ab") as file:
                file.write("".join(f"{line}\n" for line in lines[known:]).encode())
                file.flush()
                os.fsync(file.fileno())
            sync_folder(self.path.parent)
        except OSError as error:
            raise UserError(
                f"Cannot write {self.path}: {error.strerror or error}. Free space or allow writing, then run again."
            ) from error

    @property
    def releases(self) -> list[Event]:
        """Every release in the ledger, of all attempts."""
        return [event for attempt in self.attempts for event in attempt.releases()]

    def of_attempt(self, identity: str) -> list[Event]:
        """Return the releases that the node has recorded for the server's present attempt, in their order."""
        if not self.attempts or self.attempts[-1].header.get("federation") != identity:
            return []
        return self.attempts[-1].releases()


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
    found = []
    for other in sorted(folder.parent.glob(f"*.nodes/{IDENTITIES}")):
        if other.parent == folder:
            continue
        names = [name for name, known in read_json(other).items() if known == identity]
        found += [Mirror(other.with_name(f"{name}.jsonl")).known for name in names]
    return [head for head in found if head]


def _head_of(line: str) -> str | None:
    """Return the head that a line names, if it is a line of a chain."""
    try:
        found = json.loads(line)["chain"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if isinstance(found, str) else None


def write_receipts(settings: ServerSettings, credentials: Credentials) -> list[Path]:
    """Sign the last line that the server has seen of every hospital's ledger, and return the files.

    Parameters
    ----------
    settings
        The server's settings. The files lie beside ``settings.ledger``, in a folder ``receipts``.
    credentials
        With the server's certificate and private key.
    """
    plan = Plan.read(settings.plan)
    certificate, key = credentials.server
    copies, written = copies_of(settings.ledger_file), []
    for node in plan.nodes:
        copy = copies / f"{node.name}.jsonl"
        if not (copy.exists() and (attempts := read_ledger(copy))):
            continue  # a hospital that was never there
        last = attempts[-1]
        content = {
            "receipt": 2,
            "node": node.name,
            "plan": plan.digest,
            "round": len({event.round for event in last.events}),
            "head": last.last,
            "signed": datetime.now(UTC).isoformat(timespec="seconds"),
            "certificate": certificate.read_text(encoding="ascii"),
        }
        path = settings.ledger.parent / FOLDER / f"{node.name}.json"
        make_folder(path.parent)
        write_json(path, content | {"signature": signature(content, read_server_key(key))})
        written.append(path)
    return written


def signed_head(node: str, key: EllipticCurvePrivateKey, head: str) -> str:
    """Return a node's signature of a head of its ledger, which stands for every line up to it."""
    return signature({"node": node, "head": head}, key)


def check_ledger(ledger: Path, key: Path) -> list[Check]:
    """Check that a hospital's node signed its ledger up to the last line.

    Parameters
    ----------
    ledger
        The ledger, or the server's copy of it. Where a register lies beside it, its folder must agree with that.
    key
        The node's public key, or a certificate of it.

    Raises
    ------
    UserError
        If one of the files cannot be read, or the ledger's chain is broken.
    """
    public, attempts = read_verifier(key), read_ledgers([ledger])[ledger]
    count = sum(len(attempt.releases()) for attempt in attempts)
    return [
        Check(f"the chain of {ledger} is unbroken, {count} releases"),
        checked(f"{key} signed the last line of {ledger}", _signed, attempts, public),
    ]


def _signed(attempts: Sequence[Attempt], public: object) -> None:
    last = attempts[-1] if attempts else None
    if last is None or last.signature is None:
        raise UserError(
            "no signature follows the last line: the chain was made anew, or the node was ended before it could sign. "
            "The node signs at its next answer"
        )
    content = {"node": last.header.get("node"), "head": last.signature.head, "signature": last.signature.text}
    check_signature(content, public)


def check_receipt(receipt: Path, authority: Path, ledgers: Path, host: str) -> list[Check]:
    """Check that a receipt is genuine, and that a hospital's ledgers hold the line that it names.

    Parameters
    ----------
    receipt
        The hospital's receipt.
    authority
        Certificate that the server's certificate goes back to.
    ledgers
        The hospital's folder of ledgers.
    host
        Name or address by which the hospital's node reaches the server. An authority may have issued certificates for
        other hosts, which have no right to sign.

    Raises
    ------
    UserError
        If one of the files is no receipt or no certificate, or the host is none.
    """
    issuer, host = read_certificate(authority), checked_host(host, "--server")
    content = read_json(receipt)
    if content.keys() != KEYS:
        raise UserError(f"Expected {receipt} to be a receipt of a server, found something else.")
    node, number, plan, head = (shown(str(content[key]))[:100] for key in ("node", "round", "plan", "head"))
    name = f"{node}, after {number} round(s) of the plan {plan[:12]}"
    return [
        checked(f"the receipt is signed by {host}, says {authority.name}: {name}", _genuine, content, issuer, host),
        checked(f"{ledgers} agrees with its register", _agrees, ledgers),
        checked(f"{ledgers} holds the line {head[:16]} of the receipt", _held, content, ledgers),
    ]


def _genuine(content: Mapping[str, Any], authority: x509.Certificate, host: str) -> None:
    certificate = x509.load_pem_x509_certificate(content["certificate"].encode())
    signed = datetime.fromisoformat(content["signed"])
    if signed > datetime.now(UTC) + timedelta(days=1):
        raise UserError(f"it was signed in the future, on {signed:%Y-%m-%d}")
    try:
        check_issued(certificate, authority, host, signed)
    except UserError as error:
        raise UserError(f"the certificate that signed it is not the server's: {error}") from error
    check_signature(content, certificate.public_key())


def _agrees(ledgers: Path) -> None:
    if not ledgers.is_dir():
        raise UserError("there is no such folder")
    Book.read(ledgers)


def _held(content: Mapping[str, Any], ledgers: Path) -> None:
    attempts = [attempt for path in ledger_files(ledgers) for attempt in read_ledger(path)]
    if not any(content["head"] in attempt.heads for attempt in attempts):
        raise UserError(
            "an older copy of the ledgers was put back, or a ledger is gone, and the newest copy must be restored; "
            "or the receipt is that of another hospital"
        )
