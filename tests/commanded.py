"""Run commands as a user does, and return their exit codes, output and messages."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator
from contextlib import contextmanager

from zetadp.cli import main
from zetadp.cli.arguments import LOGGED


@contextmanager
def logs_restored() -> Iterator[None]:
    """Undo at the end what a server or a node changes about logging."""
    loggers = [logging.getLogger(name) for name in ("", *LOGGED)]
    before = [(logger, logger.handlers[:], logger.propagate, logger.level) for logger in loggers]
    try:
        yield
    finally:
        for logger, handlers, propagate, level in before:
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)


def ended(capsys, *arguments: object) -> tuple[int, str, str]:
    """Run a command; return its exit code, output and error output. A single text is the whole command line."""
    (line, *others) = arguments
    words = shlex.split(line) if isinstance(line, str) and not others else map(str, arguments)
    capsys.readouterr()
    code = main([*words])
    return code, *capsys.readouterr()


def said(capsys, *arguments: object) -> str:
    """Run a command that must succeed without a warning; return its output."""
    code, out, err = ended(capsys, *arguments)
    assert (code, err) == (0, "")
    return out


def mistake(capsys, *arguments: object, code: int = 1) -> str:
    """Run a command that must end in one message and with this exit code; return the message."""
    exit_code, out, err = ended(capsys, *arguments)
    assert (exit_code, out) == (code, "")
    assert err.startswith("zetadp: ")
    assert "Traceback" not in err
    return err
