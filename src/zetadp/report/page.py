"""Pages of sections with text, tables and figures, as one self-contained HTML file or as Markdown."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from zetadp.base.sheet import Sheet
from zetadp.report.rendering import html_page, html_table, html_text, markdown_text, to_markdown


@dataclass(frozen=True)
class Section:
    """A part of a page; its elements appear in the order of the attributes.

    Attributes
    ----------
    heading
        One line.
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


def page_html(title: str, sections: Sequence[Section]) -> str:
    """Return a page that needs no other file; the paragraphs of its first section are set off."""
    return html_page(title, [f"<h1>{html_text(title)}</h1>", *sections_html(sections)], PAGE_STYLE)


def sections_html(sections: Sequence[Section], *, lead: bool = True) -> list[str]:
    """Return the HTML of sections, with embedded figures; ``lead`` sets off the paragraphs of the first section."""
    body = []
    for place, section in enumerate(sections):
        body.append(f"<h2>{html_text(section.heading)}</h2>")
        mark = ' class="first"' if lead and place == 0 else ""
        body += [f"<p{mark}>{_code(text)}</p>" for text in section.paragraphs]
        body += [_image(text, path) for text, path in section.pictures.items()]
        body += [f'<div class="wide">{html_table(sheet)}</div>' for sheet in section.tables]
        body += [f"<pre>{escape(text)}</pre>" for text in section.texts]
        if section.points:
            body += ["<ul>", *(f"<li>{_code(text)}</li>" for text in section.points), "</ul>"]
    return body


def page_markdown(title: str, sections: Sequence[Section], folder: Path) -> str:
    """Return the page as Markdown, for a file in ``folder``, with relative links to figures."""
    lines = [f"# {markdown_text(title)}", ""]
    for section in sections:
        lines += [f"## {markdown_text(section.heading)}", ""]
        lines += [line for text in section.paragraphs for line in (markdown_text(text), "")]
        for text, path in section.pictures.items():
            lines += [f"![{markdown_text(text)}]({os.path.relpath(path, folder)})", ""]
        lines += [line for sheet in section.tables for line in (to_markdown(sheet), "")]
        lines += [line for text in section.texts for line in ("```text", text.rstrip(), "```", "")]
        lines += [f"- {markdown_text(text)}" for text in section.points]
        lines += [""] if section.points else []
    return "\n".join(lines).rstrip() + "\n"


def _code(text: str) -> str:
    """Escape a text, and mark what is in backticks as code."""
    parts = html_text(text).split("`")
    return "".join(f"<code>{part}</code>" if place % 2 else part for place, part in enumerate(parts))


def _image(text: str, path: Path) -> str:
    content = base64.b64encode(path.read_bytes()).decode()
    return f'<figure><img alt="{html_text(text)}" src="data:image/svg+xml;base64,{content}"/></figure>'


PAGE_STYLE = """\
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 1.8rem; break-after: avoid; }
p, li { max-width: 46rem; }
p.first { font-size: 1.15rem; border-left: 4px solid #1a1a1a; padding-left: .8rem; }
figure { margin: 1rem 0; } img { max-width: 100%; }
table { margin: 1rem 0; } caption { white-space: normal; }
tbody td, thead th { white-space: normal; }
pre { white-space: pre-wrap; font-size: 13px; max-width: 55rem; }
.wide { overflow-x: auto; }
@media print {
  body { margin: 0; font-size: 11pt; max-width: none; }
  .wide { overflow: visible; } table { font-size: 9pt; } th, td { padding: .15rem .4rem; }
  figure, table { break-inside: avoid; } img { max-height: 22cm; }
}
"""
