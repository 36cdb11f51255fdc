"""Run what a paper's folder declares: its scenarios one by one, then its programs and joined tables.

    python -m papers PAPER [--cores N] [--data NAME=FOLDER ...] [--dry-run]

Everything is a job of Snakemake, so a second run does nothing, and a change of code runs again what depends on it.
Tables and figures go to results/papers/PAPER; papers/PAPER/results has those that are kept. Scenarios and programs
that need data which are not given are left out, and named.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
PAPERS = sorted(path.parent.name for path in ROOT.glob("papers/*/paper.yaml"))


def commands(paper: str, data: dict[str, str], options: list[str]) -> tuple[list[list[str]], list[str]]:
    """Return the commands that run a paper, and what is left out for want of data.

    Parameters
    ----------
    paper
        Name of its folder.
    data
        Folders of data, by the names in ``data`` of paper.yaml.
    options
        Options of Snakemake for all commands.
    """
    declared = yaml.safe_load((ROOT / f"papers/{paper}/paper.yaml").read_text(encoding="utf-8"))
    found, left_out = [], []
    for scenario, needs in _needs(declared.get("scenarios", [])):
        if needs is not None and needs not in data:
            left_out.append(f"{scenario}, which needs {needs}")
            continue
        overlay = ["--config", f"cohort={json.dumps({'folder': data[needs]})}"] if needs else []
        found.append(["snakemake", *options, "--configfile", scenario, *overlay])
    last = ["--config", f"paper={paper}", *([f"data={json.dumps(data)}"] if data else [])]
    found.append(["snakemake", *options, "--snakefile", "papers/Snakefile", *last])
    programs = declared.get("programs", {}).items()
    left_out += [
        f"{name}, which needs {how['data']}" for name, how in programs if how.get("data", None) not in {None, *data}
    ]
    return found, left_out


def _needs(scenarios: list[Any]) -> list[tuple[str, str | None]]:
    """Return the files of scenarios and the name of the data that each needs."""
    return [(each, None) if isinstance(each, str) else next(iter(each.items())) for each in scenarios]


def main() -> int:
    """Run a paper; return the exit code of the first command that fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paper", choices=PAPERS)
    parser.add_argument("--cores", default="all")
    parser.add_argument("--data", nargs="*", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--dry-run", action="store_true")
    given = parser.parse_args()
    data = {name: folder for name, _, folder in (each.partition("=") for each in given.data) if folder}
    options = ["--cores", given.cores, "--quiet", "rules", "--rerun-incomplete"]
    options += ["--dry-run"] if given.dry_run else []
    wanted, left_out = commands(given.paper, data, options)
    for each in left_out:
        sys.stderr.write(f"Left out: {each}.\n")
    for command in wanted:
        done = subprocess.run(command, cwd=ROOT, check=False)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
