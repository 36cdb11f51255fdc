"""Laws of noise by their names: those of the library, and those that installed packages bring.

A configuration, a plan and a ledger name a law. The library has the noisy sum and the masked sum. Any other law is an
entry point in the group ``zetadp.mechanisms``: its name is that of the law, and its object the class, a subclass of
`zetadp.accounting.kinds.Kind`. A release of a law that is not installed has no epsilon: what names it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from inspect import isabstract
from pathlib import Path
from typing import Any, cast

from zetadp.accounting.kinds import Kind, NoisySum
from zetadp.accounting.masked import MaskedSum
from zetadp.base.installed import PackageError, entry_point, load, package_of

GROUP = "zetadp.mechanisms"
"""Group of entry points in which installed packages name their laws of noise."""
LIBRARY: Mapping[str, type[Kind]] = {kind.law: kind for kind in (NoisySum, MaskedSum)}
"""The laws of the library by their names."""
SHIPPED = tuple(EntryPoint(law, f"{kind.__module__}:{kind.__name__}", GROUP) for law, kind in LIBRARY.items())
"""The same laws as entry points, so that messages can suggest them."""
OTHER_COSTS = ("dp_event", "of_person")
"""Methods of a kind that say what a release costs when attempts are chosen later, and what it costs several units."""
_RECORDED = re.compile(r'"law": *"(\w+)"')


def kind_of(law: str) -> type[Kind]:
    """Return the class of a law; raise `PackageError` if it is not installed, or is not what a law must be."""
    return LIBRARY.get(law) or installed_kind(law)


@cache
def installed_kind(law: str) -> type[Kind]:
    """Return the class of a law that an installed package brings; raise `PackageError` as `kind_of`."""
    point = _entry_point(law)
    kind: Any = load(point, "law of noise")
    attributes = vars(kind) if isinstance(kind, type) and issubclass(kind, Kind) else {}
    # What is inherited belongs to another law.
    required = (
        (attributes, "to be a subclass of zetadp.accounting.kinds.Kind"),
        (_is_value(attributes), "to be a frozen dataclass, equal to another only if all fields are"),
        (not isabstract(kind), "to define every abstract method of Kind"),
        (attributes.get("law") == law, f"to have the class attribute law = {law!r}"),
        ("hiding" in attributes, "to define hiding"),
        (attributes and _costs_agree(kind), f"to define {' and '.join(OTHER_COSTS)} together with losses"),
        (attributes.get("summary"), "to describe what a node sends in the class attribute summary"),
        (attributes.get("proof"), "to cite the proof of its privacy in the class attribute proof"),
        # The library draws Gaussian noise by itself, and credits one node with that of others.
        (not getattr(kind, "gaussian", True), "to have the class attribute gaussian = False"),
    )
    for holds, expected in required:
        if not holds:
            raise PackageError(
                f"Expected the law of noise {law} of {package_of(point)} {expected}. Nothing is released by it, and no "
                "epsilon is computed: ask the author of the package."
            )
    return cast("type[Kind]", kind)


def _is_value(attributes: Mapping[str, Any]) -> bool:
    """Return whether a class is a frozen dataclass that compares every field."""
    settings, items = attributes.get("__dataclass_params__"), attributes.get("__dataclass_fields__", {}).values()
    return settings is not None and settings.frozen and settings.eq and all(item.compare for item in items)


def _costs_agree(kind: type[Kind]) -> bool:
    """Return whether no class replaces the losses of the class from which it inherits what else a release costs."""
    classes = {name: next(cls for cls in kind.__mro__ if name in vars(cls)) for name in ("losses", *OTHER_COSTS)}
    return all(issubclass(classes[name], classes["losses"]) for name in OTHER_COSTS)


def installed_laws() -> set[str]:
    """Return the names of all laws that installed packages bring."""
    return {point.name for point in entry_points(group=GROUP)}


def recorded_laws(ledgers: Iterable[Path]) -> set[str]:
    """Return the names of all laws in the lines of ledgers, which are not checked. A file may be absent."""
    texts = (ledger.read_text(encoding="utf-8", errors="replace") for ledger in ledgers if ledger.is_file())
    return {law for text in texts for law in _RECORDED.findall(text)}


def modules_of(laws: Iterable[str]) -> list[str]:
    """Return the modules of the laws that are not the library's, without importing them; raise errors as `kind_of`."""
    return sorted({_entry_point(law).module for law in laws if law not in LIBRARY})


def _entry_point(law: str) -> EntryPoint:
    remedy = f"Install the package that has it as an entry point in {GROUP}."
    return entry_point(GROUP, law, "law of noise", remedy, SHIPPED)
