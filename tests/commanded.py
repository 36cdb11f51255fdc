"""Commands as a user runs them: how they end, and what they print."""

from __future__ import annotations

import shlex

from zetadp.cli import main


def ended(capsys, *arguments: object) -> tuple[int, str, str]:
    """Run a command; return its exit code and what it printed. A single text is the whole command line."""
    (line, *others) = arguments
    words = shlex.split(line) if isinstance(line, str) and not others else map(str, arguments)
    capsys.readouterr()
    code = main([*words])
    return code, *capsys.readouterr()


def said(capsys, *arguments: object) -> str:
    """Run a command that succeeds and warns of nothing; return what it printed."""
    code, out, err = ended(capsys, *arguments)
    assert (code, err) == (0, "")
    return out


def mistake(capsys, *arguments: object, code: int = 1) -> str:
    """Run a command that must end in one message and with this exit code; return the message."""
    found, out, err = ended(capsys, *arguments)
    assert (found, out) == (code, "")
    assert err.startswith("zetadp: ")
    assert "Traceback" not in err
    return err
