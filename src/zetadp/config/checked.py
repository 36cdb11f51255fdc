"""Read and check the configuration, and fill in defaults. `zetadp.config.configured` reads its content."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from zetadp.base.epsilon import epsilon_label
from zetadp.base.validation import UserError, did_you_mean
from zetadp.config.configured import has_real_patients
from zetadp.config.contradictions import contradictions

SCHEMA = Path(__file__).parents[1] / "data/config.schema.yaml"
_TRUTHS = {"true": True, "false": False}


def load_config(config: Mapping[str, Any], schema_path: Path) -> dict[str, Any]:
    """Check a configuration against its schema and return it with defaults filled in.

    Raises
    ------
    UserError
        One message that lists every fault: the key, what was expected, what was found, and the nearest valid key.
    """
    from jsonschema import Draft202012Validator

    schema = yaml.safe_load(schema_path.read_text(encoding="utf-8"))
    filled: dict[str, Any] = _with_defaults(deepcopy(dict(config)), schema, schema)
    validator = Draft202012Validator(schema)
    faults = [message for error in validator.iter_errors(filled) for message in _messages(error)]
    faults += _not_finite({key: value for key, value in filled.items() if key != "runs"}, "")
    if not faults:
        faults = list(contradictions(filled))
    if faults:
        lines = "\n".join(f"  {number}. {fault}" for number, fault in enumerate(faults, start=1))
        raise UserError(f"The configuration has {len(faults)} fault(s):\n{lines}")
    filled["cohort"]["real_patients"] = has_real_patients(filled)
    for block in filled["runs"]:
        block["epsilons"] = [epsilon_label(value) for value in block["epsilons"]]
    return filled


def read_overlaid(paths: Iterable[Path]) -> dict[str, Any]:
    """Return the content of configuration files, each overlaid on those before it, without checking keys or values."""
    content: dict[str, Any] = {}
    for path in paths:
        try:
            section = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise UserError(f"Cannot read the configuration {path}: {error}.") from error
        if not isinstance(section, dict):
            raise UserError(f"Expected sections in the configuration {path}, found {type(section).__name__}.")
        overlay(content, section)
    return content


def overlay(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    """Overlay one configuration on another, in place and section by section, as Snakemake does."""
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(key), dict):
            overlay(below[key], value)
        else:
            below[key] = value


def _with_defaults(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:  # noqa: ANN401  (JSON is untyped)
    """Fill in the schema's defaults, recursively."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    if isinstance(value, dict):
        for key, part in schema.get("properties", {}).items():
            if key not in value and "default" in part:
                value[key] = deepcopy(part["default"])
        rest = schema.get("additionalProperties")
        for key, item in value.items():
            part = schema.get("properties", {}).get(key, rest)
            if isinstance(part, dict):
                value[key] = _with_defaults(item, part, root)
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [_with_defaults(item, schema["items"], root) for item in value]
    if isinstance(value, float) and value.is_integer() and "integer" in schema.get("type", []):
        return int(value)  # spreadsheets and other programs write 4.0
    if isinstance(value, str):
        kinds = schema.get("type", [])
        return _from_text(value, [kinds] if isinstance(kinds, str) else kinds)
    return value


def _from_text(text: str, kinds: list[str]) -> float | str | bool | None:
    """Return the number or truth value that a text stands for, if the schema wants one and not a text.

    Snakemake leaves nested values on the command line (``--config 'partition={nodes: 3}'``) as text, and YAML reads
    ``2e-3``, which has no decimal point, as text.
    """
    if "string" in kinds:
        return text
    if "boolean" in kinds and text in _TRUTHS:
        return _TRUTHS[text]
    for parse in (int, float) if {"integer", "number"} & set(kinds) else ():
        try:
            return parse(text)
        except ValueError:
            continue
    return None if text == "null" and "null" in kinds else text


def _not_finite(value: Any, where: str) -> Iterator[str]:  # noqa: ANN401  (JSON is untyped)
    """Yield every number that is infinite or NaN, which no comparison in a schema catches."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _not_finite(item, f"{where}.{key}" if where else str(key))
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{where}: expected a finite number; found {value}."


def _messages(error: Any) -> Iterator[str]:  # noqa: ANN401  (jsonschema has no types)
    """Yield plain explanations of a validation error."""
    where = ".".join(str(part) for part in error.absolute_path) or "the top level"
    if error.validator == "additionalProperties":
        known = list(error.schema.get("properties", {}))
        for key in sorted(set(error.instance) - set(known)):
            hint = did_you_mean(key, known) or f" Known keys: {', '.join(known)}."
            yield f"Unknown key {key!r} at {where}.{hint}"
    elif error.validator == "enum":
        hint = did_you_mean(str(error.instance), map(str, error.validator_value))
        choices = ", ".join(map(str, error.validator_value))
        yield f"{where}: expected one of {choices}; found {error.instance!r}.{hint}"
    elif error.validator == "type":
        kinds = error.validator_value if isinstance(error.validator_value, list) else [error.validator_value]
        yield f"{where}: expected {' or '.join(kinds)}; found {error.instance!r}."
    else:
        yield f"{where}: {error.message}."


def experiment_name(config_path: Path, scenario_path: Path | None) -> str:
    """Return the name of the experiment that a configuration, overlaid by a scenario, describes."""
    content = read_overlaid([path for path in (config_path, scenario_path) if path is not None])
    if "name" not in content:
        raise UserError(f"Expected a name in {config_path}, found none.")
    return str(content["name"])
