"""The foundation of all other packages: files, tensors, random streams, checks, devices."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's ``__getattr__`` and ``__dir__``, which import a module when one of its names is first used.

    PyTorch takes seconds to import, and few commands need it.

    Parameters
    ----------
    package
        The package's name.
    modules
        Module of each public name.
    """

    def find(name: str) -> Any:  # noqa: ANN401  (whatever the name stands for)
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(modules[name])
        return getattr(module, name, module)  # a package stands for itself

    return find, lambda: [*vars(sys.modules[package]), *modules]
