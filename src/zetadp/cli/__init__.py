"""The command line."""

from zetadp.cli.commands import main as main
