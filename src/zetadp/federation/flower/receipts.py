"""Receipts: for each hospital the last line of its ledger that the server has seen, signed with the server's key.

A ledger that was replaced by an older copy, with its register, looks complete. A receipt that the hospital keeps
elsewhere shows it, and nobody needs to ask the server: the signature is checked by the server's certificate, which the
receipt holds, and that by the certificate of the authority.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509

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
    signature,
)
from zetadp.federation.flower.mirror import copies_of
from zetadp.federation.flower.settings import ServerSettings
from zetadp.privacy.book import Book, ledger_files
from zetadp.privacy.ledger import read_ledger
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
