"""Write the tables of docs/configuration.md and docs/commands.md: ``make reference``.

They come from the classes that check a configuration and from the parser of the command line, so nobody retypes them.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from zetadp.base.reading import schema_of
from zetadp.cli.commands import command_line
from zetadp.config.experiment import Config
from zetadp.config.sections import TaskSection
from zetadp.training.task import settings_class

PAGES = Path(__file__).parent
GENERATED = "<!-- `make reference` writes everything below this line. -->"
NOTHING = "–"
MANY = 1e5
"""Upper bounds above this number only exclude what no computer can hold, and are left out."""
_CODE = re.compile(r"(`[^`]*`|(?<![\w-])--\w[\w-]*)")
"""Code in a text: what stands between backquotes, and options, whose hyphens a site would join."""
_MARKUP = re.compile(r"[\\*<\[\]|]|(?<!\w)_|_(?!\w)")
_DEFAULT = re.compile(r" \(default: (.*)\)$")


def pages() -> dict[Path, str]:
    """Return the content of each page: the text that people wrote, and the generated part below it."""
    generated = {
        "configuration.md": configuration_reference(schema_of(Config)),
        "commands.md": command_reference(command_line()),
    }
    written = {name: (PAGES / name).read_text(encoding="utf-8").partition(GENERATED)[0] for name in generated}
    return {PAGES / name: f"{written[name]}{GENERATED}\n\n{generated[name]}" for name in generated}


def configuration_reference(schema: Mapping[str, Any]) -> str:
    """Return the Markdown on a configuration: a table for each section, and one for the keys outside of sections."""
    columns = ("key", "type or choices", "default", "what it does")
    parts = {name: (part, _below(_inner(part, schema), schema)) for name, part in schema["properties"].items()}
    single = {name: part for name, (part, below) in parts.items() if below is None}
    rows = _rows({**schema, "properties": single}, schema)
    sections = [f"## Top level\n\nKeys outside of all sections.\n\n{_table(columns, rows)}"]
    for name, (part, below) in parts.items():
        if below is not None:
            suffix, inner = below
            start = f" Every key begins with {_code(f'{name}{suffix}.')}." if suffix else ""
            about = f"{_text(part['description'])}{start}"
            sections.append(f"## {name}\n\n{about}\n\n{_table(columns, _rows(inner, schema))}")
        if name == "task":
            settings = schema_of(settings_class(TaskSection.name))
            about = f"Settings of the task {_code(TaskSection.name)}."
            sections.append(f"## task.settings\n\n{about}\n\n{_table(columns, _rows(settings, settings))}")
    return "\n".join(sections)


def command_reference(parser: argparse.ArgumentParser) -> str:
    """Return the Markdown on a command line: a list of all commands, and what each of them does and takes."""
    commands = list(_commands(parser))
    listed = (
        (f"[{_code(command.prog)}](#{command.prog.replace(' ', '-')})", _text(brief)) for command, brief in commands
    )
    return "\n".join([_table(("command", "what it does"), listed), *(_command(command) for command, _ in commands)])


def _commands(parser: argparse.ArgumentParser, brief: str = "") -> Iterator[tuple[argparse.ArgumentParser, str]]:
    """Yield the parser of every command that has no commands of its own, with its line in the list of commands."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        yield parser, brief
    for group in groups:
        briefs = {action.dest: action.help or "" for action in group._choices_actions}
        for name, command in group.choices.items():
            yield from _commands(command, briefs[name])


def _command(parser: argparse.ArgumentParser) -> str:
    """Return the section of one command."""
    paragraphs = [_text(paragraph) for paragraph in (parser.description or "").split("\n\n")]
    formatter = parser.formatter_class("")
    rows = []
    for action in parser._actions:
        if not isinstance(action, argparse._HelpAction):
            about = (action.help or "") % {"default": action.default}
            default = _DEFAULT.search(about)
            name = formatter._format_action_invocation(action)
            about = about.removesuffix(" (required)")
            value = _text(default[1]) if default else "required" if action.required else NOTHING
            rows.append((_code(name), value, _text(_DEFAULT.sub("", about))))
    examples = "\n".join(line.strip() for line in (parser.epilog or "").splitlines()[1:])
    parts = [f"## {parser.prog}", *paragraphs, _table(("argument or option", "default", "what it does"), rows).rstrip()]
    return "\n\n".join([*parts, f"```sh\n{examples}\n```"]) + "\n"


def _rows(part: Mapping[str, Any], root: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Yield a row for every key of a part of a schema, and of the parts in it."""
    for name, value in part["properties"].items():
        inner, below = _inner(value, root), _below(_inner(value, root), root)
        is_required = name in part.get("required", ())
        default_value = value.get("default", inner.get("default"))
        default = (
            _code(default_value if isinstance(default_value, str) else json.dumps(default_value))
            if "default" in value
            else NOTHING
        )
        about = _text(value.get("description", ""))
        yield _code(f"{prefix}{name}"), _kind(value, root), "required" if is_required else default, about
        if below is not None:
            yield from _rows(below[1], root, f"{prefix}{name}{below[0]}.")


def _below(part: Mapping[str, Any], root: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
    """Return the part of a schema with the keys of a section, and what a path has between both; None for a value."""
    if "properties" in part:
        return "", part
    parts = [(".<name>", value) for value in part.get("patternProperties", {}).values()]
    parts += [("[]", part["items"])] if "items" in part else []
    inner = ((between, _inner(value, root)) for between, value in parts)
    return next(((between, value) for between, value in inner if "properties" in value), None)


def _kind(part: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    """Return the type of a value, or its choices."""
    if "anyOf" in part:
        return " or ".join(_kind(choice, root) for choice in part["anyOf"])
    part = _inner(part, root)
    choices = part.get("enum", [part["const"]] if "const" in part else ())
    if choices:
        return ", ".join(_code(choice) for choice in choices)
    kind = part.get("type", "any")
    if kind == "array":
        number = f"{part['minItems']} " if part.get("minItems", 0) == part.get("maxItems") else ""
        return f"list of {number}" + re.sub(r"(integer|number|section)\b", r"\1s", _kind(part["items"], root))
    names = {"object": "section", "string": "text", "null": "`null`", "boolean": "`true`, `false`"}
    kinds = kind if isinstance(kind, list) else [kind]
    return " or ".join(names.get(name, name) for name in kinds) + _bounds(part)


def _bounds(part: Mapping[str, Any]) -> str:
    """Return the bounds of a number."""
    least, most = part.get("minimum"), part.get("maximum", MANY)
    if "exclusiveMinimum" in part:
        return f" > {part['exclusiveMinimum']:g}" + (f", ≤ {most:g}" if most < MANY else "")
    if least is None:
        return ""
    return f" {least:g} to {most:g}" if most < MANY else f" ≥ {least:g}"


def _inner(part: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part to which a part of a schema refers, or its choice that is not null."""
    if "anyOf" in part:
        part = next(choice for choice in part["anyOf"] if choice.get("type") != "null")
    return root["$defs"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    head = list(columns)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, [":--"] * len(head), *rows))


def _text(content: str) -> str:
    """Return the Markdown that shows a text unchanged."""
    parts = _CODE.split(" ".join(content.split()))
    return "".join(_code(part.strip("`")) if _CODE.fullmatch(part) else _MARKUP.sub(r"\\\g<0>", part) for part in parts)


def _code(content: object) -> str:
    """Return code that a cell of a table can hold."""
    return f"`{content}`".replace("|", r"\|")


if __name__ == "__main__":
    for path, content in pages().items():
        path.write_text(content, encoding="utf-8")
