r"""Masks that cancel in the sum: the server adds the hospitals' messages modulo 2^64 and sees nothing but their sum.

Every pair of members of a try has a stream of random 64-bit words. The hospital that comes first in the plan adds it to
its message, the other one subtracts it. In the sum over all members every stream cancels. Any other sum of messages,
also a single message, still holds at least one stream that the server does not have and looks uniformly random. This
holds as long as the key agreement, the key derivation and the cipher are secure, and the keys in the roster are those
of the hospitals. The second condition is checked by people, who compare the roster's digest by another way.

A *try* is one request for one round. A round whose try lacks a message needs another try, with other masks. The
transcript of a try names everything that must be the same at all members: plan, roster, training, round, number of the
try, members with their fresh values, and the digest of the weights. Streams are derived from it. Members that were told
different things derive different streams, and their masks do not cancel. Every member contributes 32 fresh random bytes
to every try, so no stream is ever used twice, also if a server repeats a try or starts from an old state.

Keys are on the curve P-384 and are made for one plan. Shared secrets become stream keys by HKDF with SHA-384, and
streams are those of ChaCha20. Each key is used for one stream, so its nonce and counter start at zero.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from torch import Tensor

from zetadp.base.reading import read
from zetadp.base.storage import read_json, write_json
from zetadp.base.validation import UserError, checked_name, shown
from zetadp.hospitals.certificates import check_signature, public_bytes, signature
from zetadp.training.plan import Plan

MEMBER, ROSTER, VALUE, TRANSCRIPT = (f"zetadp {what} 1" for what in ("member", "roster", "fresh value", "masked sum"))
"""Purpose and version of everything that is signed, hashed or derived from: none can pass for another."""
STEPS = (
    "With masked sums, every hospital first makes its keys (zetadp federation key, then zetadp federation member) and "
    "sends its member file to the coordinator. The coordinator makes the roster of all member files (zetadp federation "
    "roster) and sends it to every site, where the settings name it: `plan: roster.json`. Approve after that."
)
"""The steps before a roster can be approved, for messages."""
CURVE = ec.SECP384R1()
FRESH_BYTES = 32
WORDS_AT_ONCE = 1 << 17
"""Words of a stream in memory, one MiB."""


class UnsafeTryError(UserError):
    """A try that a hospital must not take part in."""


@dataclass(frozen=True)
class Place:
    """The subject of a request or an answer: a try of a round of a training run.

    Attributes
    ----------
    training
        Name of the server's attempt. Another name is another attempt, which a node must permit.
    round
        The round, counted from zero.
    number
        With masked sums, the try of the round, counted from zero.
    """

    training: str
    round: int
    number: int = 0

    def __post_init__(self) -> None:
        """Check the name that the receiver stores in its ledger."""
        checked_name(self.training, "training")


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
        member, keys = self.member(name), (_point(agreement.public_key()), public_bytes(signing.public_key()).decode())
        for purpose, stated, key in zip(
            ("agreement", "signing"), (member.agreement, member.signing), keys, strict=True
        ):
            if stated != key:
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


@dataclass(frozen=True)
class FreshValue:
    """Random bytes that one member contributes to one try, signed.

    Attributes
    ----------
    name
        The member.
    value
        The bytes in hexadecimal.
    signature
        Signature by the member's signing key, also of plan, roster and place of the try.
    """

    name: str
    value: str
    signature: str


@dataclass(frozen=True)
class Try:
    """One request for one round to a part of the roster.

    Attributes
    ----------
    roster
        The roster of the plan.
    place
        Position of the try.
    values
        A fresh value of each member of the try, in the order of the plan.

    Raises
    ------
    UnsafeTryError
        If a member is unknown, named twice or in the wrong place, if there are fewer than the plan allows, or if a
        value was not signed by its member for this very try.
    """

    roster: Roster
    place: Place
    values: tuple[FreshValue, ...]

    def __post_init__(self) -> None:
        """Check members and values."""
        names = [member.name for member in self.roster.members]
        members = [value.name for value in self.values]
        if len(members) < self.roster.least or members != [name for name in names if name in members]:
            raise UnsafeTryError(
                f"Expected at least {self.roster.least} of the roster's members, each once and in its order, found "
                f"{', '.join(map(shown, members)) or 'none'}."
            )
        for value in self.values:
            check_value(self.roster, value, self.place)

    @property
    def names(self) -> list[str]:
        """Names of the members of the try."""
        return [value.name for value in self.values]

    def transcript(self, weights: str) -> bytes:
        """Return all facts that must be the same at every member, with the digest of the weights."""
        training, number, try_number = self.place.training, self.place.round, self.place.number
        facts = (TRANSCRIPT, self.roster.plan.digest, self.roster.digest, training, number, try_number)
        members = [part for value in self.values for part in (value.name, value.value)]
        return concatenated(*facts, len(self.values), *members, weights)

    def digest(self, weights: str) -> str:
        """Return the SHA-256 of the transcript, which names the try and its weights."""
        return hashlib.sha256(self.transcript(weights)).hexdigest()


def signed_content(roster: Roster, name: str, value: str, position: Place) -> dict[str, Any]:
    """Return the content that the signature of a fresh value covers: the value, its member, and its try."""
    facts = {"purpose": VALUE, "plan": roster.plan.digest, "roster": roster.digest, "training": position.training}
    return facts | {"round": position.round, "try": position.number, "name": name, "value": value}


def fresh_value(roster: Roster, name: str, key: ec.EllipticCurvePrivateKey, position: Place) -> FreshValue:
    """Draw the value of a member, who has a private signing key, for a try from the operating system, and sign it."""
    value = os.urandom(FRESH_BYTES).hex()
    return FreshValue(name, value, signature(signed_content(roster, name, value, position), key))


def check_value(roster: Roster, value: FreshValue, position: Place) -> None:
    """Refuse a value that its member did not sign for a try.

    Raises
    ------
    UnsafeTryError
        If the signature is not the member's, or for something else.
    """
    content = signed_content(roster, value.name, value.value, position)
    try:
        check_signature(content | {"signature": value.signature}, roster.member(value.name).verifier)
    except UserError as error:
        raise UnsafeTryError(f"The fresh value of {shown(value.name)} is not for this try: {error}.") from error


class Masking:
    """The masks of one member in one try, which `zetadp.training.round.do_round` adds to the member's message.

    Parameters
    ----------
    attempt
        The try.
    name
        The member.
    key
        Its private agreement key.
    own
        The fresh value that this member gave for the try. It must be given to no second object.
    weights
        Digest of the weights that the message is computed for.

    Raises
    ------
    UnsafeTryError
        If the try lacks the member or holds another value of it, or if the roster holds another key of it.
    """

    def __init__(
        self,
        attempt: Try,
        name: str,
        key: ec.EllipticCurvePrivateKey,
        fresh: FreshValue,
        weights: str,
    ) -> None:
        if fresh.name != name or fresh not in attempt.values:
            raise UnsafeTryError(f"Expected the try to hold the value that {name} gave for it, found none or another.")
        if _point(key.public_key()) != attempt.roster.member(name).agreement:
            raise UnsafeTryError(f"Expected the agreement key of {name} to be that of the roster, found another.")
        self.attempt, self.name, self.key = attempt, name, key
        self.transcript = attempt.transcript(weights)

    def __call__(self, message: Tensor) -> Tensor:
        """Return a message with the masks added, modulo 2^64.

        Parameters
        ----------
        message
            Integers on the grid with the member's noise: int64 of any shape, in the same order at all members.
        """
        if message.dtype != torch.int64:
            raise ValueError(f"Expected a message of int64, found {message.dtype}.")
        masked = message.detach().cpu().contiguous().clone()
        words = masked.numpy().reshape(-1).view(np.uint64)
        position = self.attempt.roster.plan.position
        for name in self.attempt.names:
            if name != self.name:
                self._add(words, self._stream_key(name), subtract=position(name) < position(self.name))
        return masked.to(message.device)

    def _stream_key(self, other: str) -> bytes:
        """Return the key of the stream that this member shares with another one in this try."""
        member = self.attempt.roster.member
        secret = self.key.exchange(ec.ECDH(), member(other).public)
        pair = sorted((self.name, other), key=self.attempt.roster.plan.position)
        info = concatenated(*pair, *(member(name).agreement for name in pair), self.transcript)
        return HKDF(hashes.SHA384(), length=32, salt=None, info=info).derive(secret)

    @staticmethod
    def _add(words: np.ndarray, key: bytes, *, subtract: bool) -> None:
        """Add the stream of a key to words in place, or subtract it; both wrap around."""
        stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
        zeros = bytes(8 * WORDS_AT_ONCE)
        for first in range(0, len(words), WORDS_AT_ONCE):
            part = words[first : first + WORDS_AT_ONCE]
            mask = np.frombuffer(stream.update(zeros[: 8 * len(part)]), "<u8")
            if subtract:
                part -= mask
            else:
                part += mask


def _members(content: object, path: Path) -> list[Member]:
    """Return the members that the content of a file states."""
    members, _, faults = read(list[Member], content)
    if faults:
        raise UserError(f"Expected {path} to hold members of a roster: {' '.join(faults)}")
    return list(members)


def concatenated(*parts: str | int | bytes) -> bytes:
    """Return parts one after the other, each after its length: other parts never give the same bytes."""
    encoded = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return b"".join(len(part).to_bytes(8, "big") + part for part in encoded)


def _point(key: ec.EllipticCurvePublicKey) -> str:
    """Return a public key as a compressed point."""
    form = serialization.PublicFormat.CompressedPoint
    return key.public_bytes(serialization.Encoding.X962, form).hex()
