"""Audits by keyword, each of which belongs to the trials, to the mechanism or to the attack."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from zetadp.audit import many_rounds, one_round
from zetadp.audit.detection import Trials
from zetadp.audit.one_round import Audited

if TYPE_CHECKING:
    from pathlib import Path

    from zetadp.audit.detection import AuditResult


def _parts(trials: int, how: dict[str, Any]) -> tuple[Trials, Audited, dict[str, Any]]:
    own = {kind: {f.name for f in fields(kind)} & set(how) for kind in (Trials, Audited)}
    tried, audited = ({name: how[name] for name in own[kind]} for kind in (Trials, Audited))
    rest = {name: value for name, value in how.items() if name not in own[Trials] | own[Audited]}
    return Trials(trials, **tried), Audited(**audited), rest


def audit_one_round(folder: Path, *, trials: int, **how: Any) -> AuditResult:
    """Audit one round."""
    tried, audited, rest = _parts(trials, how)
    return one_round.audit_one_round(folder, tried, audited, **rest)


def audit_training(folder: Path, *, trials: int, **how: Any) -> AuditResult:
    """Audit whole trainings."""
    tried, audited, rest = _parts(trials, how)
    return many_rounds.audit_training(folder, tried, audited, **rest)
