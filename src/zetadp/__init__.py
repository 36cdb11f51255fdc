"""Federated learning of complex-valued networks with per-person differential privacy.

The names below are the library's public interface; docs/library.md shows them at work.
"""

from __future__ import annotations

from zetadp.base import lazily

_PUBLIC = {
    "Mixing": "zetadp.own.release",
    "Options": "zetadp.own.private",
    "PrivateRun": "zetadp.own.run",
    "Public": "zetadp.training.public",
    "Records": "zetadp.own.records",
    "UserError": "zetadp.base.validation",
    "epsilon": "zetadp.own.promises",
    "fit_head": "zetadp.own.head",
    "ledger": "zetadp.own.promises",
    "load": "zetadp.own.run",
    "nn": "zetadp.nn",
    "noise": "zetadp.own.promises",
    "private": "zetadp.own.private",
    "release": "zetadp.own.release",
}

__all__ = list(_PUBLIC)
__getattr__, __dir__ = lazily(__name__, _PUBLIC)
