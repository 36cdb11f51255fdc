"""Every table says how it was made, and says it truly."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from origins import read_origin

from zetadp.base.tables import Sheet
from zetadp.report.provenance import (
    COMMAND,
    KEYS,
    commit,
    current_command,
    machine,
    origin,
    workflow_command,
)
from zetadp.report.rendering import to_csv, to_markdown

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments], check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path) -> Path:
    root = tmp_path / "checkout"
    for name in ("src/code.py", "docs/table.csv", "README.md"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("1\n")
    git(tmp_path, "init", "--quiet", str(root))
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "Start")
    return root


@needs_git
def test_the_commit_is_the_one_checked_out_and_a_change_of_code_shows(repository, tmp_path):
    found = commit(repository)
    assert git(repository, "rev-parse", "HEAD").startswith(found)
    assert re.fullmatch("[0-9a-f]{7,40}", found)
    (repository / "docs/table.csv").write_text("2\n")
    (repository / "README.md").write_text("2\n")
    (repository / "results").mkdir()
    (repository / "results/table.csv").write_text("2\n")
    assert commit(repository) == found, "a table that was written is no change of code"
    (repository / "src/code.py").write_text("2\n")
    assert commit(repository) == f"{found}-dirty"
    (repository / "site-packages").mkdir()
    assert commit(tmp_path) is commit(repository / "site-packages") is None, "a history around the code is another's"


@pytest.mark.parametrize("kind", ["csv", "md"])
def test_both_formats_give_back_what_was_written(kind):
    lines = origin("phantom, 3 + 2 patients, seed 1", "0 to 2", command="make it | sort")
    frame = pd.DataFrame({"a": [1.5], "hardware": ["x"]})
    rows = Sheet("Title", ("a", "hardware"), (("1.5", "x"),), ("Commit: no key.", *lines))
    text = to_csv(frame, (*lines, "Commit: no key.")) if kind == "csv" else to_markdown(rows)
    found = read_origin(text, "table")
    assert tuple(found) == KEYS
    assert (found["cohort"], found["seeds"]) == ("phantom, 3 + 2 patients, seed 1", "0 to 2")
    assert found["command"] == "make it | sort"
    assert found["hardware"] == machine()


def test_trainings_name_their_own_commit_and_hardware(monkeypatch):
    monkeypatch.setattr("zetadp.report.provenance.commit", lambda *_: "aaaaaaa")

    def said(*commits: str | None) -> dict[str, str]:
        runs = [{"device": "x86_64", "cores": 2, "commit": each} for each in commits]
        return dict(line.split(": ", 1) for line in origin("none", "0", runs=runs))

    assert said("aaaaaaa", "aaaaaaa")["commit"] == "aaaaaaa"
    assert said("aaaaaaa", "bbbbbbb")["commit"] == "aaaaaaa; trainings by aaaaaaa, bbbbbbb"
    assert said(None)["commit"] == "aaaaaaa; trainings by unknown"
    assert said("aaaaaaa", "bbbbbbb")["hardware"] == "x86_64, 2 cores"


def test_the_command_is_that_of_make_or_of_the_program(monkeypatch, tmp_path):
    monkeypatch.delenv(COMMAND, raising=False)
    monkeypatch.setattr("sys.argv", [str(Path(__file__).parents[3] / "benchmarks/x.py"), "--a", "b c"])
    assert current_command() == "python -m benchmarks.x --a 'b c'"
    monkeypatch.setattr("sys.argv", [str(tmp_path / "x.py")])
    assert current_command() == "python x.py"
    monkeypatch.setenv(COMMAND, "make full")
    assert current_command() == "make full"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cores", "2"], "--cores 2"),
        (["--configfile", "{root}/workflow/a.yaml", "/ward/b.yaml"], "--configfile workflow/a.yaml b.yaml"),
        (["--directory=/ward/anna", "/ward/results/x.csv"], "--directory=anna x.csv"),
        (["--config", "cohort={folder: /ward/anna}", "name=anna"], "--config cohort=... name=..."),
        (["--config=cohort={folder: /ward/anna}"], "--config=cohort=..."),
    ],
)
def test_the_workflow_s_command_is_the_one_that_ran_without_folders_of_patients(tmp_path, arguments, said):
    words = [word.replace("{root}", str(tmp_path)) for word in arguments]
    assert workflow_command(words, tmp_path) == f"snakemake {said}"
