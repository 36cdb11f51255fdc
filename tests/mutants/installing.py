"""What a check is, what a mutant is, and how a mutant takes the place of the function that it mutates.

Checks of statistics have exact bounds (chi-square, Student, binomial), two-sided, each made for one comparison: who
makes several divides the false-alarm probability among them first (Bonferroni), so that dependence between them does
not matter.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce, wraps
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

FALSE_ALARM = 1e-5
"""Probability that one statistical check fails on correct code; all together may reach 1e-3."""


@dataclass(frozen=True)
class Check:
    """A property of the shipped code; running it raises AssertionError where the property does not hold.

    Attributes
    ----------
    run
        Takes an empty folder.
    false_alarm
        Probability to fail on correct code.
    """

    run: Callable[[Path], None]
    false_alarm: float


@dataclass(frozen=True)
class Mutant:
    """A wrong variant of one shipped function.

    Attributes
    ----------
    target
        The function replaced, as ``module:attribute`` or ``module:Class.attribute``.
    killer
        Name of the check that kills it.
    make
        Returns the wrong variant, given the shipped one.
    """

    target: str
    killer: str
    make: Callable[[Any], Any]


CHECKS: dict[str, Check] = {}
"""All checks by the names of their functions."""
MUTANTS: dict[str, Mutant] = {}
"""All mutants by what is wrong."""


def statistical(body):
    """Register a check that fails by chance, with probability at most `FALSE_ALARM`."""
    CHECKS[body.__name__] = Check(body, FALSE_ALARM)
    return body


def certain(body):
    """Register a check that never fails on correct code."""
    CHECKS[body.__name__] = Check(body, 0.0)
    return body


def replacement(target, killer):
    """Register what makes a wrong variant from a shipped function or class, and the check that kills it."""

    def register(make):
        MUTANTS[make.__name__] = Mutant(target, killer.__name__, make)
        return make

    return register


def mutant(target, killer):
    """Register a wrong variant of a function, which takes the shipped one before its arguments, and what kills it."""

    def register(wrong):
        @wraps(wrong)
        def make(original):
            return lambda *arguments, **named: wrong(original, *arguments, **named)

        replacement(target, killer)(make)
        return wrong

    return register


def mutants(target, killer, **wrong):
    """Register wrong variants of one function, by what is wrong, which one check kills (`mutant`)."""
    for name, variant in wrong.items():
        variant.__name__ = name
        mutant(target, killer)(variant)


@contextmanager
def installed(mutation: Mutant) -> Iterator[None]:
    """Put a mutant where the shipped code looks its function up, for the length of a block.

    A method has one such place, its class. A function of a module has one in every module that imported it by name,
    checks included. Where a target names a module that only imports the function, it is replaced in that module alone.
    """
    module_name, _, path = mutation.target.partition(":")
    module = importlib.import_module(module_name)
    *owners, leaf = path.split(".")
    owner: Any = reduce(getattr, owners, module)
    original = vars(owner)[leaf]
    wrong = mutation.make(original)
    importers = [owner]
    if not owners and original.__module__ == module_name:
        ours = [other for name, other in sys.modules.items() if name.split(".")[0] in ("zetadp", "papers", "mutants")]
        importers = [other for other in ours if getattr(other, leaf, None) is original]
    with pytest.MonkeyPatch.context() as patches:
        for importer in importers:
            patches.setattr(importer, leaf, wrong)
        yield


def variance_limits(count: int, alarm: float) -> tuple[float, float]:
    """Return the limits of the mean square of ``count`` standard normal numbers."""
    return float(stats.chi2.ppf(alarm / 2, count)) / count, float(stats.chi2.isf(alarm / 2, count)) / count


def correlation_limit(count: int, alarm: float) -> float:
    """Return the limit of the cosine between two independent standard normal vectors of ``count`` coordinates.

    The cosine r of a normal vector to any other direction has ``r sqrt((n-1)/(1-r^2))`` of Student's law with n - 1
    degrees of freedom.
    """
    t = float(stats.t.isf(alarm / 2, count - 1))
    return t / math.sqrt(count - 1 + t * t)


def count_is_plausible(successes: int, trials: int, probability: float, alarm: float) -> bool:
    """Tell whether neither tail of the binomial law beyond what was counted is rarer than half the alarm."""
    at_most = float(stats.binom.cdf(successes, trials, probability))
    at_least = float(stats.binom.sf(successes - 1, trials, probability))
    return min(at_most, at_least) > alarm / 2
