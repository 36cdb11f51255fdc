"""Pages of sections with text, tables and figures, as one self-contained HTML file or as Markdown, from templates."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from zetadp.base.tables import Sheet
from zetadp.base.validation import shown
from zetadp.report.rendering import markdown_text, to_markdown


@dataclass(frozen=True)
class Section:
    """A part of a page; its elements appear in the order of the attributes.

    Attributes
    ----------
    heading
        One line; empty for a section without one.
    paragraphs
        Texts, with code in backticks.
    pictures
        SVG files by their descriptions.
    tables
        Tables with their notes.
    texts
        Preformatted texts, whose line breaks stay.
    points
        Items of a list, with code in backticks.
    """

    heading: str
    paragraphs: Sequence[str] = ()
    pictures: dict[str, Path] = field(default_factory=dict)
    tables: Sequence[Sheet] = ()
    texts: Sequence[str] = ()
    points: Sequence[str] = ()


def filled(template: str, *, filters: Mapping[str, Callable[..., Any]], html: bool = False, **values: Any) -> str:  # noqa: ANN401  (whatever the template shows)
    """Return a template beside this module with its values; in HTML every text is escaped and on one line."""
    environment = Environment(
        autoescape=html,  # noqa: S701  (Markdown has no markup to escape)
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_on_one_line if html else None,
    )
    environment.filters.update(filters)
    source = (Path(__file__).parent / template).read_text(encoding="utf-8")
    return environment.from_string(source).render(**values).strip() + "\n"


def page_html(title: str, sections: Sequence[Section], *, repeated: int = 0, whole: bool = False) -> str:
    """Return a page that needs no other file and is well-formed XML; the first section's paragraphs are set off.

    Parameters
    ----------
    title, sections
        Content of the page.
    repeated
        Number of sections that the landing page of Snakemake's report repeats.
    whole
        Never break lines within tables on a screen.
    """
    return filled(
        "templates/page.html.j2",
        html=True,
        filters={"base64": _base64},
        title=title,
        sections=sections,
        repeated=repeated,
        whole=whole,
    )


def page_markdown(title: str, sections: Sequence[Section], folder: Path) -> str:
    """Return the page as Markdown, for a file in ``folder``, with relative links to figures."""
    filters: dict[str, Callable[..., str]] = {"words": markdown_text, "table": to_markdown}
    below = {path: os.path.relpath(path, folder) for section in sections for path in section.pictures.values()}
    return filled("templates/page.md.j2", filters=filters, title=title, sections=sections, below=below)


def to_html(sheet: Sheet) -> str:
    """Return a page with one table, whose title is the only heading."""
    return page_html(sheet.title, [Section("", tables=[sheet])], whole=True)


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _on_one_line(value: object) -> object:
    """Show what a page would not print, in everything but text that the template escaped itself."""
    return shown(value) if type(value) is str else value
