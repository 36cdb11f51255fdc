"""Write the score of every run of a paper's scenarios, one row per seed.

    python -m papers.seeds PAPER SCENARIO ...

writes seeds.csv to the folder of the paper's tables, from the ``metrics.json`` of the declared runs. Means and
deviations of other tables can be computed from it.
"""

from __future__ import annotations

import argparse

import pandas as pd

from papers import sizes
from papers.experiments import Experiment, declared_by, ended, marked
from zetadp.base.storage import write_text
from zetadp.report.provenance import origin
from zetadp.report.rendering import to_csv


def scores(experiments: dict[str, Experiment]) -> pd.DataFrame:
    """Return the score in % of every declared run, with the commit that trained it.

    Parameters
    ----------
    experiments
        The experiments, by the names of their scenarios.

    Returns
    -------
    Data frame with one row per run: scenario, network, arm, epsilon, seed, metric, score, commit.
    """
    rows = []
    for scenario, experiment in experiments.items():
        for network, arm, epsilon in experiment.cells:
            for seed, metrics in experiment.metrics(network, arm, epsilon).items():
                run = {"scenario": scenario, "network": network, "arm": arm, "epsilon": epsilon, "seed": seed}
                score = {"metric": metrics["metric"], "score": 100 * metrics[metrics["metric"]]}
                rows.append({**run, **score, "commit": metrics.get("environment", {}).get("commit", "")})
    return pd.DataFrame(rows)


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paper")
    parser.add_argument("scenarios", nargs="+")
    arguments = parser.parse_args()
    experiments = {scenario: Experiment.of(scenario) for scenario in arguments.scenarios}
    trained = [environment for experiment in experiments.values() for environment in experiment.environments()]
    source = origin(*declared_by(*arguments.scenarios), runs=trained)
    path = sizes.tables() / arguments.paper / "seeds.csv"
    write_text(path, to_csv(scores(experiments), marked(source), float_format="%.10g"))
    print(f"{path}: {len(trained)} runs")


if __name__ == "__main__":
    ended(main)
