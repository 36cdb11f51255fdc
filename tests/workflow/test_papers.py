"""A paper's programs run once, and again exactly when code that they reach changes."""

from __future__ import annotations

import sys

import pytest

from papers.__main__ import PAPERS, commands

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
    wanted, left_out = commands("complex_dp", {}, [])
    assert len(left_out) == 6
    assert all(word in " ".join(left_out) for word in ("speech", "ecg"))
    assert not any("speech" in part for command in wanted for part in command)
    more, still = commands("complex_dp", {"speech": "/clips"}, [])
    assert len(more) == len(wanted) + 4
    assert not any("speech" in each for each in still)
    (overlay,) = {command[-1] for command in more if "speech" in command[2]}
    assert overlay == 'cohort={"folder": "/clips"}'


@pytest.mark.parametrize("paper", PAPERS)
def test_scenarios_run_one_by_one_before_the_tables(paper):
    *scenarios, last = commands(paper, {"speech": "a", "ecg": "b"}, ["--cores", "2"])[0]
    assert scenarios
    assert all(command[:4] == ["snakemake", "--cores", "2", "--configfile"] for command in scenarios)
    assert last[3:5] == ["--snakefile", "papers/Snakefile"]
