"""The grid of Riess et al. is tabulated from runs of several machines."""

from __future__ import annotations

import pandas as pd
import pytest
from run_builder import write_run

from papers.complex_mri.tabulate_grid import beside_printed, earlier, with_earlier
from zetadp.report import tables


def test_runs_of_the_paper_s_table_join_those_of_other_machines(tmp_path):
    label = "simulated cohort"
    folders = [
        write_run(tmp_path, {"a": 3 + 4 * seed, "b": 9 - seed}, epsilon=epsilon, seed=seed)
        for epsilon, seeds in (("1", 3), ("8", 2))
        for seed in range(seeds)
    ]
    every = tables.collect(folders)
    whole = tables.table1(every, label)
    of_first = tables.table1(every[every["seed"] == 0], label)

    table, runs = with_earlier(every[every["seed"] > 0], label, of_first)
    for name in ("seeds", "mean", "std", "volume_accuracy"):
        assert table[name].tolist() == pytest.approx(whole[name].tolist())
    assert len(runs) == 5

    nothing, _ = earlier(tmp_path / "none.csv")
    pd.testing.assert_frame_equal(with_earlier(every, label, nothing)[0], whole)

    again, runs = with_earlier(every, label, whole.assign(mean=0.0))
    pd.testing.assert_frame_equal(again, whole)  # all runs are here
    assert len(runs) == 5

    fewer, runs = with_earlier(every[every["seed"] == 1], label, whole)
    assert fewer["mean"].tolist() == whole["mean"].tolist()  # the kept cells have this seed
    assert len(runs) == 5


def test_the_paper_s_figures_stand_beside_the_cells_of_their_arm_and_epsilon_alone():
    table = pd.DataFrame({"arm": ["federated", "federated", "central", "secure"], "epsilon": ["1", "2", "inf", "1"]})
    joined, rows = beside_printed(table)
    assert joined["printed"].fillna(0).tolist() == [81.65, 0, 90.89, 0]
    assert joined["printed_std"].fillna(0).tolist() == [1.03, 0, 1.41, 0]
    assert rows[0] == ("the paper, printed", "federated", "81.65 ± 1.03", "–", "90.12 ± 1.26")
