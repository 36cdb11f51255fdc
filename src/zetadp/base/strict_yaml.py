"""YAML without keys and numbers that are easily misread.

In YAML, a key that is written twice silently replaces the first one, ``1:30`` is 90 and ``010`` is 8. A limit that
somebody reads in a file may therefore not be the limit that applies. `parse_yaml` reads all YAML that a user writes.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import yaml

from zetadp.base.validation import UserError, refuse, shown

MERGE = "tag:yaml.org,2002:merge"
"""Tag of the key ``<<``."""


def parse_yaml(text: str, where: str, *, merges: bool = True) -> Any:  # noqa: ANN401  (any content)
    """Return the content of YAML, and refuse keys and numbers that are easily misread.

    Parameters
    ----------
    text
        The YAML.
    where
        The file or option that holds it, for messages.
    merges
        Whether a section may take the keys of another section that has an anchor (``<<: *head``), except those that it
        sets itself. A configuration uses this on purpose. In the few settings of a site it would only hide a setting.

    Raises
    ------
    UserError
        If it is not YAML, or with every such key and number and its lines.
    """
    loader = _Loader(text, merges=merges)
    try:
        content = loader.get_single_data()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f" in line {mark.line + 1}"
        fault = shown(getattr(error, "problem", None) or str(error) or type(error).__name__).rstrip(".")
        raise UserError(f"Expected YAML in {where}{line}: {fault}.") from error
    finally:
        loader.dispose()
    refuse(loader.faults, f"in {where}")
    return content


def check_yaml(text: str, where: str) -> None:
    """Refuse such keys and numbers in JSON or YAML that another program reads, and leave other faults to it."""
    try:
        json.loads(text, object_pairs_hook=partial(distinct, where=where))
    except ValueError:
        loader = _Loader(text, merges=True)
        with suppress(yaml.YAMLError, ValueError, RecursionError):
            loader.get_single_data()
        loader.dispose()
        refuse(loader.faults, f"in {where}")


def distinct(pairs: Sequence[tuple[str, Any]], where: str) -> dict[str, Any]:
    """Return the keys and values of an object in JSON; refuse a key that is written twice."""
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({shown(name) for name in names if names.count(name) > 1})
        raise UserError(f"Expected each key once in {where}, found {', '.join(twice)} again. Keep one of each.")
    return content


class _Loader(yaml.SafeLoader):
    """A loader that notes faults while it reads."""

    def __init__(self, text: str, *, merges: bool) -> None:
        super().__init__(text)
        self.faults: list[str] = []
        self.merges = merges

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:  # noqa: ANN401  (as in PyYAML)
        """Return a mapping after checking its keys."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        self.faults += self._of_keys(node)
        return node

    def _of_keys(self, node: yaml.MappingNode) -> Iterator[str]:
        lines: dict[Hashable, int] = {}
        for key, value in node.value:
            line = _line(key)
            name = self._name(key)
            if name in lines:
                twice = f"in line {lines[name]} and in line {line}"
                position = f"twice in line {line}" if line == lines[name] else twice
                yield (
                    f"Expected '{shown(key.value)}' once, found it {position}. The second one would silently replace "
                    "the first. Keep one of them."
                )
            if name is not None:
                lines.setdefault(name, line)
            if key.tag == MERGE and not self.merges:
                yield f"Expected every setting in a line of its own, found '<<' in line {line}. Write its keys out."
            elif key.tag == MERGE and any(part.start_mark.index > key.start_mark.index for part in _parts(value)):
                yield (
                    f"Expected the name of another section after '<<' in line {line}, such as '<<: *head', found keys. "
                    "Write them without '<<'."
                )

    def _name(self, key: yaml.Node) -> Hashable:
        """Return a key as Python compares it, with 1 equal to 1.0; None for a key that is not a scalar."""
        if not isinstance(key, yaml.ScalarNode):
            return None
        if key.tag == MERGE:
            return MERGE
        try:
            value: Hashable = self.construct_object(key, deep=True)
        except (yaml.YAMLError, ValueError):
            value = key.value
        return value

    def number(self, node: yaml.ScalarNode, *, kind: str) -> Any:  # noqa: ANN401  (as in PyYAML)
        """Return a number; note a fault if its base is not ten."""
        value = getattr(yaml.SafeLoader, f"construct_yaml_{kind}")(self, node)
        digits = node.value.lstrip("+-")
        if ":" in digits or (kind == "int" and digits[0] == "0" and digits.isdecimal() and len(digits) > 1):
            self.faults.append(
                f"Expected a decimal number, found {node.value} in line {_line(node)}, which YAML reads as {value:g}. "
                "Write the number without ':' and leading zeros, or a text in quotes."
            )
        return value


for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", partial(_Loader.number, kind=_kind))


def _parts(value: yaml.Node) -> list[yaml.Node]:
    """Return the sections that are merged."""
    return list(value.value) if isinstance(value, yaml.SequenceNode) else [value]


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
