"""Find what other installed packages bring, by the names of their entry points: tasks and laws of noise.

Every site finds the same object by the same name. Nothing is imported before it is needed, and nothing from a path that
a plan, a ledger or a configuration names.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from zetadp.base.usercode import failure_of
from zetadp.base.validation import UserError, did_you_mean

PAPERS = "zetadp-papers"
"""Name of the package ``papers`` of the repository, which ``pip install zetadp`` does not bring."""


class PackageError(UserError):
    """A package that a plan, a ledger or a configuration needs is not installed, or is not what it should be."""


def entry_point(group: str, name: str, what: str, remedy: str, shipped: Iterable[EntryPoint] = ()) -> EntryPoint:
    """Return the only entry point of a name, without importing the object.

    Parameters
    ----------
    group, name
        Group and name of the entry point.
    what
        Word for the object in messages, such as task.
    remedy
        Sentence on what to give or install where there is no such entry point.
    shipped
        Entry points of the library itself, which are found without an installation too.

    Raises
    ------
    PackageError
        If there is none, or if packages disagree about it.
    """
    points: list[EntryPoint] = [*shipped, *entry_points(group=group)]
    by_value = {point.value: point for point in points if point.name == name}
    if len(by_value) > 1:
        raise PackageError(
            f"Expected one installed package with a {what} {name}, found {' and '.join(sorted(by_value))}. Uninstall "
            "all but one of these packages."
        )
    if by_value:
        return next(iter(by_value.values()))
    hint = did_you_mean(name, {point.name for point in points})
    raise PackageError(
        f"Expected the name of an installed {what}, found {name!r}.{hint} {remedy} What the papers bring is in "
        f"{PAPERS}: call `make install` in a checkout of the repository of zetadp, or put its folder on PYTHONPATH."
    )


def load(point: EntryPoint, what: str) -> Any:  # noqa: ANN401  (any object)
    """Return the object of an entry point; raise `PackageError` if it cannot be imported."""
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise PackageError(
            f"The {what} {point.name} cannot be imported: {error}. Install {package_of(point)} again, with all that it "
            "requires."
        ) from error
    except Exception as error:
        raise PackageError(
            f"The {what} {point.name} cannot be imported: {failure_of(error)} Correct {package_of(point)}, or ask its "
            "author."
        ) from error


def package_of(point: EntryPoint) -> str:
    """Return the name of the package that has an entry point."""
    return point.dist.name if point.dist else point.module
