import json
import math

import numpy as np
import pandas as pd
import pytest
from run_builder import write_run

from zetadp.base.epsilon import Target
from zetadp.base.validation import UserError
from zetadp.report.notes import notes
from zetadp.report.provenance import Cohort
from zetadp.report.tables import collect, histories, per_node, table1

COHORT = Cohort("cohort", simulated=True)


@pytest.fixture
def three_seeds(tmp_path):
    # Accuracies 0.5, 0.6 and 0.85 over patients a and b with 20 images each.
    rights = [{"a": 10, "b": 10}, {"a": 4, "b": 20}, {"a": 14, "b": 20}]
    return collect([write_run(tmp_path, right, seed=seed) for seed, right in enumerate(rights)])


def test_mean_and_spread_are_those_of_the_seeds(three_seeds):
    (row,) = table1(three_seeds, COHORT).to_dict("records")
    assert row["seeds"] == 3
    assert row["mean"] == pytest.approx(65.0)
    assert row["std"] == pytest.approx(100 * math.sqrt((0.15**2 + 0.05**2 + 0.2**2) / 2))
    assert (row["network"], row["arm"], row["epsilon"]) == ("complex", "federated", Target(3))
    assert (row["cohort"], row["unit"], row["noise"], row["patients"]) == ("simulated cohort", "patient", "seeded", 2)


def test_interval_resamples_patients_jointly_over_seeds(three_seeds):
    # Averaged over seeds a has 28/60 and b 50/60. A resample of two patients is aa, ab or bb, the same for all seeds,
    # so the ends of the interval are exactly the two patients. Independent resamples would reach them far less often.
    (row,) = table1(three_seeds, COHORT).to_dict("records")
    assert row["ci_low"] == pytest.approx(100 * 28 / 60)
    assert row["ci_high"] == pytest.approx(100 * 50 / 60)


def test_a_metric_that_is_no_mean_over_patients_brings_its_resamples(tmp_path):
    folders = [write_run(tmp_path, {"a": 10, "b": 10}, seed=seed) for seed in (0, 1)]
    random = np.random.default_rng(0)
    drawn = random.uniform(0.6, 0.9, (2, 400))
    for folder, own in zip(folders, drawn, strict=True):
        metrics = json.loads((folder / "metrics.json").read_text())
        metrics |= {"metric": "area", "area": 0.75, "area_interval": metrics["accuracy_interval"]}
        (folder / "metrics.json").write_text(json.dumps({**metrics, "replicates": own.tolist()}))
    runs = collect(folders)
    (row,) = table1(runs, COHORT).to_dict("records")
    assert [row["ci_low"], row["ci_high"]] == pytest.approx(100 * np.quantile(drawn.mean(axis=0), [0.025, 0.975]))
    assert row["metric"] == "area"
    assert any("area is measured on 2 held-out test patients" in note for note in notes(runs, COHORT))


def test_one_seed_has_no_spread_but_an_interval(tmp_path):
    (row,) = table1(collect([write_run(tmp_path, {"a": 10, "b": 14})]), COHORT).to_dict("records")
    assert math.isnan(row["std"])
    assert row["ci_low"] < row["mean"] < row["ci_high"]


def test_epsilons_are_ordered_as_numbers_with_infinity_and_unclipped_last(tmp_path):
    labels = ["10", "inf", "0.5", "unclipped", "3"]
    runs = collect([write_run(tmp_path, {"a": 10, "b": 12}, epsilon=label) for label in labels])
    table = table1(runs, COHORT)
    assert [str(target) for target in table["epsilon"]] == ["0.5", "3", "10", "inf", "unclipped"]
    assert list(table["noise"]) == ["seeded", "seeded", "seeded", "none", "none"]


def test_a_run_that_spent_more_than_its_name_says_is_told_to_the_reader(tmp_path):
    """A round released again after an interruption costs more than planned; the table must not hide it."""
    above = collect([_spent(tmp_path / "above", "3", 3.1)])
    assert above["epsilon_stated"].item() == 3.1
    assert [note for note in notes(above, COHORT) if "stated ε is 3.1" in note and "ε = 3, seed 0" in note]
    below = collect([_spent(tmp_path / "below", "3", 2.9)])
    assert not [note for note in notes(below, COHORT) if "stated" in note]


@pytest.mark.parametrize(("target", "stated"), [("3", "inf"), ("inf", 3.0), ("unclipped", 3.0)])
def test_a_statement_about_another_kind_of_run_is_refused(tmp_path, target, stated):
    with pytest.raises(UserError, match="as the run's name says"):
        collect([_spent(tmp_path, target, stated)])


def _spent(root, target, stated):
    folder = write_run(root, {"a": 1, "b": 2}, epsilon=target)
    statement = json.loads((folder / "privacy.json").read_text())
    (folder / "privacy.json").write_text(json.dumps(statement | {"epsilon": stated}))
    return folder


def test_seeds_under_different_guarantees_are_not_averaged(tmp_path):
    runs = collect([write_run(tmp_path, {"a": 1}), write_run(tmp_path, {"a": 2}, seed=1, delta=1e-5)])
    with pytest.raises(UserError, match="one delta for all seeds of complex, federated, 3"):
        table1(runs, COHORT)


def test_missing_and_doubled_runs_are_named(tmp_path):
    with pytest.raises(UserError, match="at least one finished run"):
        collect([])
    with pytest.raises(UserError, match=r"absent/metrics\.json"):
        collect([tmp_path / "absent"])
    folder = write_run(tmp_path, {"a": 1})
    with pytest.raises(UserError, match="second one of the same cell"):
        collect([folder, folder])
    (folder / "privacy.json").write_text('{"epsilon": 3}')
    with pytest.raises(UserError, match=r"privacy\.json, found no delta"):
        collect([folder])
    for table in (lambda runs: table1(runs, COHORT), histories, per_node):
        with pytest.raises(UserError, match="at least one finished run"):
            table(pd.DataFrame())


def test_per_node_shows_the_largest_epsilon_and_the_nodes_accuracy(tmp_path):
    nodes = {"node-01": {"population": 30, "epsilon": 2.0}, "central": {"population": 9, "epsilon": 1.5}}
    more = {"node-01": {"population": 30, "epsilon": 2.5}, "central": {"population": 9, "epsilon": 1.0}}
    runs = collect([write_run(tmp_path, {"a": 1}, nodes=nodes), write_run(tmp_path, {"a": 1}, seed=1, nodes=more)])
    table = per_node(runs).set_index("node")
    assert table.loc["node-01", "epsilon_node"] == 2.5
    assert table.loc["central", "epsilon_node"] == 1.5
    assert table.loc["node-01", "accuracy"] == 50
    assert math.isnan(table.loc["central", "accuracy"])
