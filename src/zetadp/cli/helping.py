"""What all commands share: the layout of their help, and errors as one message."""

from __future__ import annotations

import argparse
import logging
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from zetadp.base.validation import UserError

WIDTH = 80


def paragraphs(*texts: str) -> str:
    """Return paragraphs of lines of `WIDTH` characters, in which names of files stay whole."""
    return "\n\n".join(textwrap.fill(" ".join(text.split()), WIDTH, break_on_hyphens=False) for text in texts)


def explain(parser: argparse.ArgumentParser, *texts: str, examples: tuple[str, ...]) -> None:
    """Give a command its description, and examples below its options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = paragraphs(*texts)
    parser.epilog = "examples:\n" + "\n".join(f"  zetadp {example}" for example in examples)


def federation_command(
    parts: Any,  # noqa: ANN401  (argparse does not name the type)
    name: str,
    help_: str,
    run: Callable[[argparse.Namespace], None],
) -> argparse.ArgumentParser:
    """Add a command to ``zetadp federation``, and return its parser."""
    parser: argparse.ArgumentParser = parts.add_parser(name, help=help_, description=f"{help_[0].upper()}{help_[1:]}.")
    parser.set_defaults(run=with_federation(run))
    return parser


def with_federation(run: Callable[[argparse.Namespace], None]) -> Callable[[argparse.Namespace], None]:
    """Wrap a command that needs Flower: if it is not installed, raise a `UserError` that names what is missing."""

    def wrapped(given: argparse.Namespace) -> None:
        try:
            run(given)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] not in ("flwr", "cryptography"):
                raise
            raise UserError(
                f"A federation needs Flower, and {error.name} is missing. Run: pip install zetadp[federation]"
            ) from error

    return wrapped


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
