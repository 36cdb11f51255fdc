"""Whose contribution a guarantee hides."""

from __future__ import annotations

from typing import Literal, TypeAlias

Unit: TypeAlias = Literal["patient", "speaker", "record", "image"]
"""What is drawn, clipped and hidden; of a record or an image nobody knows what else its person contributes."""

PERSONS = ("patient", "speaker")
"""Units that are whole persons."""
