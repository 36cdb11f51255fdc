r"""Masks that cancel in the sum: the server adds the hospitals' messages modulo 2^64 and sees nothing but their sum.

Every pair of members of a try has a stream of random 64-bit words. The hospital that comes first in the plan adds it to
its message, the other one subtracts it. In the sum over all members every stream cancels. Any other sum of messages,
also a single message, still holds at least one stream that the server does not have and looks uniformly random. This
holds as long as the key agreement, the key derivation and the cipher are secure, and the keys in the roster are those
of the hospitals (`zetadp.hospitals.roster`).

A *try* is one request for one round. A round whose try lacks a message needs another try, with other masks. The
transcript of a try names everything that must be the same at all members: plan, roster, training, round, number of the
try, members with their fresh values, and the digest of the weights. Streams are derived from it. Members that were told
different things derive different streams, and their masks do not cancel. Every member contributes 32 fresh random bytes
to every try, so no stream is ever used twice, also if a server repeats a try or starts from an old state.

Shared secrets become stream keys by HKDF with SHA-384, and streams are those of ChaCha20. Each key is used for one
stream, so its nonce and counter start at zero.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from torch import Tensor

from zetadp.base.names import checked_name
from zetadp.base.validation import UserError, shown
from zetadp.hospitals.certificates import check_signature, signature
from zetadp.hospitals.roster import Roster

VALUE, TRANSCRIPT = "zetadp fresh value 1", "zetadp masked sum 1"
"""Purpose and version of what is signed, hashed or derived from here: none can pass for another."""
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
    fresh
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
        if key.public_key() != attempt.roster.member(name).public:
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


def concatenated(*parts: str | int | bytes) -> bytes:
    """Return parts one after the other, each after its length: other parts never give the same bytes."""
    encoded = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return b"".join(len(part).to_bytes(8, "big") + part for part in encoded)
