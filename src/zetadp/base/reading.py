"""Strict reading of settings: every key is known, every value of its kind, and all faults come at once.

The settings are dataclasses, with their rules in their types (`zetadp.base.validation`) and in ``__post_init__``.
Pydantic compares content with them. This module words the faults, accepts numbers and names that other programs have
changed, and makes the schema and the page of keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from inspect import cleandoc
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast, get_args, get_type_hints

from zetadp.base.epsilon import Target
from zetadp.base.strict_yaml import distinct, parse_yaml
from zetadp.base.validation import UserError, did_you_mean, shown

Settings = TypeVar("Settings")

_ENTRY = re.compile(r"^(\w[\w, ]*)\n((?:    .*\n?|\n)+)", re.MULTILINE)


class Read(NamedTuple):
    """Result of reading content.

    Attributes
    ----------
    value
        The settings; None if there are faults.
    content
        The content that was read, with corrected numbers and names.
    faults
        Every fault, with the path of its key.
    """

    value: Any
    content: Any
    faults: list[str]


def read(kind: Any, content: Any, where: str = "") -> Read:  # noqa: ANN401  (any type, any content)
    """Read settings of a type from the content of a file.

    Parameters
    ----------
    kind
        The type: a dataclass, or a list or dictionary of them.
    content
        Content of a YAML or JSON file.
    where
        Path of the content's key, for messages.
    """
    from pydantic import ValidationError

    model = _model(kind)
    errors: list[Any] = []
    for again in (True, False):
        try:
            return Read(model.model_validate_json(json.dumps({"value": content}, default=str)).value, content, [])
        except UserError as error:
            return Read(None, content, [f"{where}: {error}" if where else str(error)])
        except ValidationError as error:
            errors = [{**fault, "loc": fault["loc"][1:]} for fault in error.errors()]
        if again:
            content = _interpreted(content, errors)
    schema = schema_of(kind)
    return Read(None, content, [_message(fault, where, schema) for fault in errors])


def read_file(kind: type[Settings], path: Path, owner: str) -> Settings:
    """Return the settings that a YAML or JSON file holds. Paths in it are relative to its folder.

    Parameters
    ----------
    kind
        The dataclass of the settings.
    path
        The file.
    owner
        Site whose settings the file should hold, for messages.

    Raises
    ------
    UserError
        If the file cannot be read, or with every fault of its keys and values.
    """
    try:
        text = path.read_text(encoding="utf-8")
        # For YAML 1e-05, as JSON writes it, is a text.
        if path.suffix == ".json":
            content = json.loads(text, object_pairs_hook=partial(distinct, where=str(path)))
        else:
            content = parse_yaml(text, str(path), merges=False)
        if not isinstance(content, dict):
            content_type = "nothing" if content is None else type(content).__name__
            raise UserError(
                f"Expected {path} to hold the settings of {owner}: found {content_type}, not keys with values."
            )
    except OSError as error:
        raise UserError(f"Expected {path} to hold the settings of {owner}: {error.strerror or error}.") from error
    except ValueError as error:
        raise UserError(f"Expected {path} to hold the settings of {owner}: {str(error).rstrip('.')}.") from error
    settings, _, faults = read(kind, content)
    if faults:
        raise UserError(f"Expected {path} to hold the settings of {owner}: {' '.join(faults)}")
    for name, value in vars(settings).items():
        object.__setattr__(settings, name, _resolved(value, path.parent))
    return cast("Settings", settings)


def _resolved(value: Any, folder: Path) -> Any:  # noqa: ANN401  (any value)
    if isinstance(value, Path):
        return (folder / value).resolve()
    return {key: _resolved(item, folder) for key, item in value.items()} if isinstance(value, dict) else value


def described_by(*kinds: type) -> Callable[[Settings], Settings]:
    """Decorate settings: the docstrings of these classes describe the keys that their own docstring leaves out."""

    def mark(settings: Settings) -> Settings:
        setattr(settings, "described_by", kinds)  # noqa: B010  (mypy knows no such attribute)
        return settings

    return mark


@cache
def _model(kind: Any) -> Any:  # noqa: ANN401  (any type)
    from pydantic import ConfigDict, create_model

    strict = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    return create_model("Content", __config__=strict, value=(kind, ...))


def _interpreted(original: Any, errors: Sequence[Mapping[str, Any]]) -> Any:  # noqa: ANN401  (any content)
    """Return content in which texts became numbers or truth values, and numbers became names, where the type needs it.

    Snakemake leaves nested values on the command line (``--config 'partition={nodes: 3}'``) as text, YAML reads
    ``2e-3``, which has no decimal point, as text, spreadsheets write whole numbers as 4.0, and a name may be a number.
    """
    content: Any = {"value": deepcopy(original)}
    for error in errors:
        path = ("value", *error["loc"])
        container, last = content, path[-1]
        try:
            for key in path[:-1]:
                container = container[key]
            container[last] = _interpreted_value(container[last], error["type"])
        except (KeyError, IndexError, TypeError):
            continue
    return content["value"]


def _interpreted_value(value: Any, fault: str) -> Any:  # noqa: ANN401  (any content)
    expected = fault.partition("_")[0]
    if expected == "string" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, float) and expected == "int" and value.is_integer():
        return int(value)
    if not isinstance(value, str):
        return value
    if value == "null" and expected != "literal":
        return None
    if expected == "bool":
        return {"true": True, "false": False}.get(value, value)
    for parse in {"int": (int, float), "float": (int, float)}.get(expected, ()):
        try:
            number = parse(value)
        except ValueError:
            continue
        return int(number) if expected == "int" and number == number // 1 else number
    return value


def _message(error: Mapping[str, Any], where: str, schema: Mapping[str, Any]) -> str:
    """Return the message about one fault."""
    keys = [shown(str(part)) for part in error["loc"] if part != "[key]"]
    path = ".".join([where, *keys] if where else keys) or "the top level"
    kind, value = error["type"], shown(repr(error["input"])[:200])
    if kind in {"unexpected_keyword_argument", "extra_forbidden"}:
        known = list(_part(schema, schema, error["loc"][:-1]).get("properties", {}))
        above = path.rpartition(".")[0] or "the top level"
        hint = did_you_mean(keys[-1], known) or (f" Known keys: {', '.join(known)}." if known else " It has none.")
        return f"Unknown key {keys[-1]!r} at {above}.{hint}"
    if kind in {"missing", "missing_argument", "missing_keyword_only_argument"}:
        return f"{path}: expected this key, which has no default; found none."
    if kind == "value_error":
        return f"{path}: {error['ctx']['error']}"
    if kind == "literal_error":
        choices = re.findall(r"'([^']+)'", error["ctx"]["expected"])
        hint = did_you_mean(str(error["input"]), choices)
        return f"{path}: expected one of {', '.join(choices)}; found {value}.{hint}"
    if kind == "string_pattern_mismatch":
        return f"{path}: expected {_spelling(error['ctx']['pattern'])}; found {value}."
    quotes = " Write it in quotes." if kind == "string_type" and not isinstance(error["input"], dict | list) else ""
    expected = error["msg"].removeprefix("Input should be ").removeprefix("a valid ").removeprefix("an instance of ")
    return f"{path}: expected {expected[:1].lower()}{expected[1:]}; found {value}.{quotes}"


def _spelling(pattern: str) -> str:
    """Return in words which characters a pattern of `Spelled` permits, and the pattern."""
    characters = {"A-Z": "capital letters", "a-z": "small letters", "0-9": "digits", "_": "_", ".": "dots", "-]": "-"}
    return f"{', '.join(text for mark, text in characters.items() if mark in pattern)}, as in {pattern}"


def _part(schema: Mapping[str, Any], root: Mapping[str, Any], path: Sequence[Any]) -> Mapping[str, Any]:
    """Return the part of a schema that describes the content at a path."""
    if "$ref" in schema:
        return _part(root["$defs"][schema["$ref"].rpartition("/")[2]], root, path)
    if "anyOf" in schema:
        return _part(next(choice for choice in schema["anyOf"] if choice.get("type") != "null"), root, path)
    if not path:
        return schema
    others = [*schema.get("patternProperties", {}).values(), schema.get("additionalProperties"), schema.get("items")]
    inner = schema.get("properties", {}).get(path[0], next(filter(None, others), {}))
    return _part(inner, root, path[1:])


@cache
def schema_of(kind: Any) -> dict[str, Any]:  # noqa: ANN401  (any type)
    """Return the JSON schema of a type, with the descriptions that stand in the docstrings of its dataclasses."""
    schema, additions = _model(kind).model_json_schema(), _additions(kind)
    for part in schema.get("$defs", {}).values():
        for name, inner in part.get("properties", {}).items():
            inner.pop("title", None)
            inner |= additions.get(part["title"], {}).get(name, {})
    for owner in _classes(kind, set()):
        for field in fields(owner) if is_dataclass(owner) else ():
            if not field.init:  # a constant of the class, which no file can set
                del schema["$defs"][owner.__name__]["properties"][field.name]
    value = schema["properties"]["value"]
    value.pop("title", None)
    return {**_part(value, schema, ()), "$defs": schema.get("$defs", {})}


def _additions(kind: Any) -> dict[str, dict[str, dict[str, Any]]]:  # noqa: ANN401  (any type)
    """Return what pydantic leaves out, by class and field: the description, and a default that is a list."""
    additions: dict[str, dict[str, dict[str, Any]]] = {}
    for owner in _classes(kind, set()):
        of_fields = additions.setdefault(owner.__name__, {})
        for base in reversed([*owner.__mro__, *getattr(owner, "described_by", ())]):
            of_fields |= {name: {"description": text} for name, text in attributes(base).items()}
        for field in fields(owner) if is_dataclass(owner) else ():
            default = None if field.default_factory is MISSING else field.default_factory()
            if isinstance(default, list | tuple):
                written = json.loads(json.dumps(default, default=_as_written))
                of_fields[field.name] = {**of_fields.get(field.name, {}), "default": written}
    return additions


def _as_written(value: Any) -> Any:  # noqa: ANN401  (any settings)
    return str(value) if isinstance(value, Target) else vars(value)


def _classes(kind: Any, seen: set[Any]) -> Iterator[Any]:  # noqa: ANN401  (any type)
    for argument in get_args(kind):
        yield from _classes(argument, seen)
    if isinstance(kind, type) and kind not in seen and (is_dataclass(kind) or hasattr(kind, "__total__")):
        seen.add(kind)
        yield kind
        for hint in get_type_hints(kind, include_extras=True).values():
            yield from _classes(hint, seen)


def attributes(kind: type) -> dict[str, str]:
    """Return the description of each attribute in a class's docstring, on one line."""
    section = cleandoc(kind.__doc__ or "").partition("Attributes\n----------\n")[2]
    return {
        name.strip(): " ".join(text.split()).replace("``", "")
        for names, text in _ENTRY.findall(f"{section}\n")
        for name in names.split(",")
    }
