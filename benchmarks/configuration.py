"""Write the reference of the configuration: ``python benchmarks/configuration.py > docs/configuration.md``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from zetadp.config.checked import SCHEMA

HEAD = """\
# Configuration

Every key of `config.yaml` and of the scenarios that overlay it. Written from `src/zetadp/data/config.schema.yaml` by
`python benchmarks/configuration.py`; an unknown key is an error that names the nearest one of these.

| key | meaning | type | default |
|:--|:--|:--|:--|
"""


def describe(schema: Mapping[str, Any]) -> str:
    """Return the Markdown reference of a configuration schema: one row per key."""
    return HEAD + "".join(f"| {' | '.join(row)} |\n" for row in _rows("", schema, schema))


def _rows(prefix: str, schema: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    for key, part in schema.get("properties", {}).items():
        yield from _row(f"{prefix}{key}", part, root)
    rest = schema.get("additionalProperties")
    if isinstance(rest, dict):
        yield from _rows(f"{prefix}NAME.", rest, root)
    if "items" in schema:
        yield from _rows(f"{prefix}[].", schema["items"], root)


def _row(name: str, part: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    inner = root["$defs"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
    kinds = inner.get("type", "one of " + ", ".join(map(str, inner.get("enum", []))))
    kind = " or ".join(kinds) if isinstance(kinds, list) else str(kinds)
    nested = kind in ("object", "array") and ("properties" in inner or "additionalProperties" in inner)
    default = "" if nested or "default" not in part else f"`{json.dumps(part['default'])}`"
    yield f"`{name}`", str(part.get("description", "")), kind, default
    yield from _rows(f"{name}.", inner, root) if kind == "object" else _rows(name, inner, root)


if __name__ == "__main__":
    sys.stdout.write(describe(yaml.safe_load(SCHEMA.read_text(encoding="utf-8"))))
