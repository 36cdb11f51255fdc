"""Compute the total cost in privacy of all runs on a cohort."""

from pathlib import Path

from zetadp.account.book import Book, claim
from zetadp.account.statement import total_statement
from zetadp.base.workflow import run


def main(
    *,
    ledgers: list[Path],
    table: Path,
    total: Path,
    text: Path,
    ledger_folder: str,
) -> None:
    """Write the total over all ledgers of the cohort, which include failed and repeated runs, and deleted results.

    The folder of ledgers counts. ``ledgers`` are the sealed copies of the present runs, which the folder must contain.
    The rule's ``others``, a hash of the ledgers of other experiments, makes this job run again when these ledgers grow.
    """
    folder = Path(ledger_folder)
    claim(folder, table)
    book = Book.read(folder, ledgers)
    total_statement(book.runs(), shared=book.shared).write(total, text)


if __name__ == "__main__":
    run(main, unread=("others",))
