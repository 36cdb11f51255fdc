"""Units of privacy guarantees."""

from __future__ import annotations

from typing import Literal, TypeAlias

Unit: TypeAlias = Literal["patient", "speaker", "record", "image"]
"""The unit that is drawn, clipped and hidden. The person behind a record or an image may contribute others as well."""

PERSONS = ("patient", "speaker")
"""Units that are whole persons."""
