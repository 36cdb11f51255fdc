"""A hospital's approval of one plan, signed with the hospital's own key. Without it the hospital's node does not start.

The signature covers the hash of the plan and the number of permitted attempts, which together fix what a patient can
lose. So a plan or a number that was changed after somebody approved it is refused, whether by mistake or by anybody who
can write the hospital's files and cannot read its key. It is no protection against somebody who has the key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from zetadp.base.storage import make_folder, read_json, write_json
from zetadp.base.validation import UserError
from zetadp.core.plan import Plan
from zetadp.federation.flower.settings import HospitalSettings

SHORTEST = 12
"""Fewest digits of a plan's hash that name it."""
SCHEME = ec.ECDSA(hashes.SHA256())
SIGNED = ("attempts", "date", "node", "plan", "who")
"""What the signature covers."""


def approval_file(settings: HospitalSettings, plan: Plan) -> Path:
    """Return where the approval of a plan is kept: in the state folder, one file for each plan."""
    return settings.state / "approvals" / f"{plan.digest[:16]}.json"


def approve(settings: HospitalSettings, key: Path, who: str, digits: str | None = None) -> Path:
    """Approve the hospital's copy of the plan, and return the file of the approval.

    Parameters
    ----------
    settings
        The hospital's settings, which name the plan and the permitted attempts.
    key
        The node's private key.
    who
        Who approves.
    digits
        The first digits of the hash of the plan that was read, at least twelve; None where plan and approval come from
        the same program.

    Raises
    ------
    UserError
        If the plan has another hash, or does not know the hospital.
    """
    plan = Plan.read(settings.plan)
    plan.place(settings.name)
    if digits is not None and not (len(digits) >= SHORTEST and plan.digest.startswith(digits.lower())):
        raise UserError(
            f"Expected at least the first {SHORTEST} digits of the hash of {settings.plan}, which is {plan.digest}, "
            f"found {digits}. Read this plan again before you approve it."
        )
    content = {
        "node": settings.name,
        "plan": plan.digest,
        "attempts": settings.attempts,
        "who": who,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }
    path = approval_file(settings, plan)
    make_folder(path.parent)
    write_json(path, content | {"signature": _private(key).sign(_signed(content), SCHEME).hex()})
    return path


def check_approval(settings: HospitalSettings, plan: Plan, key: Path) -> str:
    """Return who approved a plan, in words, and when.

    Raises
    ------
    UserError
        If nobody approved this very plan with this key, for as many attempts as the settings now permit.
    """
    plan.place(settings.name)
    path = approval_file(settings, plan)
    remedy = f"Read the plan and approve it: zetadp federation approve NODE.yaml --key {key.name}"
    if not path.exists():
        raise UserError(f"Nobody has approved the plan {settings.plan} (hash {plan.digest[:16]}). {remedy}")
    content = read_json(path)
    try:
        _private(key).public_key().verify(bytes.fromhex(content["signature"]), _signed(content), SCHEME)
        wanted = (settings.name, plan.digest)
        found = (content["node"], content["plan"])
    except (InvalidSignature, KeyError, TypeError, ValueError) as error:
        raise UserError(f"The approval {path} was altered, or signed with another key than {key}. {remedy}") from error
    if found != wanted:
        raise UserError(f"The approval {path} is for another plan or another node. {remedy}")
    if settings.attempts > content["attempts"]:
        raise UserError(
            f"The approval {path} permits {content['attempts']} attempt(s), and the settings now say "
            f"{settings.attempts}, which costs patients more. {remedy}"
        )
    return f"approved by {content['who']} on {content['date']}"


def _signed(content: Mapping[str, Any]) -> bytes:
    return json.dumps({name: content[name] for name in SIGNED}, sort_keys=True).encode()


def _private(key: Path) -> ec.EllipticCurvePrivateKey:
    try:
        found = serialization.load_ssh_private_key(key.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise UserError(f"Expected {key} to hold the node's private key: {error}.") from error
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise UserError(f"Expected {key} to hold a private key on an elliptic curve, found another kind.")
    return found
