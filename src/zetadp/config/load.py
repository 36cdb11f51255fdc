"""Read the configuration of an experiment, and refuse every fault in it at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from zetadp.base.reading import read, schema_of
from zetadp.base.validation import UserError, did_you_mean, refuse
from zetadp.config.experiment import Config
from zetadp.config.rules import contradictions
from zetadp.config.sections import BRAIN, DEFAULTS, TaskSection
from zetadp.core.task import settings_class

WHERE = "in the configuration"


def load_config(content: Mapping[str, Any]) -> Config:
    """Return the configuration that some content holds.

    Raises
    ------
    UserError
        One message that lists every fault: the key, what was expected, what was found, and the nearest valid key. Where
        keys and sections have none, it lists what the plans of the runs refuse.
    """
    sections, faults = {}, []
    hints = get_type_hints(Config, include_extras=True)
    for key in content:
        if key not in hints:
            hint = did_you_mean(str(key), hints) or f" Known keys: {', '.join(hints)}."
            faults.append(f"Unknown key {key!r} at the top level.{hint}")
    for each in fields(Config):
        if each.name in content:
            found = read(hints[each.name], content[each.name], each.name)
            faults += found.faults
            if not found.faults:
                sections[each.name] = found.value
        elif each.default_factory is not MISSING:
            sections[each.name] = each.default_factory()
        elif each.default is not MISSING:
            sections[each.name] = each.default
        else:
            faults.append(f"{each.name}: expected this section, which has no default; found none.")
    if "task" in sections:
        sections["task"], wrong = _with_settings(sections["task"])
        faults += wrong
        if wrong:
            del sections["task"]
    refuse([*faults, *contradictions(sections)], WHERE)
    config = Config(**sections)
    refuse(config.faults_of_plans(), WHERE)
    return config


def _with_settings(task: TaskSection) -> tuple[TaskSection, list[str]]:
    """Return a task with its settings as its own class means them, and their faults."""
    kind = None if task.name == BRAIN else settings_class(task.name)
    if kind is None:
        return task, []  # a rule refuses a task that does not exist
    found = read(kind, task.settings, "task.settings")
    return replace(task, settings=found.content), found.faults


def read_overlaid(paths: Iterable[Path]) -> dict[str, Any]:
    """Return the content of configuration files, each overlaid on those before it, without checking keys or values."""
    content: dict[str, Any] = {}
    for path in paths:
        try:
            section = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise UserError(f"Cannot read the configuration {path}: {error}.") from error
        if not isinstance(section, dict):
            raise UserError(f"Expected sections in the configuration {path}, found {type(section).__name__}.")
        overlay(content, section)
    return content


def overlay(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    """Overlay one configuration on another, in place and section by section, as Snakemake does."""
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(key), dict):
            overlay(below[key], value)
        else:
            below[key] = value


def schema() -> dict[str, Any]:
    """Return the JSON schema of the configuration, for editors and for the page of keys."""
    made = deepcopy(schema_of(Config))
    for key, value in DEFAULTS.items():
        made["$defs"]["Training"]["properties"][key]["default"] = value
    return made
