"""Pages of papers and their kept tables, in the forms in which tests compare them."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

PAPERS = Path(__file__).parents[1] / "papers"


def text_of(page: str) -> str:
    """Return the text of a page in one line, without emphasis and addresses of links."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", (PAPERS / page).read_text())
    return " ".join(re.sub(r"\*\*|(?<!\w)\*(?=\S)|(?<=\S)\*(?!\w)", "", text).split())


def table_lines(page: str) -> list[list[str]]:
    """Return the cells of every line of a page's tables, without emphasis and addresses of links."""
    lines = [line for line in (PAPERS / page).read_text().splitlines() if line.startswith("|")]
    return [
        [text.strip(" *") for text in re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line)[1:-1].split("|")] for line in lines
    ]


def line_of(page: str, *first: str) -> list[str]:
    """Return the one line of a page's tables that begins with some cells."""
    (line,) = [line for line in table_lines(page) if line[: len(first)] == list(first)]
    return line


def kept(paper: str, table: str, *keys: str) -> pd.DataFrame:
    """Return a kept table, by some of its columns. Epsilons and seeds are texts."""
    frame = pd.read_csv(PAPERS / f"{paper}/results/{table}.csv", comment="#", dtype={"epsilon": str, "seed": str})
    return frame.set_index(list(keys)).sort_index() if keys else frame
