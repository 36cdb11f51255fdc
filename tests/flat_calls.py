"""Calls of the library's front door by one dict of values, of which a test changes some."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch

import zetadp


def taken(kind: type, given: dict[str, Any]) -> Any:
    """Return an object of a dataclass from the values that are its fields, which leave the dict."""
    return kind(**{each.name: given.pop(each.name) for each in fields(kind) if each.name in given})


def private(model: torch.nn.Module, records: object, **given: Any) -> zetadp.PrivateRun:
    """Prepare a training; constants and options are among the values."""
    public, options = taken(zetadp.Public, given), taken(zetadp.Options, given)
    return zetadp.private(model, records, public, options=options, **given)


def release(records: object, **given: Any) -> object:
    """Release rows; the public constants are among the values."""
    return zetadp.release(records, taken(zetadp.Mixing, given), **given)
