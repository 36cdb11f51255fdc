"""How the help of a command is laid out."""

from __future__ import annotations

import argparse
import textwrap

WIDTH = 80


def paragraphs(*texts: str) -> str:
    """Return paragraphs for a description that argparse leaves as it is."""
    return "\n\n".join(textwrap.fill(" ".join(text.split()), WIDTH) for text in texts)


def explain(parser: argparse.ArgumentParser, *texts: str, examples: tuple[str, ...]) -> None:
    """Give a command its description, and examples below its options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = paragraphs(*texts)
    parser.epilog = "examples:\n" + "\n".join(f"  zetadp {example}" for example in examples)
