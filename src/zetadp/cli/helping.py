"""What all commands share: how one is declared, the layout of their help, numbers, and errors as one message."""

from __future__ import annotations

import argparse
import logging
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from inspect import cleandoc
from typing import Any, TypeAlias

from zetadp.base.validation import UserError

WIDTH = 80


def paragraphs(*texts: str) -> str:
    """Return paragraphs of lines of `WIDTH` characters, in which names of files stay whole."""
    return "\n\n".join(textwrap.fill(" ".join(text.split()), WIDTH, break_on_hyphens=False) for text in texts)


Option: TypeAlias = tuple[tuple[str, ...], dict[str, Any]]


@dataclass(frozen=True)
class Command:
    """A command of the command line.

    Attributes
    ----------
    name
        Its name; that of a command of ``zetadp federation`` begins with ``federation``.
    summary
        One line for the list of commands.
    description, below
        Texts of its help above and below the options.
    options
        Its arguments and options.
    run
        What it does with them.
    """

    name: str
    summary: str
    description: str
    below: str
    options: Sequence[Option]
    run: Callable[[argparse.Namespace], None]

    def add_to(self, commands: Any) -> None:  # noqa: ANN401  (argparse does not name the type)
        """Add the command to a parser's sub-commands."""
        parser = commands.add_parser(
            self.name.rpartition(" ")[2],
            help=self.summary,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            description=self.description,
            epilog=self.below,
        )
        for names, how in self.options:
            parser.add_argument(*names, **how)
        parser.set_defaults(run=self.run)


def option(*names: str, **how: Any) -> Option:  # noqa: ANN401  (what argparse takes)
    """Return an argument or option of a command; the parameters are those of ``add_argument``."""
    return names, how


def command(
    name: str, *, examples: Sequence[str] = (), below: str = "", options: Sequence[Option]
) -> Callable[[Callable[[argparse.Namespace], None]], Command]:
    """Make a function the command of a name, with examples below its options.

    Its docstring is the help: the first line stands in the list of commands, and the rest above the options.
    """
    below = below or "\n".join(["examples:", *(f"  zetadp {example}" for example in examples)])

    def declared(run: Callable[[argparse.Namespace], None]) -> Command:
        summary, *texts = cleandoc(run.__doc__ or "").split("\n\n")
        return Command(name, f"{summary[0].lower()}{summary[1:-1]}", paragraphs(*texts), below, options, run)

    return declared


@contextmanager
def written() -> Iterator[None]:
    """Turn an ``OSError`` of writing into a `UserError` that names the file."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"Cannot write {error.filename}: {error.strerror}. Name a folder that exists and that you may write."
        ) from error


def log_to_terminal(form: str) -> None:
    """Print what this package logs, in this form; of what others log, warnings alone are shown."""
    printed = logging.StreamHandler(sys.stdout)
    printed.setFormatter(logging.Formatter(form))
    logging.getLogger("zetadp").addHandler(printed)
    logging.getLogger("zetadp").setLevel(logging.INFO)
    logging.getLogger("zetadp").propagate = False
    logging.getLogger().setLevel(logging.WARNING)
    import flwr.common.logger  # noqa: F401  (it sets its own level)

    logging.getLogger("flwr").setLevel(logging.WARNING)


def tell(line: str) -> None:
    """Print a progress line immediately, so that it does not reach a service manager's log late."""
    print(line, flush=True)


# Each function reads one kind of number, for ``type`` of argparse, or refuses it.


def number_that(expected: str, fits: Callable[[float], bool], why: str = "") -> Callable[[str], float]:
    """Return a function that reads a number and refuses one out of range.

    Parameters
    ----------
    expected
        The numbers that are allowed, in words.
    fits
        Whether a number is allowed.
    why
        End of the error message.
    """

    def read(text: str) -> float:
        value = _number(text)
        if not fits(value):
            raise argparse.ArgumentTypeError(f"expected {expected}, found {text!r}{why}")
        return value

    return read


positive_number = number_that("a number above zero", lambda value: value > 0)
probability = number_that("a probability above zero and at most 1", lambda value: 0 < value <= 1)
share = number_that("a share from 0 to 1", lambda value: 0 <= value <= 1)


def delta(text: str) -> float:
    """Read a delta: a positive number below 1, and no smaller than the accountants can state."""
    from zetadp.base.epsilon import SMALLEST_DELTA

    value = positive_number(text)
    if not SMALLEST_DELTA <= value < 1:
        raise argparse.ArgumentTypeError(f"expected a delta of at least {SMALLEST_DELTA:g} and below 1, found {text!r}")
    return value


def count(text: str) -> int:
    """Read a whole number above zero."""
    value = positive_number(text)
    if value != int(value):
        raise argparse.ArgumentTypeError(f"expected a whole number, found {text!r}")
    return int(value)


def _number(text: str) -> float:
    try:
        return float(Fraction(text.replace(" ", "")))
    except (ValueError, ZeroDivisionError, OverflowError):
        raise argparse.ArgumentTypeError(f"expected a number such as 0.5, 1e-3 or 24/44, found {text!r}") from None
