"""Settings files of sites: YAML or JSON, read with one message for whatever is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from zetadp.validation import UserError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Settings = TypeVar("Settings")


def read_settings(path: Path, what: str, build: Callable[[dict[str, Any]], Settings]) -> Settings:
    """Return the settings that ``build`` makes of a file's keys and values.

    Parameters
    ----------
    path
        A YAML or JSON file.
    what
        Whose settings it should hold, for the message.
    build
        Makes the settings; a wrong key or value is an exception.

    Raises
    ------
    UserError
        If the file cannot be read or has a key or value that it should not have, or lacks a key.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        if isinstance(content, dict):
            return build(content)
        found = f"found {'nothing' if content is None else type(content).__name__}, not keys with values"
    except KeyError as error:
        found = f"the key {error} is missing"
    except OSError as error:
        found = error.strerror or str(error)
    except (yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        found = str(error).removesuffix(".")
    msg = f"Expected {path} to hold the settings of {what}: {found}."
    raise UserError(msg)
