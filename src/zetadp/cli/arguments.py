"""Commands made from functions, common types of arguments, and output to the terminal.

A command is a function. Its parameters are the arguments, and those after ``*`` the options. The type of a parameter is
``Annotated`` with its help and, if the help shows another word than the name, with that word. Bounds of
`zetadp.base.validation` in a type are checked. A sequence takes all values up to the next option.
The docstring is the help: its first line is in the list of commands, and its examples follow the options.
"""

from __future__ import annotations

import argparse
import logging
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from inspect import Parameter, cleandoc, signature
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from zetadp.base.logs import JsonLines, PlainLines
from zetadp.base.validation import Within

WIDTH = 80
SERVER = "server"
"""The site of a federation's server in logs."""
LOGGED = ("zetadp", "flwr", "uvicorn")
"""Packages whose log lines a site prints."""
Probability = Annotated[float, Within(gt=0, le=1)]


@dataclass(frozen=True)
class Alone:
    """Value of an option that the user writes without a value."""

    value: str


class ListOfCommands(argparse.HelpFormatter):
    """Help with a list of commands, each in one line; argparse alone leaves too little room for their names."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog)
        self._action_max_length = 16


def add_command(commands: Any, run: Callable[..., None]) -> None:  # noqa: ANN401  (argparse does not name the type)
    """Add a function to a parser's sub-commands, as the command of its name."""
    text, _, examples = cleandoc(run.__doc__ or "").partition("\n\nExamples\n--------\n")
    paragraphs = text.split("\n\n")
    parser = commands.add_parser(
        run.__name__,
        help=f"{text[0].lower()}{paragraphs[0][1:-1]}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="\n\n".join(textwrap.fill(paragraph, WIDTH, break_on_hyphens=False) for paragraph in paragraphs),
        epilog=f"examples:\n{textwrap.indent(examples, '  ')}",
    )
    hints = get_type_hints(run, include_extras=True)
    for name, parameter in signature(run).parameters.items():
        options = _argument_options(hints[name])
        required = parameter.default is Parameter.empty
        if not required and options.get("action") != "store_true":
            if parameter.default != ():  # several values have a list of their own
                options["default"] = parameter.default
            default = "none" if parameter.default in {None, (), ""} else "%(default)s"
            options["help"] += "" if "(default: " in options["help"] else f" (default: {default})"
        if parameter.kind is Parameter.KEYWORD_ONLY:
            options["help"] += " (required)" if required else ""
            # The underscore at the end of a parameter avoids a name of Python or of another module.
            option = f"--{name.strip('_').replace('_', '-')}"
            if options.get("action") != "store_true":
                options.setdefault("metavar", name.strip("_").upper())
            parser.add_argument(option, dest=name, **options, **({"required": True} if required else {}))
        else:
            parser.add_argument(name, **options, **({} if required else {"nargs": "?"}))
    parser.set_defaults(run=run)


def _argument_options(hint: Any) -> dict[str, Any]:  # noqa: ANN401  (any type)
    """Return the arguments with which argparse reads values of a type, with their help."""
    notes: list[Any] = []
    options: dict[str, Any] = {}
    while inner := get_args(hint):
        notes += getattr(hint, "__metadata__", ())
        if get_origin(hint) is Sequence:
            options = {"nargs": "+", "action": "extend", "default": []}
        hint = inner[0]
    options["help"], *word = (note for note in notes if isinstance(note, str))
    if word:
        (options["metavar"],) = word
    for note in notes:
        if isinstance(note, Alone):
            options |= {"nargs": "?", "const": note.value}
    if hint is bool:
        options["action"] = "store_true"
    else:
        bounds = [note for note in notes if isinstance(note, Within)]
        options["type"] = _number(hint, bounds) if hint in {int, float} else hint
    return options


def _number(kind: type[float], bounds: Sequence[Within]) -> Callable[[str], float]:
    """Return a function that reads a number within bounds. The number may be a fraction, such as 24/44."""

    def read(text: str) -> float:
        try:
            value = float(Fraction(text.replace(" ", "")))
        except (ValueError, ZeroDivisionError, OverflowError):
            message = f"expected a number such as 0.5, 1e-3 or 24/44, found {text!r}"
            raise argparse.ArgumentTypeError(message) from None
        if kind is int and not value.is_integer():
            raise argparse.ArgumentTypeError(f"expected a whole number, found {text!r}")
        try:
            for bound in bounds:
                bound.check("a number", value)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return kind(value)

    return read


def log_to_terminal(site: str, *, as_json: bool = False) -> None:
    """Print the log lines of this package, and in the same form the warnings of Flower and of its web server.

    Parameters
    ----------
    site
        Name of the site: ``server``, or the name of a node, with which its lines begin.
    as_json
        Whether every line is a JSON object instead of time, level and text.
    """
    handler = logging.StreamHandler(sys.stdout)
    prefix = "" if site == SERVER else f"{site.replace('%', '%%')}: "
    plain = PlainLines(f"%(asctime)s %(levelname)s {prefix}%(message)s", "%Y-%m-%dT%H:%M:%S%z")
    handler.setFormatter(JsonLines(site) if as_json else plain)
    logging.getLogger().setLevel(logging.WARNING)
    import flwr.common  # noqa: F401  (it gives its logger a level, and a handler that prints colours)

    for package in LOGGED:
        logger = logging.getLogger(package)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO if package == "zetadp" else logging.WARNING)


def print_now(line: str) -> None:
    """Print a progress line immediately, so that it does not reach a service manager's log late."""
    print(line, flush=True)
