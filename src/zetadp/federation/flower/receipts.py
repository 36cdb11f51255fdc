"""Signatures of the last line of a hospital's ledger: by the hospital's node in the ledger, by the server in a receipt.

A ledger whose chain and register were made anew looks complete, but only the node's key signs its head. A ledger that
was replaced by an older copy, with its register, holds a signature of that time. A receipt that the hospital keeps
elsewhere shows it, and nobody needs to ask the server: the signature is checked by the server's certificate, which the
receipt holds, and that by the certificate of the authority.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from zetadp.base.storage import make_folder, read_json, write_json
from zetadp.base.validation import UserError, shown
from zetadp.core.plan import Plan
from zetadp.federation.flower.certificates import (
    Credentials,
    check_issued,
    check_signature,
    checked_host,
    read_certificate,
    read_server_key,
    read_verifier,
    signature,
)
from zetadp.federation.flower.mirror import copies_of
from zetadp.federation.flower.settings import ServerSettings
from zetadp.privacy.book import Book, ledger_files, read_ledgers
from zetadp.privacy.ledger import Attempt, read_ledger
from zetadp.privacy.verification import Check, checked

KEYS = {"receipt", "head", "node", "plan", "round", "signed", "certificate", "signature"}
FOLDER = "receipts"


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
