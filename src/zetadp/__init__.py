"""Federated learning of complex-valued networks with per-person differential privacy.

The names below are the library's public interface; docs/library.md shows them at work.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PUBLIC = {
    "Records": "zetadp.front.records",
    "ReleaseSettings": "zetadp.release.release",
    "Run": "zetadp.front.run",
    "UserError": "zetadp.base.validation",
    "epsilon": "zetadp.front.figures",
    "ledger": "zetadp.front.figures",
    "load": "zetadp.front.run",
    "noise": "zetadp.front.figures",
    "private": "zetadp.front.run",
    "release_features": "zetadp.release.release",
}

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:  # noqa: ANN401  (whatever the name stands for)
    """Import a public name when it is first used: PyTorch takes seconds to import, and most commands do not need it."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'zetadp' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_PUBLIC]
