"""Write a page for each run on the facts that it may reveal about a person."""

from pathlib import Path

from zetadp.account.risk import Risk
from zetadp.base.storage import read_json
from zetadp.base.workflow import run
from zetadp.report.riskpage import Evidence, write_risk


def main(
    *,
    ledgers: list[Path],
    statements: list[Path],
    audit: list[Path],
    pages: list[Path],
    networks: list[str],
) -> None:
    """Write all pages in one job, because each takes less time than the start of a job.

    Pictures are in the folders of ``pages``.
    """
    for ledger, statement, page, network in zip(ledgers, statements, pages, networks, strict=True):
        risk = Risk.of(ledger, name=read_json(statement)["name"])
        write_risk(risk, page.parent, str(ledger), Evidence.of(audit, network))


if __name__ == "__main__":
    run(main, unread=("pictures",))
