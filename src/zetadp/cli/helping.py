"""How the help of a command is laid out."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

from zetadp.validation import UserError

WIDTH = 80


def paragraphs(*texts: str) -> str:
    """Return paragraphs for a description that argparse leaves as it is."""
    return "\n\n".join(textwrap.fill(" ".join(text.split()), WIDTH) for text in texts)


def explain(parser: argparse.ArgumentParser, *texts: str, examples: tuple[str, ...]) -> None:
    """Give a command its description, and examples below its options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = paragraphs(*texts)
    parser.epilog = "examples:\n" + "\n".join(f"  zetadp {example}" for example in examples)


@contextmanager
def written() -> Iterator[None]:
    """Turn what keeps a command from writing into a message."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"Cannot write {error.filename}: {error.strerror}. Name a folder that exists and that you may write."
        ) from error


def tell(line: str) -> None:
    """Print a line of what happens, at once: a service manager's log must not wait for it."""
    print(line, flush=True)
