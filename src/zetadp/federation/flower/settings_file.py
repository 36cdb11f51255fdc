"""Reading of a site's settings: every key must be one that the settings have, with a value of its kind."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import yaml

from zetadp.base.validation import UserError

Settings = TypeVar("Settings")

_WORDS = {
    str: "text",
    Path: "a path",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict: "keys with values",
}


def read_settings(path: Path, what: str, kind: type[Settings], build: Callable[[dict[str, Any]], Settings]) -> Settings:
    """Return the settings that ``build`` makes of a file's keys and values.

    Parameters
    ----------
    path
        A YAML or JSON file.
    what
        Whose settings it should hold, for the message.
    kind
        The dataclass of the settings, whose fields are the keys.
    build
        Makes the settings of keys and values that fit; a wrong value is an exception.

    Raises
    ------
    UserError
        If the file cannot be read or has a key or value that it should not have, or lacks a key.
    """
    try:
        text = path.read_text(encoding="utf-8")
        # For YAML 1e-05, as JSON writes it, is a text.
        content = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
        if isinstance(content, dict):
            _check_keys(kind, content)
            return build(content)
        found = f"found {'nothing' if content is None else type(content).__name__}, not keys with values"
    except OSError as error:
        found = error.strerror or str(error)
    except (yaml.YAMLError, ValueError) as error:
        found = str(error).removesuffix(".")
    raise UserError(f"Expected {path} to hold the settings of {what}: {found}.")


def _check_keys(kind: type, content: Mapping[Any, Any], above: str = "") -> None:
    known = {each.name: each for each in fields(kind)}
    for key in content:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, 1) or sorted(known)
            raise ValueError(f"the key {above}{key} is unknown. Expected {' or '.join(near)}")
    hints = get_type_hints(kind)
    for name, each in known.items():
        if name in content:
            _check_value(hints[name], content[name], f"{above}{name}")
        elif each.default is MISSING and each.default_factory is MISSING:
            raise ValueError(f"the key {above}{name} is missing")


def _check_value(hint: Any, value: object, name: str) -> None:  # noqa: ANN401  (a type, or several)
    several = get_args(hint) if NoneType in get_args(hint) else (hint,)
    if value is None and NoneType in several:
        return
    kind: Any
    (kind,) = (each for each in several if each is not NoneType)
    inner: type = dict if is_dataclass(kind) else get_origin(kind) or kind
    accepted: Any = {Path: str, float: (int, float)}.get(inner, inner)
    # Python takes true and false for numbers, and every text for true.
    if not isinstance(value, accepted) or isinstance(value, bool) != (inner is bool):
        raise ValueError(f"{name} must be {_WORDS[inner]}, found {value!r}")
    if not isinstance(value, dict):
        return
    if inner is not kind and get_origin(kind) is None:
        _check_keys(kind, value, f"{name}.")
    else:
        for key, each in value.items():
            _check_value(get_args(kind)[1], each, f"{name}.{key}")
