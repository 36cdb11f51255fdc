"""Run what a paper's folder declares: its scenarios one by one, one audit of the code, then its programs and tables.

    python -m papers PAPER [--size smoke|short|whole] [--cores N] [--data NAME=FOLDER ...] [--dry-run]

Everything is a job of Snakemake, so a second run does nothing, and a change of code runs again what depends on it.
Tables and figures go to results/papers/PAPER; papers/PAPER/results has those that are kept, which nothing here reads.
`papers.sizes` says what the sizes are. Scenarios and programs that need data which are not given, or that a size leaves
out, are named.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from papers import sizes
from zetadp.base.storage import write_text

ROOT = Path(__file__).parents[1]
PAPERS = sorted(path.parent.name for path in ROOT.glob("papers/*/paper.yaml"))
OF_CODE = ["--omit-from", "audit"]
"""Options that leave the audit of the code, and pages that show it, to the one command that makes it."""


@dataclass
class Work:
    """What repeats a paper in a size.

    Attributes
    ----------
    commands
        In their order.
    left_out
        Scenarios and programs that are not run, each with the reason.
    overlays
        Files that the commands need, with their content.
    """

    commands: list[list[str]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    overlays: dict[str, str] = field(default_factory=dict)


def work(paper: str, data: dict[str, str], options: list[str], size: str = sizes.SHORT) -> Work:
    """Return the commands that run a paper, and what is left out.

    Parameters
    ----------
    paper
        Name of its folder.
    data
        Folders of data, by the names in paper.yaml.
    options
        Options of Snakemake for all commands.
    size
        One of `papers.sizes.SIZES`.
    """
    declared = yaml.safe_load((ROOT / f"papers/{paper}/paper.yaml").read_text(encoding="utf-8"))
    plan, audited = Work(), []
    for scenario, needs in sizes.list_scenarios(declared, size):
        fetched = needs in declared.get("fetched", []) and size != sizes.SMOKE
        if needs is not None and needs not in data and not fetched:
            plan.left_out.append(f"{scenario}, which needs {needs}")
            continue
        files = [scenario]
        content = sizes.content(scenario, sizes.SHORT)
        if size == sizes.SMOKE:
            overlay = sizes.smoke(content)
            if not overlay["runs"]:
                plan.left_out.append(f"{scenario}, which has no small form")
                continue
            files.append(f"{sizes.tables(size)}/{paper}/{Path(scenario).stem}.yaml")
            plan.overlays[files[-1]] = yaml.safe_dump(overlay)
        folder = {"source": "folder", "folder": data[needs]} if needs in data else None
        overrides = ["--config", f"cohort={json.dumps(folder)}"] if folder else []
        command = ["snakemake", *options, "--configfile", *files, *overrides]
        plan.commands.append([*command, *OF_CODE])
        if sizes.of_brains(content) and (scenario == declared.get("audit") or not audited):
            audited = [["snakemake", "audit", *command[1:]]]
    plan.commands += audited
    last = [f"paper={paper}", f"size={size}", *([f"data={json.dumps(data)}"] if data else [])]
    plan.commands.append(["snakemake", *options, "--snakefile", "papers/Snakefile", "--config", *last])
    for name, how in declared.get("programs", {}).items():
        if reason := sizes.reason_to_omit(how, size, data):
            plan.left_out.append(f"{name}, {reason}")
    return plan


def main() -> int:
    """Run a paper; return the exit code of the first command that fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paper", choices=PAPERS)
    parser.add_argument("--size", choices=sizes.SIZES, default=sizes.SHORT)
    parser.add_argument("--cores", default="all")
    parser.add_argument("--data", nargs="*", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    data = {name: folder for name, _, folder in (pair.partition("=") for pair in arguments.data) if folder}
    options = ["--cores", arguments.cores, "--rerun-incomplete"]
    options += ["--dry-run"] if arguments.dry_run else []
    plan = work(arguments.paper, data, options, arguments.size)
    for reason in plan.left_out:
        sys.stderr.write(f"Left out: {reason}.\n")
    for file, text in plan.overlays.items():
        write_text(ROOT / file, text)
    environment = {**os.environ, sizes.VARIABLE: arguments.size}
    for _, *rest in plan.commands:
        # Snakemake of this Python, which also runs the jobs.
        command = [sys.executable, "-m", "snakemake", *rest]
        done = subprocess.run(command, cwd=ROOT, check=False, env=environment)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
