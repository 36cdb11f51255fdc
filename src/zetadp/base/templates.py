"""Texts and pages from Jinja templates, which are stored in a folder next to the module that fills them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, Template

from zetadp.base.validation import shown


def template(file: Path, filters: Mapping[str, Callable[..., Any]], *, html: bool = False) -> Template:
    """Return a template, in which an unknown name is an error.

    Parameters
    ----------
    file
        The template.
    filters
        Functions that it applies to values, by name.
    html
        Whether every text is escaped and shown on one line.
    """
    environment = Environment(
        autoescape=html,  # noqa: S701  (other texts have no markup to escape)
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_on_one_line if html else None,
    )
    environment.filters.update(filters)
    return environment.from_string(file.read_text(encoding="utf-8"))


def _on_one_line(value: object) -> object:
    """Escape characters that a page would not print, except in text that the template escaped itself."""
    return shown(value) if type(value) is str else value
