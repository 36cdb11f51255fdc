"""What a check is, what a mutant is, and how a mutant takes the place of the function that it mutates."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce, wraps
from typing import TYPE_CHECKING, Any, TypeAlias

from mutants.margins import FALSE_ALARM

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

    Body: TypeAlias = Callable[[Path], None]
Make: TypeAlias = Callable[[Any], Any]
Wrong: TypeAlias = Callable[..., Any]


@dataclass(frozen=True)
class Check:
    """A property of the shipped code; running it raises AssertionError where the property does not hold.

    Attributes
    ----------
    name
        Name of its function.
    run
        Takes an empty folder.
    false_alarm
        Probability to fail on correct code.
    """

    name: str
    run: Body
    false_alarm: float


@dataclass(frozen=True)
class Mutant:
    """A wrong variant of one shipped function.

    Attributes
    ----------
    name
        What is wrong.
    target
        The function replaced, as ``module:attribute`` or ``module:Class.attribute``.
    killer
        Name of the check that kills it.
    make
        Returns the wrong variant, given the shipped one.
    """

    name: str
    target: str
    killer: str
    make: Make


CHECKS: dict[str, Check] = {}
MUTANTS: dict[str, Mutant] = {}


def statistical(body: Body) -> Body:
    """Register a check that fails by chance, with probability at most `FALSE_ALARM`."""
    CHECKS[body.__name__] = Check(body.__name__, body, FALSE_ALARM)
    return body


def certain(body: Body) -> Body:
    """Register a check that never fails on correct code."""
    CHECKS[body.__name__] = Check(body.__name__, body, 0.0)
    return body


def replacement(target: str, killer: Body) -> Callable[[Make], Make]:
    """Register what makes a wrong variant from a shipped function or class, and the check that kills it."""

    def register(make: Make) -> Make:
        MUTANTS[make.__name__] = Mutant(make.__name__, target, killer.__name__, make)
        return make

    return register


def mutant(target: str, killer: Body) -> Callable[[Wrong], Wrong]:
    """Register a wrong variant of a function, which takes the shipped one before its arguments, and what kills it."""

    def register(wrong: Wrong) -> Wrong:
        @wraps(wrong)
        def make(original: Any) -> Any:
            return lambda *arguments, **named: wrong(original, *arguments, **named)

        replacement(target, killer)(make)
        return wrong

    return register


def install(mutation: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a mutant where the shipped code looks its function up, for one test.

    A method has one such place, its class. A function of a module has one in every module that imported it by name,
    checks included. Where a target names a module that only imports the function, it is replaced in that module alone.
    """
    module_name, _, path = mutation.target.partition(":")
    module = importlib.import_module(module_name)
    *owners, leaf = path.split(".")
    if owners:
        owner: Any = reduce(getattr, owners, module)
        monkeypatch.setattr(owner, leaf, mutation.make(vars(owner)[leaf]))
        return
    original = getattr(module, leaf)
    replacement = mutation.make(original)
    if original.__module__ != module_name:
        monkeypatch.setattr(module, leaf, replacement)
        return
    for name, importer in list(sys.modules.items()):
        if name.split(".")[0] in ("zetadp", "mutants") and getattr(importer, leaf, None) is original:
            monkeypatch.setattr(importer, leaf, replacement)


@contextmanager
def installed(mutation: Mutant) -> Iterator[None]:
    """Install a mutant for the length of a block."""
    import pytest

    with pytest.MonkeyPatch.context() as monkeypatch:
        install(mutation, monkeypatch)
        yield
