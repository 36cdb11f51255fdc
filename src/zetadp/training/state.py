"""The state that is reachable from a network or a loss: everything that it could remember."""

from __future__ import annotations

import dis
import hashlib
import re
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from zetadp.base.usercode import is_installed

LIBRARIES = {*sys.stdlib_module_names, "torch", "numpy", "zetadp"}
"""Packages whose classes and functions are not searched for state."""
SIMPLE = (bool, int, float, complex, str, bytes, type(None))
WAYS = (nn.Module, FunctionType, MethodType, ModuleType, partial, type, Mapping, list, tuple, deque, AbstractSet)
"""Kinds of values that only lead to others."""
ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
"""An address in memory, which differs in every copy."""


def reachable_state(subject: object) -> dict[str, str]:
    """Return the state that is reachable from a network, a loss or a tuple of both: texts by their paths.

    Tensors and arrays are hashes of their bits. The search goes through attributes, containers, the variables of
    enclosing functions, attributes of the user's classes, and global variables that code of the user names; not through
    PyTorch's own classes or installed packages' global variables.
    """
    state: dict[str, str] = {}
    seen: dict[int, object] = {}  # which also keeps them alive, so that no number is used twice
    waiting: list[tuple[str, Any]] = [
        ("", part) for part in reversed(subject if isinstance(subject, tuple) else (subject,))
    ]
    while waiting:
        path, value = waiting.pop()
        leaf = _leaf(value)
        if leaf is not None:
            state[path] = f"{state[path]} {leaf}" if path in state else leaf
        if (leaf is None or isinstance(value, Tensor)) and id(value) not in seen:
            seen[id(value)] = value
            waiting += reversed([*_reached(path, value)])
    return state


def _leaf(value: Any) -> str | None:  # noqa: ANN401  (anything that a network refers to)
    """Return the text that stands for a value; None for what is only a way to others."""
    if isinstance(value, SIMPLE):
        return repr(value)
    if isinstance(value, Tensor):
        shape = f"{value.dtype} {tuple(value.shape)}"
        if value.is_meta or nn.parameter.is_lazy(value):
            return shape
        flat = (value.to_dense() if value.layout != torch.strided else value).detach().cpu().resolve_conj()
        flat = flat.resolve_neg().contiguous().flatten().view(torch.uint8)
        return f"{shape} {hashlib.sha256(flat.numpy().data).hexdigest()}"
    if isinstance(value, np.ndarray) and value.dtype != object:
        return f"{value.dtype} {value.shape} {hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()}"
    if isinstance(value, list | tuple | AbstractSet) and all(isinstance(one, SIMPLE) for one in value):
        return repr(sorted(map(repr, value)) if isinstance(value, AbstractSet) else [*value])
    if isinstance(value, WAYS) or _is_users(type(value)):
        return None
    try:
        return ADDRESS.sub("", repr(value))
    except Exception:  # noqa: BLE001  (whatever an unknown class raises)
        return type(value).__qualname__


def _reached(path: str, value: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401  (anything)
    """Yield what a value refers to, with its path."""
    if isinstance(value, FunctionType):
        yield from _variables(path, value)
    elif isinstance(value, MethodType):
        yield from ((path, value.__self__), (path, value.__func__))
    elif isinstance(value, partial):
        yield from ((path, value.func), (path, value.args), (path, value.keywords))
    elif isinstance(value, type):
        yield from _of_class(value)
    elif isinstance(value, Mapping):
        yield from ((f"{path}[{ADDRESS.sub('', repr(key))}]", one) for key, one in value.items())
    elif isinstance(value, list | tuple | deque):
        yield from ((f"{path}[{number}]", one) for number, one in enumerate(value))
    elif isinstance(value, AbstractSet):
        yield from ((f"{path}{{}}", one) for one in sorted(value, key=lambda one: str(_leaf(one))))
    if isinstance(value, nn.Module | Tensor) or _is_users(type(value)):
        for name, one in _attributes(value):
            yield f"{path}.{name}", one
        yield "", type(value)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401  (anything)
    """Yield the attributes of an instance; those of a module with its weights, buffers and layers by their names."""
    for name, one in getattr(value, "__dict__", {}).items():
        if isinstance(value, nn.Module) and name in ("_parameters", "_buffers", "_modules") and isinstance(one, dict):
            yield from one.items()
        else:
            yield name, one
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            with suppress(AttributeError):
                yield name, getattr(value, name)


def _of_class(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield attributes and functions of a user's class and of those that it inherits from."""
    for one in kind.__mro__:
        if _is_users(one):
            for name, value in vars(one).items():
                if isinstance(value, staticmethod | classmethod):
                    yield f".{one.__name__}.{name}", value.__func__
                elif isinstance(value, property):
                    yield from ((f".{one.__name__}.{name}", part) for part in (value.fget, value.fset) if part)
                elif isinstance(value, FunctionType) or not name.startswith(("__", "_abc_")):
                    yield f".{one.__name__}.{name}", value


def _variables(path: str, function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the variables outside a function that its code uses, and its own attributes."""
    if function.__module__ is not None and function.__module__.partition(".")[0] in LIBRARIES:
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # not set yet
            yield f"{path}.{name}", cell.cell_contents
    for part in (function.__defaults__, function.__kwdefaults__, vars(function)):
        if part:
            yield f"{path}.{function.__name__}", part
    if _is_installed(sys.modules.get(function.__module__)):
        return
    for name in _global_names(function.__code__):
        value = function.__globals__.get(name)
        if not isinstance(value, ModuleType):
            yield f".{name}", value
        elif value.__name__.partition(".")[0] not in LIBRARIES and not _is_installed(value):
            for attribute in function.__code__.co_names:
                if attribute in vars(value):
                    yield f".{name}.{attribute}", vars(value)[attribute]


def _global_names(code: CodeType) -> Iterator[str]:
    """Yield the names of the global variables that code reads or sets, with those of functions within it."""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "STORE_GLOBAL", "LOAD_NAME"):
            yield step.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def _is_installed(module: object) -> bool:
    """Return whether a module is of an installed package."""
    return is_installed(getattr(module, "__file__", None) or "")


def _is_users(kind: type) -> bool:
    """Return whether a class is neither of an installed package nor of `LIBRARIES`; but tasks of zetadp hold losses."""
    package = str(kind.__module__).partition(".")[0]
    return package == "zetadp" or not (package in LIBRARIES or _is_installed(sys.modules.get(kind.__module__)))
