"""Target epsilons as text: what names a run, sorts a table and heads a column."""

from __future__ import annotations

import math

from zetadp.validation import UserError

UNCLIPPED = "unclipped"
"""A run whose gradients are neither clipped nor get noise."""


def epsilon_value(label: str | float) -> float:
    """Return epsilon as a number; ``"inf"`` (clipped, no noise) and ``"unclipped"`` (neither) are infinity."""
    if label == UNCLIPPED:
        return math.inf
    try:
        value = float(label)
    except ValueError:
        value = math.nan
    if not value > 0:
        msg = f"Expected epsilon above zero, inf or unclipped, found {label!r}."
        raise UserError(msg)
    return value


def epsilon_label(value: str | float) -> str:
    """Return the one spelling of epsilon that tables use: ``"1"``, ``"0.5"``, ``"inf"``, ``"unclipped"``."""
    return UNCLIPPED if value == UNCLIPPED else f"{epsilon_value(value):g}"


def epsilon_order(label: str) -> tuple[float, bool]:
    """Return the key that sorts epsilons: by size, then infinity, then unclipped."""
    return epsilon_value(label), label == UNCLIPPED


def epsilon_shown(label: str) -> str:
    """Return epsilon as readers see it: ``"∞"`` for infinity."""
    return "∞" if label == "inf" else label
