"""Write the page with the result of an experiment."""

from pathlib import Path

from zetadp.base.workflow import run
from zetadp.report.resultpage import Results, write_results


def main(*, table: Path, total: Path, text: Path, pictures: list[Path], page: Path, name: str) -> None:
    """Write the page from what other rules made."""
    write_results(Results.read(table, total, text, pictures), name, page)


if __name__ == "__main__":
    run(main)
