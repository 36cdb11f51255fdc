"""Federated learning of complex-valued networks with per-person differential privacy.

The names below are the library's public interface; docs/library.md shows them at work.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PUBLIC = {
    "Holding": "zetadp.core.training",
    "NetworkSettings": "zetadp.nn.settings",
    "NodeConstants": "zetadp.core.plan",
    "OptimiserSettings": "zetadp.core.settings",
    "Performance": "zetadp.core.settings",
    "Plan": "zetadp.core.plan",
    "Records": "zetadp.core.records",
    "ReleaseSettings": "zetadp.release.release",
    "RunName": "zetadp.core.plan",
    "Terms": "zetadp.privacy.statement",
    "TrainingData": "zetadp.core.training",
    "TrainingFiles": "zetadp.core.training",
    "TrainingSettings": "zetadp.core.settings",
    "UserError": "zetadp.base.validation",
    "noise_of_plan": "zetadp.privacy.calibration",
    "promise_of": "zetadp.privacy.calibration",
    "recorded_runs": "zetadp.privacy.exposure",
    "release_features": "zetadp.release.release",
    "total_statement": "zetadp.privacy.statement",
    "train": "zetadp.core.training",
}

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:  # noqa: ANN401  (whatever the name stands for)
    """Import a public name when it is first used: PyTorch takes seconds to import, and most commands do not need it."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'zetadp' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_PUBLIC]
