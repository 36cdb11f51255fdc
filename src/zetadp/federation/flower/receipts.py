"""Receipts: for each hospital the last line of its ledger that the server has seen, signed with the server's key.

A ledger that was replaced by an older copy, with its register, looks complete. A receipt that the hospital keeps
elsewhere shows it, and nobody needs to ask the server: the signature is checked by the server's certificate, which the
receipt holds, and that by the certificate of the authority.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from zetadp.base.storage import make_folder, read_json, write_json
from zetadp.base.validation import UserError
from zetadp.core.plan import Plan
from zetadp.federation.flower.certificates import Credentials, check_certificate
from zetadp.federation.flower.mirror import copies_of
from zetadp.federation.flower.settings import ServerSettings
from zetadp.privacy.account import cohort_runs
from zetadp.privacy.ledger import read_ledger
from zetadp.privacy.verification import Check, checked

SIGNED = ("head", "node", "plan", "round")
"""What the signature covers."""
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
    copies, written = copies_of(settings.ledger_file), []
    for node in plan.nodes:
        copy = copies / f"{node.name}.jsonl"
        if not (copy.exists() and (attempts := read_ledger(copy))):
            continue  # a hospital that was never there
        last = attempts[-1]
        rounds = len({event.round for event in last.events})
        content = {"node": node.name, "plan": plan.digest, "round": rounds, "head": last.last}
        path = settings.ledger.parent / FOLDER / f"{node.name}.json"
        make_folder(path.parent)
        write_json(path, _signed(content, credentials))
        written.append(path)
    return written


def check_receipt(receipt: Path, authority: Path, ledgers: Path) -> list[Check]:
    """Check that a receipt is genuine, and that a hospital's ledgers hold the line that it names.

    Parameters
    ----------
    receipt
        The hospital's receipt.
    authority
        Certificate that the server's certificate goes back to.
    ledgers
        The hospital's folder of ledgers.

    Raises
    ------
    UserError
        If one of the files is no receipt or no certificate.
    """
    check_certificate(authority)
    content = read_json(receipt)
    if not (isinstance(content, dict) and {*SIGNED, "certificate", "signature"} <= content.keys()):
        raise UserError(f"Expected {receipt} to be a receipt of a server, found something else.")
    name = f"{content['node']}, after {content['round']} round(s) of the plan {str(content['plan'])[:12]}"
    return [
        checked(f"the receipt is signed by a server of {authority.name}: {name}", _genuine, content, authority),
        checked(f"{ledgers} agrees with its register", _agrees, ledgers),
        checked(f"{ledgers} holds the line {str(content['head'])[:16]} of the receipt", _held, content, ledgers),
    ]


def _signed(content: Mapping[str, Any], credentials: Credentials) -> dict[str, Any]:
    certificate, path = credentials.server
    key: Any = serialization.load_pem_private_key(path.read_bytes(), None)
    signature: bytes = key.sign(_text(content), *_scheme(key))
    return {**content, "signature": signature.hex(), "certificate": certificate.read_text(encoding="ascii")}


def _genuine(content: Mapping[str, Any], authority: Path) -> None:
    certificate = x509.load_pem_x509_certificate(content["certificate"].encode())
    try:
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.read_bytes()))
    except (InvalidSignature, ValueError, TypeError) as error:
        raise UserError("this authority did not issue the certificate of that server") from error
    key: Any = certificate.public_key()
    try:
        key.verify(bytes.fromhex(content["signature"]), _text(content), *_scheme(key))
    except (InvalidSignature, ValueError) as error:
        raise UserError("it was altered after it was signed") from error


def _scheme(key: object) -> tuple[Any, ...]:
    """Return how a key signs, whatever kind the institution's certificates are of."""
    if isinstance(key, ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey):
        return (ec.ECDSA(hashes.SHA256()),)
    if isinstance(key, rsa.RSAPrivateKey | rsa.RSAPublicKey):
        return (padding.PKCS1v15(), hashes.SHA256())
    return ()  # Ed25519 leaves no choice


def _agrees(ledgers: Path) -> None:
    if not ledgers.is_dir():
        raise UserError("there is no such folder")
    cohort_runs(ledgers)


def _held(content: Mapping[str, Any], ledgers: Path) -> None:
    attempts = [attempt for path in sorted(ledgers.glob("*.jsonl")) for attempt in read_ledger(path)]
    if not any(content["head"] in attempt.heads for attempt in attempts):
        raise UserError(
            "an older copy of the ledgers was put back, or a ledger is gone, and the newest copy must be restored; "
            "or the receipt is that of another hospital"
        )


def _text(content: Mapping[str, Any]) -> bytes:
    return json.dumps({"receipt": 1, **{name: content[name] for name in SIGNED}}, sort_keys=True).encode()
