"""The documentation site, which ``make docs`` builds into site/. Building and reading it need no network."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from docutils.nodes import SkipNode, math
from latex2mathml.converter import convert

from zetadp.base.reading import schema_of
from zetadp.cli.commands import command_line
from zetadp.config.experiment import Config

if TYPE_CHECKING:
    from docutils.nodes import Element
    from sphinx.application import Sphinx
    from sphinx.writers.html5 import HTML5Translator

project = "zetadp"
html_title = project
author = "The zetadp authors"
copyright = author  # noqa: A001  (Sphinx asks for this name)
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
numpydoc_show_class_members = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True

html_theme = "furo"  # brings its own style and takes the reader's own fonts: nothing is fetched
html_math_renderer = "mathml"  # which browsers draw themselves; Sphinx's own would fetch a program
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "native"

COMMANDS = "<!-- the help of every command -->"
KEYS = "<!-- every key of the configuration -->"
WIDTH = "88"


def setup(app: Sphinx) -> None:
    """Add what pages hold on the site alone: Sphinx calls this."""
    papers, inside = Path(app.srcdir, "../papers"), Path(app.srcdir, "papers")
    if papers.is_dir():
        shutil.rmtree(inside, ignore_errors=True)  # an ignored copy: Sphinx reads one folder
        shutil.copytree(papers, inside, ignore=shutil.ignore_patterns("*.py", "*.yaml", "Snakefile", "__pycache__"))
    app.connect("source-read", read)
    app.connect("build-finished", write_schema)
    app.add_html_math_renderer("mathml", (draw_formula, None), (draw_formula, None))


def write_schema(app: Sphinx, _: Exception | None) -> None:
    """Write the schema of the configuration, for editors."""
    Path(app.outdir, "config.schema.json").write_text(json.dumps(schema_of(Config), indent=1), encoding="utf-8")


def draw_formula(page: HTML5Translator, formula: Element) -> None:
    """Write a formula as MathML."""
    display = "inline" if isinstance(formula, math) else "block"
    page.body.append(convert(formula.astext(), display=display))
    raise SkipNode


def read(app: Sphinx, page: str, source: list[str]) -> None:
    """Write commands and keys into their pages, give kept tables a title, and lead links to papers into the site.

    The site has the folder of papers inside of that of the pages, beside which it lies in the repository.
    """
    path = PurePosixPath(page)
    if path.parts[0] == "papers":
        source[0] = source[0].replace("../docs/", "../")
    else:
        source[0] = source[0].replace("../papers/", "papers/")
    if page == "commands":
        source[0] = source[0].replace(COMMANDS, described(command_line()))
    elif page == "configuration":
        source[0] = source[0].replace(KEYS, keys(schema_of(Config)))
    elif "results" in path.parts and path.stem != "README":
        source[0] = f"---\norphan: true\n---\n\n# {path}\n\n{source[0]}"


def described(parser: argparse.ArgumentParser) -> str:
    """Return the Markdown reference of a parser and of all its commands."""
    os.environ |= {"COLUMNS": WIDTH, "NO_COLOR": "1"}  # argparse asks for the width of the terminal
    helps = (f"## {each.prog}\n\n```text\n{each.format_help().rstrip()}\n```\n" for each in single_commands(parser))
    return "\n".join(helps)


def single_commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parser of every command that has no commands of its own."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        yield parser
    for group in groups:
        for command in group.choices.values():
            yield from single_commands(command)


def keys(schema: Mapping[str, Any]) -> str:
    """Return the Markdown reference of a configuration schema: one row per key."""
    head = "| key | meaning | type | default |\n|:--|:--|:--|:--|\n"
    return head + "".join(f"| {' | '.join(row)} |\n" for row in _rows("", schema, schema))


def _rows(prefix: str, schema: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    for key, part in schema.get("properties", {}).items():
        yield from _row(f"{prefix}{key}", part, root)
    for rest in (*schema.get("patternProperties", {}).values(), schema.get("additionalProperties")):
        if isinstance(rest, dict):
            yield from _rows(f"{prefix}NAME.", _inner(rest, root), root)
    if "items" in schema:
        yield from _rows(f"{prefix}[].", _inner(schema["items"], root), root)


def _row(name: str, part: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    inner = _inner(part, root)
    choices = [str(each) for each in inner.get("enum", [inner["const"]] if "const" in inner else [])]
    kinds = "one of " + ", ".join(choices) if choices else inner.get("type", "any")
    kind = " or ".join(kinds) if isinstance(kinds, list) else str(kinds)
    nullable = any(each.get("type") == "null" for each in part.get("anyOf", ()))
    nested = "properties" in inner or "patternProperties" in inner
    default = "" if nested or "default" not in part else f"`{json.dumps(part['default'])}`"
    yield f"`{name}`", str(part.get("description", "")), kind + " or null" * nullable, default
    yield from _rows(f"{name}.", inner, root) if kind == "object" else _rows(name, inner, root)


def _inner(part: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a part of a schema refers to, and the kind that is not null."""
    if "anyOf" in part:
        part = next(each for each in part["anyOf"] if each.get("type") != "null")
    return root["$defs"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
