"""One job of each stage, as the workflow called it."""

from __future__ import annotations

import json
import runpy
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

from environments.calling import restored

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SCRIPTS = Path(__file__).parents[2] / "scripts"
NO_LOG = "/dev/null"
"""A log on another disk."""


@dataclass(frozen=True)
class Stage:
    """How the workflow called a script.

    Attributes
    ----------
    script
        Its name.
    arguments
        What its ``main`` was given, in the form of `recorder`.
    declared
        Files that its rule declares to make.
    """

    script: str
    arguments: dict[str, Any]
    declared: list[str]

    @classmethod
    def read(cls, file: Path) -> Self:
        """Return what `recorder` wrote down."""
        said = json.loads(file.read_text())
        return cls(file.stem, said["arguments"], said["made"])

    def __getitem__(self, name: str) -> Any:
        """Return an argument as it was given."""
        return restored(self.arguments)[name]

    def call(self, log: str = NO_LOG, **changes: Any) -> dict[str, Any]:
        """Return the arguments of `call` for this stage, some of its own changed."""
        return {"script": self.script, "arguments": {"dict": self.arguments["dict"] | changes}, "log": log}

    def files(self) -> list[str]:
        """Return all files among the arguments."""
        return list(_files(self.arguments))


def _files(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and "path" in value:
        yield value["path"]
    else:
        parts = value["dict"].values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        for part in parts:
            yield from _files(part)


def call(script: str, arguments: Mapping[str, Any], log: str) -> None:
    """Run a script's file as Snakemake does, with recorded arguments."""
    params = restored(arguments)
    none: dict[str, Any] = {}
    job = {"input": none, "output": none, "wildcards": none, "resources": none, "threads": 1, "rule": script}
    runpy.run_path(
        str(SCRIPTS / f"{script}.py"),
        init_globals={"snakemake": SimpleNamespace(**job, params=params, log=[log])},
        run_name="__main__",
    )
