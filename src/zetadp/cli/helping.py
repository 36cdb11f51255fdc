"""Layout of the commands' help."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from zetadp.validation import UserError

WIDTH = 80


def paragraphs(*texts: str) -> str:
    """Return paragraphs for a description that argparse does not change."""
    return "\n\n".join(textwrap.fill(" ".join(text.split()), WIDTH) for text in texts)


def explain(parser: argparse.ArgumentParser, *texts: str, examples: tuple[str, ...]) -> None:
    """Give a command its description, and examples below its options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = paragraphs(*texts)
    parser.epilog = "examples:\n" + "\n".join(f"  zetadp {example}" for example in examples)


def with_federation(run: Callable[[argparse.Namespace], None]) -> Callable[[argparse.Namespace], None]:
    """Say what is missing where Flower is not installed."""

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
    """Turn errors of writing into one message."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"Cannot write {error.filename}: {error.strerror}. Name a folder that exists and that you may write."
        ) from error


def tell(line: str) -> None:
    """Print a progress line immediately, so that it does not reach a service manager's log late."""
    print(line, flush=True)
