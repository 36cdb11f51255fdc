"""Lines of JSON in which each is chained to the one before by a hash, so that edits show.

Ledgers and their register are such files. A file does not show that its last lines were cut off. Anyone who stored a
later head of the chain can detect it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

START = "0" * 64
"""Head of an empty chain."""


class BrokenChainError(ValueError):
    """A line that does not follow from the one before, or that is no line of such a file.

    Attributes
    ----------
    number
        Number of the line, from one.
    why
        What is wrong with it.
    """

    def __init__(self, number: int, why: str = "does not follow from the lines before it") -> None:
        super().__init__(f"line {number} {why}")
        self.number, self.why = number, why


@dataclass(frozen=True)
class Link:
    """One line of a chain.

    Attributes
    ----------
    entry
        Its content.
    head
        Hash of this line and all before it.
    text
        The line as it stands in a file, without its line break.
    """

    entry: dict[str, Any]
    head: str
    text: str

    @classmethod
    def after(cls, head: str, entry: Mapping[str, Any]) -> Link:
        """Return the line with the content ``entry`` that follows a chain with this head."""
        content = json.dumps(entry)
        new = _next(head, content)
        return cls(dict(entry), new, f'{{"chain":"{new}","entry":{content}}}')


def follow(lines: Iterable[str | bytes], head: str = START) -> Iterator[Link]:
    """Read lines, and check that each follows from the one before.

    A line must be the very text that `Link.after` writes. Another spelling of the same content, such as one with a line
    break in it, would be read differently once it is in a file.

    Raises
    ------
    BrokenChainError
        At the first line that does not follow or is not a line of a chain.
    """
    for number, line in enumerate(lines, start=1):
        try:
            text = line if isinstance(line, str) else line.decode()
            link = Link.after(head, json.loads(text)["entry"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BrokenChainError(number) from error
        if link.text != text:
            raise BrokenChainError(number)
        head = link.head
        yield link


def _next(head: str, content: str) -> str:
    return hashlib.sha256((head + content).encode()).hexdigest()
