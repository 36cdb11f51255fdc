"""Commands and code blocks of README and docs: each is run or checked here, or its page says why not.

Commands of the tutorial run and print what the page shows, to the last digit. Elsewhere arguments are read by the
command's own parser, Snakemake and make make a dry run, and named files must exist.
"""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
import subprocess
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import pandas
import pytest
import torch
from torch.utils.data import TensorDataset

import zetadp
from zetadp.cli import main
from zetadp.cli.commands import command_line

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += sorted([ROOT / "papers/README.md", *ROOT.glob("papers/*/*.md")])
BLOCK = re.compile(r"^(?:<!-- not run: (?P<reason>.+) -->\n)?```(?P<language>[\w{}-]*)\n(?P<text>.*?)^```", re.M | re.S)
NO_CODE = {"text", "{toctree}", "{eval-rst}"}
ELSEWHERE = {
    ("README.md", "python"): "tests/unit/training/test_own_network.py",
    ("library.md", "python"): "tests/unit/test_examples.py",
    **{("tasks.md", language): "tests/workflow/test_own_task.py" for language in ("python", "toml", "yaml", "sh")},
    **{
        ("mechanisms.md", language): "tests/unit/training/test_foreign_law.py"
        for language in ("python", "toml", "yaml")
    },
    ("pipeline.md", "python"): "tests/workflow/test_module.py",
    ("opacus.md", "python"): "tests/unit/test_opacus_bridge.py",
    ("directions/README.md", "python"): "tests/papers/directions/test_kept_table.py",
    **{
        (page, language): "tests/hospitals/test_recipe.py"
        for page in ("federation.md", "hospital.md", "operations.md")
        for language in ("", "yaml")
    },
}
"""Blocks that other tests run, by page and language."""
OTHER_PROGRAMS = {"tail": "tests/unit/account/test_book.py", "grep": "tests/unit/account/test_book.py"}
"""Tests that run the commands of other programs."""


def name_of(page: Path) -> str:
    """Return the name of a page; that of a paper's README begins with its folder."""
    return f"{page.parent.name}/{page.name}" if page.is_relative_to(ROOT / "papers") else page.name


class Block(NamedTuple):
    """A block of code on a page."""

    page: str
    language: str
    text: str
    reason: str | None


BLOCKS = [
    Block(name_of(page), found["language"], found["text"], found["reason"])
    for page in PAGES
    for found in BLOCK.finditer(page.read_text())
]
HERE = [b for b in BLOCKS if b.language not in NO_CODE and (b.page, b.language) not in ELSEWHERE and not b.reason]
COMMANDS = sorted(
    {
        line.partition("  #")[0].strip()
        for block in HERE
        if block.language == "sh" and block.page != "tutorial.md"
        for line in block.text.replace("\\\n", " ").splitlines()
        if line.strip()
    }
)


def commands(program: str) -> list[str]:
    return [command for command in COMMANDS if program in shlex.split(command)[0].split("/")]


def without_widths(text: str) -> list[str]:
    """Return lines without the widths of their columns."""
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def test_every_block_is_checked_somewhere():
    assert {block.language for block in HERE} <= {"sh", "python", "yaml", "toml"}
    known = [command for program in ("make", "snakemake", "zetadp", *OTHER_PROGRAMS) for command in commands(program)]
    assert [command for command in COMMANDS if command not in known] == []
    for test in (*ELSEWHERE.values(), *OTHER_PROGRAMS.values()):
        assert (ROOT / test).is_file()


@pytest.mark.slow
def test_the_tutorial_prints_what_it_shows(fresh):
    """Every command runs as it stands on the page, and prints the lines that the page shows, with all their digits."""
    printed = ""
    for block in (block for block in BLOCKS if block.page == "tutorial.md" and not block.reason):
        if block.language == "sh":
            done = subprocess.run(
                block.text,
                shell=True,
                cwd=fresh.root,
                env=fresh.environment(),
                capture_output=True,
                text=True,
                check=False,
            )
            printed = done.stderr + done.stdout
            assert done.returncode == 0, printed
        else:
            lines = iter(without_widths(printed))
            for line in without_widths(block.text):
                assert line == "..." or line in lines, f"Not printed, or not in this order: {line}\n{printed}"


@pytest.mark.parametrize("command", commands("zetadp"))
def test_zetadp_takes_these_arguments(command):
    command_line().parse_args(shlex.split(command)[1:])


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.page == "library.md" and b.language == "sh"])
def test_the_accountant_prints_what_the_page_says(block):
    for line in block.text.splitlines():
        command, _, promised = line.partition("  # ")
        if not re.match(r"zetadp (epsilon|noise|rounds) ", command):
            continue  # the other commands are of the run that the page trains
        with contextlib.redirect_stdout(io.StringIO()) as said:
            assert main(shlex.split(command)[1:]) == 0
        assert promised.strip() in said.getvalue()


@pytest.mark.slow
def test_snakemake_takes_these_arguments(fresh):
    cores = re.compile(r"--cores \d+")
    for command in sorted({cores.sub("", each) for each in commands("snakemake")}):
        if "--report" in command:
            continue  # reports on results that are there; tests/workflow/test_end_to_end.py makes one
        _, *arguments = shlex.split(command)
        name = "config.yaml"
        if "--configfile" in arguments:
            place = arguments.index("--configfile")
            name = arguments[place + 1]
            del arguments[place : place + 2]
        arguments = [each for each in arguments if each not in ("-n", "--use-conda", "--")]
        # Options that take several values, such as --config, come last.
        fresh.snakemake("--dry-run", "--quiet", "all", "--forceall", *arguments, configfile=name)


@pytest.mark.parametrize("block", [block for block in HERE if block.language == "python"], ids=lambda block: block.page)
def test_code_runs(block, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savez("features.npz", features=np.random.default_rng(0).normal(size=(50, 4)), labels=np.arange(50) % 2)
    arguments = "--people 50 --classes 2 --epsilon 8 --delta 1e-3"
    assert main(["release", "features.npz", "rows.h5", *arguments.split()]) == 0
    Path("block.py").write_text(block.text.replace("60000", "2000"))  # as many people as the features below
    names = {"h5py": h5py, "pandas": pandas, "torch": torch, "TensorDataset": TensorDataset, "zetadp": zetadp}
    people = np.arange(2000)
    names |= {"features": np.random.default_rng(1).normal(size=(2000, 4)).astype("float32"), "labels": people % 10}
    names |= {"ids": people, "new_features": torch.randn(5, 4)}
    made = runpy.run_path("block.py", names)
    if "classes" in made:
        assert made["classes"].shape == (5,)
    if "statement" in made:
        assert "(1, 1e-05)-differentially private for each" in str(made["statement"])
    if "data" in made:  # its real features fit a real network
        features, labels = made["data"].tensors
        assert torch.nn.Linear(4, 2)(made["clipped"](features)).shape == labels.shape
