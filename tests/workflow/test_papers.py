"""A paper's commands: what each size runs, once, and again exactly when code that it reaches changes."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import warm
import yaml

from papers import digits, sizes
from papers.__main__ import PAPERS, work
from papers.experiments import save_figure
from zetadp.config.load import load_config
from zetadp.report.figurestyle import blank

FILES = {
    "__init__.py": "",
    "paper.yaml": "scenarios: []\nprograms:\n  say: {}\n  tell: {data: secrets}\n",
    "words.py": 'WORD = "one"\n',
    "say.py": "from papers.toy.words import WORD\n\nprint(WORD)\n",
    "other.py": "x = 1\n",
}


@pytest.mark.slow
def test_a_program_runs_again_exactly_when_its_code_changes(fresh):
    folder = fresh.root / "papers/toy"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)

    def run() -> bool:
        source = {"PYTHONPATH": str(fresh.root / "src"), "python": sys.executable}  # whose code is hashed
        said = fresh.snakemake("--snakefile", "papers/Snakefile", "--config", "paper=toy", **source)
        return "rule program:" in said

    assert run()
    assert not run()
    (folder / "other.py").write_text("x = 2\n")
    (folder / "words.py").write_text('"""Words."""\n\nWORD = "one"  # a comment\n')
    assert not run()
    (folder / "words.py").write_text('WORD = "two"\n')
    assert run()
    assert not run()


def test_what_lacks_its_data_is_left_out_and_named():
    assert PAPERS == ["complex_dp", "complex_mri", "directions", "neuromixgdp"]
    lacking = work("complex_dp", {}, [])
    assert all(word in " ".join(lacking.left_out) for word in ("speech", "ecg"))
    assert not any("speech" in part for command in lacking.commands for part in command)
    more = work("complex_dp", {"speech": "/clips"}, [])
    assert len(more.commands) == len(lacking.commands) + 4
    assert not any("needs speech" in each for each in more.left_out)
    (overlay,) = {command[command.index("--config") + 1] for command in more.commands if "speech" in command[2]}
    assert overlay == 'cohort={"source": "folder", "folder": "/clips"}'


@pytest.mark.parametrize("paper", PAPERS)
@pytest.mark.parametrize("size", sizes.SIZES)
def test_scenarios_run_one_by_one_with_one_audit_before_the_tables(paper, size):
    found = work(paper, {"speech": "a", "ecg": "b", "mnist": "c"}, ["--cores", "2"], size)
    *scenarios, last = found.commands
    audits = [command for command in scenarios if command[1] == "audit"]
    others = [command for command in scenarios if command[1] != "audit"]
    assert others
    assert len(audits) <= 1
    assert all(command[:4] == ["snakemake", "--cores", "2", "--configfile"] for command in others)
    assert all(command[-2:] == ["--omit-from", "audit"] for command in others)
    assert last[3:5] == ["--snakefile", "papers/Snakefile"]


def test_only_the_whole_paper_runs_the_scenario_of_days():
    of_days = "papers/complex_mri/scenarios/paper.yaml"
    runs = {
        size: any(of_days in command for command in work("complex_mri", {}, [], size).commands) for size in sizes.SIZES
    }
    assert runs == {"smoke": True, "short": False, "whole": True}


@pytest.mark.parametrize("paper", ["complex_mri", "neuromixgdp", "directions"])
def test_a_smoke_leaves_nothing_out_where_no_data_are_needed(paper):
    assert work(paper, {}, [], sizes.SMOKE).left_out == []


def test_a_smoke_replaces_images_by_simulated_digits(monkeypatch):
    monkeypatch.setenv(sizes.VARIABLE, sizes.SMOKE)
    parts = [digits.images.__wrapped__(data, part) for data in digits.NAMES for part in ("train", "test")]
    assert all(np.bincount(labels, minlength=10).tolist() == [digits.SIMULATED / 10] * 10 for _, labels in parts)
    assert all((first[0] != second[0]).any() for first, second in combinations(parts, 2))
    assert "simulated" in digits.described("MNIST")
    assert sizes.stored("release_mnist").is_relative_to("results/papers/smoke")


def test_a_figure_of_a_smoke_is_marked(tmp_path, monkeypatch):
    marks = {}
    for size in (sizes.SMOKE, sizes.SHORT):
        monkeypatch.setenv(sizes.VARIABLE, size)
        figure = blank(3.0)
        figure.subplots()
        save_figure(figure, tmp_path / "figure.svg")
        marks[size] = '<g id="smoke">' in (tmp_path / "figure.svg").read_text()
    assert marks == {"smoke": True, "short": False}


def test_programs_of_papers_write_figures_in_one_place():
    programs = [
        path for path in sizes.ROOT.glob("papers/**/*.py") if re.search(r"\bsave(_svg|fig)\b", path.read_text())
    ]
    assert programs == [sizes.ROOT / "papers/experiments.py"]


SCENARIOS = sorted(path.relative_to(sizes.ROOT).as_posix() for path in sizes.ROOT.glob("papers/*/scenarios/*.yaml"))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_smoke_has_twenty_patients_three_rounds_and_names_of_its_own(scenario):
    whole, small = (sizes.content(scenario, size) for size in (sizes.SHORT, sizes.SMOKE))
    if not small["runs"]:
        return  # it has no small form: `work` names it
    config = load_config(small)
    assert sum(config.cohort.patients.values()) == 20
    plans = [config.plan(run) for run in config.run_names]
    assert all(plan.training.rounds <= 3 for plan in plans)
    assert (config.name, config.cohort.name) != (whole["name"], whole["cohort"]["name"])
    assert whole["name"] in config.name
    assert config.cohort.name.endswith("no-result")  # titles of the workflow's figures have it


MNIST = sizes.ROOT.parent / "shared/data/mnist"


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS)
def test_the_smoke_of_a_paper_runs_and_reads_no_kept_result(fresh, paper):
    for kept in fresh.root.glob("papers/*/results/**/*.csv"):
        kept.unlink()  # a command that reads them fails
    data = [f"mnist={MNIST}"] if MNIST.is_dir() else []
    python = warm.python()
    command = [python, "-m", "papers", paper, "--size", "smoke", "--cores", "2", "--data", *data]
    path = f"{Path(python).parent}:{Path(sys.executable).parent}"
    environment = fresh.environment(PYTHONPATH=f"{fresh.root}/src:{fresh.root}")
    environment["PATH"] = f"{path}:{environment['PATH']}"
    done = subprocess.run(
        command, cwd=fresh.root, env=environment, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stderr[-6000:]
    folder = fresh.root / f"results/papers/smoke/{paper}"
    declared = yaml.safe_load((fresh.root / f"papers/{paper}/paper.yaml").read_text())["programs"]
    assert {path.stem for path in folder.glob("*.done")} == {name for name, how in declared.items() if "smoke" in how}
    tables = [path.read_text() for path in folder.rglob("*.csv")]
    assert all("# smoke:" in table for table in tables)
    assert all('<g id="smoke">' in path.read_text() for path in folder.rglob("*.svg"))
    seeds = pd.read_csv(folder / "seeds.csv", comment="#")
    assert seeds["score"].notna().all()
    assert {"complex_mri": 7, "complex_dp": 1, "neuromixgdp": 3, "directions": 1}[paper] <= seeds["scenario"].nunique()
