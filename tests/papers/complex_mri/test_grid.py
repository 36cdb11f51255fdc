"""The grid of Riess et al. is tabulated from the runs of this machine alone."""

from __future__ import annotations

import sys

import pandas as pd
import pytest
from run_builder import write_run

from papers import sizes
from papers.complex_mri import tabulate_grid
from papers.complex_mri.tabulate_grid import with_printed
from papers.experiments import Experiment
from papers.seeds import scores
from zetadp.base.epsilon import Target
from zetadp.base.validation import UserError


@pytest.fixture
def two_runs(tmp_path, monkeypatch):
    """Return the experiment of the grid with two of its runs finished."""
    experiment = Experiment.of(tabulate_grid.SCENARIO, tmp_path)
    for seed in range(2):
        write_run(tmp_path, {"a": 3 + 4 * seed, "b": 9}, network="pooled", epsilon="8", seed=seed)
    monkeypatch.setattr(tabulate_grid.Experiment, "of", lambda _: experiment)
    return experiment


def test_no_cell_comes_from_a_kept_table(two_runs, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tabulate_grid", "--output", str(tmp_path)])
    tabulate_grid.main()
    made = pd.read_csv(tmp_path / "table.csv", comment="#", dtype={"epsilon": str})
    assert made[["network", "arm", "epsilon", "seeds"]].to_numpy().tolist() == [["pooled", "federated", "8", 2]]
    assert made["mean"].tolist() == pytest.approx([100 * (12 + 16) / 80])
    assert "2 of the experiment's 30 runs" in (tmp_path / "table.csv").read_text()


def test_seeds_lists_the_score_of_every_declared_run(tmp_path):
    experiment = Experiment.of("paper_large", tmp_path)
    cells = list(experiment.cells)
    for number, (network, arm, epsilon) in enumerate(cells[:-1]):
        write_run(tmp_path, {"a": number}, network=network, arm=arm, epsilon=epsilon)
    with pytest.raises(UserError, match="found no"):
        scores({"paper_large": experiment})
    network, arm, epsilon = cells[-1]
    write_run(tmp_path, {"a": len(cells) - 1}, network=network, arm=arm, epsilon=epsilon)
    listed = scores({"paper_large": experiment})
    assert listed[["network", "arm", "epsilon"]].to_numpy().tolist() == [list(cell) for cell in cells]
    assert listed["score"].tolist() == pytest.approx([100 * number / 20 for number in range(len(cells))])


def test_the_paper_s_figures_stand_beside_the_cells_of_their_arm_and_epsilon_alone():
    targets = [Target.named(epsilon) for epsilon in ("1", "2", "inf", "1")]
    table = pd.DataFrame({"arm": ["federated", "federated", "central", "secure"], "epsilon": targets})
    joined, rows = with_printed(table)
    assert joined["printed"].fillna(0).tolist() == [81.65, 0, 90.89, 0]
    assert joined["printed_std"].fillna(0).tolist() == [1.03, 0, 1.41, 0]
    assert rows[0] == ("the paper, printed", "federated", "81.65 ± 1.03", "–", "90.12 ± 1.26")


KEPT = sizes.ROOT / "papers/complex_mri/results"
SCORES = pd.read_csv(KEPT / "seeds.csv", comment="#", dtype={"epsilon": str})


@pytest.mark.parametrize("scenario", SCORES["scenario"].unique())
def test_the_kept_scores_of_seeds_give_the_kept_tables(scenario):
    """Scores may be missing where a mean and a deviation do not determine them, but not of a part of a cell's seeds."""
    name = "table" if scenario == "paper_small" else f"{scenario.removeprefix('paper_')}/table1"
    cell = ["network", "arm", "epsilon"]
    of_scenario = SCORES[SCORES["scenario"] == scenario]
    cells = of_scenario.groupby(cell)["score"].agg(["mean", "std", "size"])
    table = pd.read_csv(KEPT / f"{name}.csv", comment="#", dtype={"epsilon": str}).set_index(cell)
    assert scenario != "paper_small" or len(cells) == len(table)
    table = table.loc[cells.index]
    assert cells["mean"].to_numpy() == pytest.approx(table["mean"].to_numpy(), abs=1e-6)
    assert cells["std"].fillna(0).to_numpy() == pytest.approx(table["std"].fillna(0).to_numpy(), abs=1e-6)
    assert (cells["size"] == table["seeds"]).all()
    shares = 100 * of_scenario["right"] / of_scenario["images"]
    assert of_scenario["score"].to_numpy() == pytest.approx(shares.to_numpy(), abs=1e-7)
