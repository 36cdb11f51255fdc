"""The roster of masked sums: the members of a plan with their keys, which every hospital approves with the plan.

Masks hide messages only if the keys in the roster are those of the hospitals. People check that: they compare the
roster's digest by another way. Keys are on the curve P-384, and an agreement key is made for one plan.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from zetadp.base.reading import read
from zetadp.base.storage import read_json, write_json
from zetadp.base.validation import UserError, shown
from zetadp.hospitals.certificates import check_signature, public_bytes, signature
from zetadp.training.plan import Plan

MEMBER, ROSTER = "zetadp member 1", "zetadp roster 1"
"""Purpose and version of what is signed and hashed here: none can pass for another."""
STEPS = (
    "With masked sums, every hospital first makes its keys (zetadp federation key, then zetadp federation member) and "
    "sends its member file to the coordinator. The coordinator makes the roster of all member files (zetadp federation "
    "roster) and sends it to every site, where the settings name it: `plan: roster.json`. Approve after that."
)
"""The steps before a roster can be approved, for messages."""
CURVE = ec.SECP384R1()


@dataclass(frozen=True)
class Member:
    """One hospital in the roster, as its member file states it.

    Attributes
    ----------
    purpose
        `MEMBER`.
    plan
        Digest of the plan. The agreement key is used for no other.
    name
        The node's name in the plan.
    agreement
        Public agreement key, the compressed point in hexadecimal.
    signing
        Public signing key in PEM.
    signature
        Signature of all this by the signing key.
    """

    purpose: str
    plan: str
    name: str
    agreement: str
    signing: str
    signature: str

    def __post_init__(self) -> None:
        """Check both keys and the signature."""
        refusal = f"The member file of {shown(self.name)} is refused"
        if self.purpose != MEMBER:
            raise UserError(f"{refusal}: Expected purpose {MEMBER}, found {shown(self.purpose)}.")
        try:
            # Both are written in one way alone, so that equal keys are equal texts.
            is_canonical = (_point(self.public), public_bytes(self.verifier).decode()) == (self.agreement, self.signing)
        except (ValueError, TypeError):
            is_canonical = False
        if not is_canonical:
            raise UserError(f"{refusal}: Expected keys on the curve P-384 as `zetadp federation member` writes them.")
        try:
            check_signature(asdict(self), self.verifier)
        except UserError as error:
            raise UserError(f"{refusal}: {error}. Ask the hospital for the file that it made.") from error

    @classmethod
    def create(
        cls, plan: Plan, name: str, agreement: ec.EllipticCurvePrivateKey, signing: ec.EllipticCurvePrivateKey
    ) -> Self:
        """Return the member file of a hospital, which states its keys.

        Raises
        ------
        UserError
            If the plan has no such node.
        """
        plan.position(name)
        content = {"purpose": MEMBER, "plan": plan.digest, "name": name}
        content |= {"agreement": _point(agreement.public_key()), "signing": public_bytes(signing.public_key()).decode()}
        return cls(**content, signature=signature(content, signing))

    @cached_property
    def public(self) -> ec.EllipticCurvePublicKey:
        """The agreement key; its point is on the curve."""
        return ec.EllipticCurvePublicKey.from_encoded_point(CURVE, bytes.fromhex(self.agreement))

    @cached_property
    def verifier(self) -> ec.EllipticCurvePublicKey:
        """The signing key; it is on the curve."""
        key = serialization.load_pem_public_key(self.signing.encode())
        if not (isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP384R1)):
            raise TypeError("Expected a key on the curve P-384, found another.")
        return key


@dataclass(frozen=True)
class Roster:
    """The members of a plan with their keys, which every hospital approves together with the plan.

    Attributes
    ----------
    plan
        The plan.
    members
        One for each node, in the order of the plan.

    Raises
    ------
    UserError
        If members and nodes differ, a member is for another plan, or two members share a key.
    """

    plan: Plan
    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        """Check the members; each has checked itself."""
        expected, names = [node.name for node in self.plan.nodes], [member.name for member in self.members]
        if names != expected:
            raise UserError(
                f"Expected in the roster each node of the plan once and in its order ({', '.join(expected)}), found "
                f"{', '.join(map(shown, names)) or 'none'}."
            )
        for member in self.members:
            if member.plan != self.plan.digest:
                raise UserError(
                    f"Expected keys for the plan {self.plan.digest[:16]}, found at {member.name} those for "
                    f"{shown(member.plan[:16])}. Make them for this plan: zetadp federation member"
                )
        # Two points with one first coordinate give the same secrets; the first byte is the sign of the second one.
        points = {member.agreement[2:] for member in self.members}
        signers = {member.signing for member in self.members}
        if min(len(points), len(signers)) < len(self.members):
            raise UserError("Expected keys of its own for each member of the roster, found one key at several.")

    @classmethod
    def from_files(cls, plan: Plan, files: Iterable[Path]) -> Self:
        """Return the roster of member files, in any order."""
        members = [member for path in files for member in _members([read_json(path)], path)]
        order = {node.name: index for index, node in enumerate(plan.nodes)}
        return cls(plan, tuple(sorted(members, key=lambda member: order.get(member.name, len(order)))))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a roster with its plan from a file of `write`."""
        content = read_json(path)
        if content.keys() != {"purpose", "plan", "members"} or content["purpose"] != ROSTER:
            raise UserError(f"Expected {path} to be a roster, found something else. Make it: zetadp federation roster")
        return cls(Plan.from_json(content["plan"]), tuple(_members(content["members"], path)))

    @property
    def least(self) -> int:
        """Fewest members that a try may have. One alone would send its message without masks."""
        return 2 if self.plan.sums is None else self.plan.sums.least_members(len(self.members))

    def write(self, path: Path) -> None:
        """Write the roster and its plan as JSON."""
        write_json(path, {**self._content(), "plan": self.plan.to_json()})

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the members, each of whom names the plan; hospitals compare it."""
        canonical = json.dumps(self._content(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def _content(self) -> dict[str, Any]:
        return {"purpose": ROSTER, "members": [asdict(member) for member in self.members]}

    def member(self, name: str) -> Member:
        """Return a member; raise a `UserError` if the plan has no such node."""
        return self.members[self.plan.position(name)]

    def check_own(self, name: str, agreement: ec.EllipticCurvePrivateKey, signing: ec.EllipticCurvePrivateKey) -> None:
        """Refuse a roster with keys that are not the hospital's."""
        member = self.member(name)
        for purpose, stated, key in (("agreement", member.public, agreement), ("signing", member.verifier, signing)):
            if stated != key.public_key():
                raise UserError(
                    f"Expected the {purpose} key of {name} in the roster to be its own, found another. Somebody "
                    "changed the roster, or replaced the key. Approve nothing; ask the coordinator about the roster."
                )


def read_terms(path: Path) -> tuple[Plan, Roster | None]:
    """Read a plan, or with masked sums a roster, which holds its plan.

    Raises
    ------
    UserError
        If the file does not exist, or it is neither, or the other one of the two. The message names the steps that come
        before.
    """
    if not path.exists():
        raise UserError(
            f"plan: Expected the plan or the roster {path}, found no file. The plan is in the hospital's kit. {STEPS}"
        )
    roster = Roster.read(path) if read_json(path).get("purpose") == ROSTER else None
    plan = Plan.read(path) if roster is None else roster.plan
    if plan.masked != (roster is not None):
        expected, other = ("roster", "plan") if plan.masked else ("plan", "roster")
        steps = STEPS if plan.masked else "A plan without masked sums has no roster: name the plan."
        raise UserError(f"plan: Expected {path} to be the {expected} of {plan.label}, found its {other}. {steps}")
    return plan, roster


def _members(content: object, path: Path) -> list[Member]:
    """Return the members that the content of a file states."""
    members, _, faults = read(list[Member], content)
    if faults:
        raise UserError(f"Expected {path} to hold members of a roster: {' '.join(faults)}")
    return list(members)


def _point(key: ec.EllipticCurvePublicKey) -> str:
    """Return a public key as a compressed point."""
    form = serialization.PublicFormat.CompressedPoint
    return key.public_bytes(serialization.Encoding.X962, form).hex()
