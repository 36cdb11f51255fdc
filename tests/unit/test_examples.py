"""The programs of examples: short, and each does what its page says."""

from __future__ import annotations

import re
import runpy
import tempfile
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
EXAMPLES = {path.stem: path for path in (ROOT / "examples").glob("*.py")}
PROMISE = "differentially private for each training patient"


@pytest.fixture
def output(request, tmp_path, monkeypatch, capsys):
    """Return what an example prints."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    torch.manual_seed(0)
    runpy.run_path(str(EXAMPLES[request.param]))
    return capsys.readouterr().out


def accuracy(output: str) -> int:
    return int(re.search(r"accuracy on .*: (\d+)%", output)[1])


def metric(line: str) -> float:
    return float(re.search(r"(?:accuracy|mean_loss) ([\d.e-]+)", line)[1])


@pytest.mark.slow
@pytest.mark.parametrize("output", ["own_network"], indirect=True)
def test_own_network_learns_and_keeps_its_promise(output):
    promise, statement, evaluation = output.splitlines()
    assert "epsilon 8 at delta 1e-05" in promise
    assert statement == f"Training was (8, 1e-05)-{PROMISE}, against the server."
    assert metric(evaluation) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("output", ["regression"], indirect=True)
def test_a_regression_at_two_hospitals_learns(output):
    before, after, statement = output.splitlines()
    assert metric(after) < metric(before) / 10
    assert statement.startswith(f"Training was (4, 1e-05)-{PROMISE}")


@pytest.mark.parametrize("output", ["ledger_to_statement"], indirect=True)
def test_a_loop_of_ones_own_gets_a_statement_that_names_its_noise(output):
    assert (
        f"Simulated, protecting nobody: with noise that is not from a seed, training would be (4, 1e-05)-{PROMISE}"
        in output
    )
    assert 0.8 < float(re.search(r"learned mean ([\d.]+)", output)[1]) < 1.2


@pytest.mark.slow
@pytest.mark.parametrize("output", ["release_to_classifier"], indirect=True)
def test_a_classifier_learns_from_released_rows_alone(output):
    assert output.startswith("The release was (8, 1e-05)-differentially private for each patient, against anyone")
    assert accuracy(output) > 85


@pytest.mark.slow
@pytest.mark.parametrize("output", ["choose_settings"], indirect=True)
def test_the_first_drop_in_a_row_shows_what_is_wrong_and_the_page_shows_the_rows(output):
    page = (ROOT / "docs/choosing.md").read_text()
    found = {}
    for line in output.splitlines()[2:]:
        name, *figures = line.strip("| ").split(" | ")
        found[name] = [float(figure) for figure in figures]
        shown = re.search(rf"^\| {name} \| (.*) \|$", page, re.MULTILINE)[1].split(" | ")
        assert found[name] == pytest.approx([float(figure) for figure in shown], abs=8)
    assert found["defaults"][2] > 65
    assert all(found[name][0] < 60 for name in ("rate of 0.0003", "3 rounds", "weaker data"))
    whole, clipped, private, noise = found["10 patients a round"]
    assert min(whole, clipped) > private + 20
    assert noise > 1 > found["defaults"][3]


def test_the_page_on_the_library_shows_the_example():
    assert f"```python\n{EXAMPLES['own_network'].read_text()}```" in (ROOT / "docs/library.md").read_text()
