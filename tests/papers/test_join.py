"""A joined table is that of the finished runs of its scenarios, and made again it is the kept one."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from papers.experiments import Experiment
from papers.join import collect, declared_joins, scenarios_of
from zetadp.base.validation import UserError

ROOT = Path(__file__).parents[2]
JOINS = [
    (folder.parent.name, table) for folder in sorted((ROOT / "papers").glob("*/paper.yaml"))
    for table in declared_joins(folder.parent.name)
]  # fmt: skip


def write_table(results: Path, rows: list[dict]) -> None:
    (results / "tables").mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(results / "tables/table1.csv", index=False)
    speakers = [{**row, "epsilon_per_speaker": row.get("epsilon_per_speaker", 0)} for row in rows]
    pd.DataFrame(speakers).to_csv(results / "tables/speakers.csv", index=False)


def finished(join: dict, scenario: str, kept: pd.DataFrame, results: Path) -> Experiment:
    """Return a scenario whose runs had the results that a kept table has."""
    experiment = Experiment.of(scenario, results)
    rows = []
    for (network, arm, epsilon), runs in experiment.cells.items():
        own = kept[kept["epsilon"] == epsilon]
        for label, values in join["labels"].items():
            own = own[own[label].astype(str) == str(values[scenario])]
        if "method" in own:
            own = own[own["method"] == join["methods"][f"{network}/{arm}"]]
        else:
            own = own[(own["network"] == network) & (own["arm"] == arm)]
        rows.append({**own.iloc[0].to_dict(), "network": network, "arm": arm, "seeds": len(runs)})
    write_table(results, rows)
    return experiment


@pytest.mark.parametrize(("paper", "table"), JOINS)
def test_made_again_from_the_same_runs_a_joined_table_is_the_kept_one(paper, table, tmp_path):
    join = declared_joins(paper)[table]
    kept = pd.read_csv(ROOT / f"papers/{paper}/results/{table}.csv", comment="#", dtype={"epsilon": str})
    experiments = {name: finished(join, name, kept, tmp_path / name) for name in scenarios_of(join)}
    made = collect(join, experiments)
    names = [
        *join["labels"],
        "method" if "method" in made else "network",
        *(["arm"] if "arm" in made else []),
        "epsilon",
    ]
    columns = [column for column in join["columns"] if column in kept and column not in ("printed", "printed_epsilon")]
    both = made.set_index(names)[columns[len(names) :]]
    expected = kept.set_index(names)[columns[len(names) :]].reindex(both.index)
    pd.testing.assert_frame_equal(both, expected, check_dtype=False)
    # Beside them stand what the paper prints, without seeds, and what public data alone reach.
    assert len(kept[kept["seeds"].notna() & (kept["epsilon"] != "0")]) == len(made)
    printed = made["printed"].dropna() if "printed" in made else []
    assert len(printed) == len(join.get("printed", []))


@pytest.mark.parametrize("seeds", [0, 1, 3])
def test_a_table_of_other_runs_than_the_declared_is_refused(seeds, tmp_path):
    experiment = Experiment.of("phantom_full", tmp_path)
    with pytest.raises(UserError, match=r"found no .*table1\.csv"):
        experiment.table()
    declared = experiment.cells
    rows = [{"network": n, "arm": a, "epsilon": e, "seeds": len(runs)} for (n, a, e), runs in declared.items()]
    write_table(tmp_path, rows)
    assert len(experiment.table()) == len(declared)
    cell = {"network": "tuned", "arm": "federated", "epsilon": "8"}
    write_table(tmp_path, [{**row, "seeds": seeds} if cell.items() <= row.items() else row for row in rows])
    with pytest.raises(UserError, match=rf"Expected 2 runs of tuned, federated, 8 .* found {seeds}\."):
        experiment.table()


def test_a_cell_that_the_scenario_does_not_declare_is_refused(tmp_path):
    with pytest.raises(UserError, match="shaped, federated, epsilon 3"):
        Experiment.of("phantom_full", tmp_path).metrics("shaped", "federated", "3")
