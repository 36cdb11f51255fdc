"""What a user of Snakemake sees on the terminal while the workflow runs."""

from __future__ import annotations

import re
import subprocess

import pytest
import warm

from zetadp.base.console import Steps
from zetadp.base.workflow import ROOT

SNAKEFILE = """
import sys
sys.path.insert(0, {source!r})
from zetadp.base.console import summarise_jobs
summarise_jobs(workflow.output_settings)
onstart:
    logger.info("what all runs cost")
rule all:
    input: expand("{{number}}.txt", number=range(12)), "broken.txt"
rule make:
    output: "{{number}}.txt"
    shell: "touch {{output}}"
rule fail:
    output: "broken.txt"
    log: "fail.log"
    shell: "echo the cause > {{log}}; false"
"""


def terminal(folder, *options: str) -> list[str]:
    """Return the lines that Snakemake writes about twelve jobs that succeed at once and one that fails."""
    folder.mkdir()
    (folder / "Snakefile").write_text(SNAKEFILE.format(source=str(ROOT / "src")))
    command = [warm.python(), "-m", "snakemake", "--cores", "1", "--keep-going", "--show-failed-logs", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    return done.stderr.splitlines()


def test_many_short_jobs_make_few_lines_and_an_error_is_whole(tmp_path):
    lines = terminal(tmp_path / "usual")
    steps = [line for line in lines if re.search(r" of 14 steps", line)]
    assert 1 <= len(steps) <= 2, lines
    assert "what all runs cost" in lines
    assert "Error in rule fail:" in lines
    assert "the cause" in lines
    assert any("Complete log(s)" in line for line in lines)
    assert not [line for line in lines if "rule make" in line]
    assert len(lines) < 45, lines
    (log,) = (tmp_path / "usual/.snakemake/log").iterdir()
    assert log.read_text().count("rule make:") == 12


def test_a_user_can_ask_snakemake_for_every_job(tmp_path):
    assert sum("rule make:" in line for line in terminal(tmp_path / "all", "--printshellcmds")) == 12


def test_the_time_left_follows_from_the_rules_that_have_ended():
    steps = Steps({"train": 10, "table": 1})
    steps.start(0, "train", now=100)
    steps.start(1, "train", now=100)
    assert steps.left(now=105) is None  # nothing has ended
    steps.finish(0, now=110)
    steps.finish(1, now=110)
    # Two at a time of 10 s each: eight more and the table, of which nothing is known but the mean of all.
    assert steps.left(now=110) == pytest.approx(45)
    steps.start(2, "train", now=110)
    steps.start(3, "train", now=110)
    assert steps.names() == "2 train"
    assert steps.left(now=115) == pytest.approx(40)


def test_the_time_left_is_at_least_that_of_the_longest_step_that_runs():
    steps = Steps({"long": 2, "short": 20})
    steps.start(0, "long", now=0)
    steps.finish(0, now=100)
    for number in range(1, 21):
        steps.start(number, "short", now=100)
        steps.finish(number, now=101)
    steps.start(21, "long", now=101)
    assert steps.left(now=111) == pytest.approx(90)
