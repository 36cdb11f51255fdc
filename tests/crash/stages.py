"""One job of each stage, as the workflow called it."""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

from environments.calling import restored
from environments.declared import RULES

SCRIPTS = Path(__file__).parents[2] / "scripts"
NO_LOG = "/dev/null"
"""A log on another disk."""


@dataclass(frozen=True)
class Stage:
    """How the workflow ran a rule.

    Attributes
    ----------
    rule
        Its name.
    arguments
        What its script's ``main``, or its function, was given, in the form of `recorder`.
    needed, declared
        Files that it declares to need and to make.
    """

    rule: str
    arguments: dict[str, Any]
    needed: list[str]
    declared: list[str]

    @classmethod
    def read(cls, file: Path) -> Self:
        """Return what `recorder` wrote down."""
        said = json.loads(file.read_text())
        return cls(file.stem, said["arguments"], said["needed"], said["made"])

    def __getitem__(self, name: str) -> Any:
        """Return an argument as it was given."""
        return restored(self.arguments)[name]

    def call(self, log: str = NO_LOG, **changes: Any) -> dict[str, Any]:
        """Return the arguments of `call` for this stage, some of its own changed."""
        return {"rule": self.rule, "arguments": {"dict": self.arguments["dict"] | changes}, "log": log}

    def files(self) -> list[str]:
        """Return all files among the arguments, and those that its rule needs and its program finds by itself."""
        return [*self.needed, *_files(self.arguments)]


def _files(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and "path" in value:
        yield value["path"]
    else:
        parts = value["dict"].values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        for part in parts:
            yield from _files(part)


class Params(dict[str, Any]):
    """Parameters of a job, which have its arguments here."""

    stage = property(lambda self: self["stage"])


def call(rule: str, arguments: Mapping[str, Any], log: str) -> None:
    """Run a rule's script as Snakemake does, with recorded arguments."""
    params = Params(restored(arguments), stage=RULES[rule].stage)
    none: dict[str, Any] = {}
    job = {"input": none, "output": none, "wildcards": none, "resources": none, "threads": 1, "rule": rule}
    runpy.run_path(
        str(SCRIPTS / f"{RULES[rule].script}.py"),
        init_globals={"snakemake": SimpleNamespace(**job, params=params, log=[log])},
        run_name="__main__",
    )
