"""``zetadp risk``: one page on what a run or a release may reveal about a person."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from zetadp.cli.helping import explain
from zetadp.cli.places import ledger_of

OF_AN_EXPERIMENT = 5
"""Number of folders from that of an experiment down to that of a run: runs/NETWORK/ARM/EPSILON/SEED."""


def add_commands(commands: Any) -> None:  # noqa: ANN401  (argparse does not name the type)
    """Add the command to a parser's sub-commands."""
    risk = commands.add_parser("risk", help="write one page on what a training run may reveal about a person")
    explain(
        risk,
        "Write risk.html, risk.md and risk.svg from the ledger of a run or of a release. They say what the best attack "
        "can learn about one person at most, what attacks on the code have shown, and what is not covered. The page "
        "needs no network and can be printed.",
        examples=(
            "risk results/default/runs/study_gentle/federated/eps-8/seed-0",
            "risk runs/mine",
            "risk rows.jsonl --output report",
        ),
    )
    risk.add_argument("place", type=Path, metavar="RUN", help="folder of a run, or a ledger (.jsonl)")
    risk.add_argument("--output", type=Path, help="folder for the page (default: that of the run or ledger)")
    risk.add_argument("--audit", type=Path, help="folder of the audit (default: that of the run's experiment)")
    risk.set_defaults(run=_risk)


def _risk(given: argparse.Namespace) -> None:
    from zetadp.base.storage import read_json
    from zetadp.privacy.risk import Risk
    from zetadp.report.riskpage import Evidence, headline, write_risk

    place: Path = given.place
    ledger = ledger_of(place)
    statement = ledger.with_name("privacy.json")
    known = read_json(statement) if place.is_dir() and statement.is_file() else {}
    parents = place.resolve().parents
    audit = given.audit or (parents[OF_AN_EXPERIMENT - 1] / "audit" if len(parents) >= OF_AN_EXPERIMENT else place)
    network = parents[OF_AN_EXPERIMENT - 3].name if len(parents) >= OF_AN_EXPERIMENT else None
    output = given.output or (place if place.is_dir() else ledger.parent)
    found = Risk.of(ledger, name=known.get("name"))
    write_risk(found, found.unit, found.delta, output, str(ledger), Evidence.of(audit.glob("*"), network))
    print(headline(found, found.unit, found.delta))
    print(f"written to {output / 'risk.html'}")
