"""The origin of a table: command, commit, cohort, seeds and hardware, in one form for every table.

CSV files begin with these five as ``# key: value``; Markdown files list them as ``- key: value``.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch

ROOT = Path(__file__).parents[3]
KEYS = ("command", "commit", "cohort", "seeds", "hardware")
UNKNOWN = "unknown"
NOT_CODE = (":(exclude)docs", ":(exclude)*.md")
COMMAND = "ZETADP_COMMAND"
"""Environment variable for the command of make or of the workflow; as a parameter of rules it would rerun jobs."""


def origin(
    cohort: str, seeds: str, *, command: str | None = None, runs: Iterable[Mapping[str, Any]] = ()
) -> tuple[str, ...]:
    """Return the lines on the origin of a table, one for each of `KEYS`.

    Parameters
    ----------
    cohort, seeds
        Values that the scenario or the benchmark declares, from `cohort_shown` and `seeds_shown`.
    command
        Command that makes the table; by default the current command.
    runs
        For each run of the table, the ``environment`` of its ``metrics.json``: the machine and the code that trained
        it. By default, this process and machine.
    """
    runs = list(runs)
    values = (command or current_command(), _commits(runs), cohort, seeds, _hardware(runs))
    return tuple(f"{key}: {value}" for key, value in zip(KEYS, values, strict=True))


@dataclass(frozen=True)
class Cohort:
    """The people behind a result, as tables, figures and model cards describe them.

    Attributes
    ----------
    label
        Kind, name and size, such as ``cohort phantom, 40 + 10 patients``.
    simulated
        Whether the patients are simulated. The name proves nothing: people choose it.
    """

    label: str
    simulated: bool

    def __str__(self) -> str:
        return f"simulated {self.label}" if self.simulated else self.label


def cohort_shown(cohort: Mapping[str, Any], *, simulated: bool) -> str:
    """Return name, size and seed of a cohort, from ``cohort`` of a configuration, and whether it is ``simulated``."""
    size = f"{cohort['train_patients']} + {cohort['test_patients']} {cohort['unit']}s"
    if cohort["source"] == "simulated":
        source = f"seed {cohort['simulated']['seed']}"
    else:
        source = "simulated" if simulated else "not simulated"
    return f"{cohort['name']}, {size}, {source}"


def seeds_shown(seeds: Iterable[int]) -> str:
    """Return distinct seeds as text.

    Examples
    --------
    >>> seeds_shown([2, 0, 1, 0]), seeds_shown([0, 1]), seeds_shown([7])
    ('0 to 2', '0, 1', '7')
    """
    ordered = sorted(set(seeds))
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]} to {ordered[-1]}"
    return ", ".join(str(seed) for seed in ordered)


def current_command() -> str:
    """Return the current command: that of make or of the workflow, or this program and its arguments."""
    if COMMAND in os.environ:
        return os.environ[COMMAND]
    program = _below(Path(sys.argv[0]), ROOT)
    if program.startswith(("benchmarks/", "papers/")):  # packages, whose modules are run by name
        program = f"-m {program.removesuffix('.py').replace('/', '.')}"
    return f"python {program} {shlex.join(sys.argv[1:])}".rstrip()


def workflow_command(arguments: Iterable[str], root: Path = ROOT) -> str:
    """Return the command that started the workflow, without words that may name folders of patients.

    Parameters
    ----------
    arguments
        Words after ``snakemake``. The values of assignments such as ``--config KEY=VALUE`` are left out.
    root
        Folder of the workflow. Paths below it are relative to it; others are shortened to their last part.
    """
    return " ".join(["snakemake", *(shlex.quote(_public(word, root)) for word in arguments)])


def _public(word: str, root: Path) -> str:
    """Return a word of a command without an assigned value, and without folders outside the root."""
    option, assigned, value = word.partition("=")
    if not assigned:
        return _below(Path(word), root) if "/" in word else word
    return f"{option}={_public(value, root) if option.startswith('-') else '...'}"


def commit(root: Path = ROOT) -> str | None:
    """Return the commit of the running code, or None without a git history.

    It ends in ``-dirty`` if a tracked file differs from the commit. Markdown files and the files in ``docs`` do not
    count: a table that was just written there does not change the code that writes the next one.
    """
    top = _git(root, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != root.resolve():
        return None
    changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", *NOT_CODE)
    revision = _git(root, "rev-parse", "--short", "HEAD")
    return f"{revision}-dirty" if revision and changed else revision


def code_version() -> str:
    """Return `commit`, or the installed version if there is none, such as in an installed package."""
    revision = commit()
    if revision is not None:
        return revision
    try:
        return f"zetadp {metadata.version('zetadp')}"
    except metadata.PackageNotFoundError:
        return "unknown: neither in a git checkout nor installed"


def environment(device: torch.device) -> dict[str, Any]:
    """Return code, machine and software of this process, for ``metrics.json``."""
    torch = sys.modules["torch"]  # imported if there is a device; making tables does not need it
    return {
        "commit": code_version(),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _git(root: Path, *arguments: str) -> str | None:
    """Return the output of git, or None if it fails or is not installed."""
    try:
        done = subprocess.run(  # noqa: S603  (fixed arguments)
            ["git", "--no-optional-locks", "-C", str(root), *arguments],  # noqa: S607  (the user's git)
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _commits(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the commit of the running code, and the commits of the training runs if they differ."""
    current = code_version()
    trained = sorted({run.get("commit") or UNKNOWN for run in runs})
    return current if not trained or trained == [current] else f"{current}; trainings by {', '.join(trained)}"


def _hardware(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the hardware of the training runs, or of this machine without training runs."""
    machines = sorted({f"{run.get('device', UNKNOWN)}, {run.get('cores', UNKNOWN)} cores" for run in runs})
    return "; ".join(machines) or machine()


def machine() -> str:
    """Return processor, number of cores and GPU of this machine."""
    try:
        models = re.findall(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), flags=re.MULTILINE)
    except OSError:
        models = []
    processor = models[0] if models else platform.processor() or platform.machine()
    torch = sys.modules.get("torch")
    gpus = [torch.cuda.get_device_name()] if torch is not None and torch.cuda.is_available() else []
    return ", ".join([processor, f"{os.cpu_count()} cores", *gpus])


def _below(path: Path, root: Path) -> str:
    """Return a path relative to the root, or its last part if it is not below the root."""
    path = path.resolve()
    return path.relative_to(root.resolve()).as_posix() if path.is_relative_to(root.resolve()) else path.name
