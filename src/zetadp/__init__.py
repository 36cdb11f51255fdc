"""Federated learning of complex-valued networks with per-person differential privacy.

The names below are the library's public interface; docs/library.md shows them at work.
"""

from __future__ import annotations

from zetadp.base import lazily

_PUBLIC = {
    "Mixing": "zetadp.front.release",
    "Options": "zetadp.front.private",
    "PrivateRun": "zetadp.front.run",
    "Public": "zetadp.core.public",
    "Records": "zetadp.front.records",
    "UserError": "zetadp.base.validation",
    "epsilon": "zetadp.front.promises",
    "fit_head": "zetadp.front.head",
    "ledger": "zetadp.front.promises",
    "load": "zetadp.front.run",
    "nn": "zetadp.nn",
    "noise": "zetadp.front.promises",
    "private": "zetadp.front.private",
    "release": "zetadp.front.release",
}

__all__ = list(_PUBLIC)
__getattr__, __dir__ = lazily(__name__, _PUBLIC)
