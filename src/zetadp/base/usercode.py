"""Errors of code that others wrote: a user's network, loss, metric or dataset, and tasks and laws of other packages.

Such code may raise any exception. It always becomes one `UserCodeError`, whose message says what failed and names the
line that raised it. The exception is its cause, so Python prints the whole traceback. A lack of memory and an
interruption by the user are no mistakes of the code, and pass unchanged.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

from zetadp.base.validation import UserError, first_sentence

LIBRARY = __name__.partition(".")[0]
KNOWN = frozenset({LIBRARY, "h5py", "numpy", "pandas", "pydantic", "torch", *sys.stdlib_module_names})
"""Packages whose lines do not show a user where an error of the user's code is."""
GROUPS = f"{LIBRARY}."
"""Beginning of the groups of entry points by which other packages bring tasks and laws of noise."""


class UserCodeError(UserError):
    """Code that others wrote has failed, with the exception that it raised as the cause."""


@contextmanager
def user_code(failed: str, hint: str = "") -> Iterator[None]:
    """Turn any exception of a block that calls a user's code into a `UserCodeError`.

    Parameters
    ----------
    failed
        Beginning of the message: the argument, what was expected, and that an error was found.
    hint
        Its end: what to do.
    """
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":  # of PyTorch, which takes seconds to import
            raise
        raise UserCodeError(f"{failed}{failure_of(error)}{hint}") from error


@contextmanager
def during(step: str) -> Iterator[None]:
    """Add to a `UserCodeError` at which step of a run it happened, and that the run can continue."""
    try:
        yield
    except UserCodeError as error:
        error.args = (f"{error} It happened in {step}. Correct the code and run it again: earlier rounds are stored.",)
        raise


def failure_of(error: Exception) -> str:
    """Return kind and first sentence of an exception, with the line of the user's code that raised it, if any did."""
    return _located(error, [frame for frame in _frames(error) if frame.package not in KNOWN])


@contextmanager
def package_code() -> Iterator[None]:
    """Turn an exception of a package that brings tasks or laws of noise into a `UserCodeError`, wherever it is called.

    Exceptions that passed no line of such a package pass unchanged.
    """
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        if (message := _failure_of_package(error)) is None:
            raise
        raise UserCodeError(message) from error


def _failure_of_package(error: Exception) -> str | None:
    """Return the message on an exception that passed a line of a package with a task or a law; None for any other."""
    groups = [group for group in entry_points().groups if group.startswith(GROUPS)]
    packages = {point.module.partition(".")[0] for group in groups for point in entry_points(group=group)}
    frames = [frame for frame in _frames(error) if frame.package in packages - {LIBRARY}]
    if not frames:
        return None
    return (
        f"Expected no error in the package {frames[-1].package}, found {_located(error, frames)} Correct the package, "
        "or ask its author."
    )


class _Frame(NamedTuple):
    """A line of a traceback, and the package that it is of."""

    package: str
    line: traceback.FrameSummary


def is_installed(file: str) -> bool:
    """Return whether a package manager put a file where it is; what a user is writing is elsewhere."""
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


def _frames(error: Exception) -> list[_Frame]:
    """Return the lines of a traceback, the one that raised the exception last."""
    steps = list(traceback.walk_tb(error.__traceback__))
    packages = [str(frame.f_globals.get("__name__", "")).partition(".")[0] for frame, _ in steps]
    return [*map(_Frame, packages, traceback.StackSummary.extract(steps))]


def _located(error: Exception, frames: Sequence[_Frame]) -> str:
    """Return kind and first sentence of an exception, with the last of some lines, if possible not of site-packages."""
    text = first_sentence(error)
    if not frames:
        return text
    line = next((frame for frame in reversed(frames) if not is_installed(frame.line.filename)), frames[-1]).line
    code = f": {line.line}" if line.line else ""
    return f"{text.removesuffix('.')} (line {line.lineno} of {line.filename}, in {line.name}{code})."
