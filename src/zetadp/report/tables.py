"""Tables of finished runs: the task's metric against epsilon, and by node.

Every table is a long-form data frame with shares in percent; `zetadp.report.rendering` prints it. Tables come from the
files of the runs (``metrics.json``, ``privacy.json``, ``history.csv``) and from nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sized
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from zetadp.account.offers import offer
from zetadp.accounting.threat import PERSONS
from zetadp.base.epsilon import Target
from zetadp.base.randomness import Purpose, stream
from zetadp.base.runfolder import RunFolder, RunName
from zetadp.base.storage import read_json
from zetadp.base.validation import UserError
from zetadp.report.provenance import Cohort
from zetadp.training.metrics import LEVEL, accuracy_interval

CELL = ["network", "arm", "epsilon"]
MEASURED = ("metric", "per_patient", "per_patient_images")
OF_CLASSES = ("confusion", "classes", "called")
"""Keys of ``metrics.json`` for classification only, as far as tables need them."""
REPLICATES = "replicates"
"""The metric in resamples of patients, if it is not a mean over patients. Runs on the same patients share resamples."""
STATED = ("delta", "unit", "noise_source", "nodes")
# Calibration stays below the target, so an excess beyond rounding was not planned, and a note reports it.
EPSILON_TOLERANCE = 1e-9


def metric_shown(metric: str) -> str:
    """Return the name of a metric for reading."""
    return "AUC" if metric == "auc" else metric


def chance_of(runs: pd.DataFrame) -> float | None:
    """Return the score of guessing, in %: 50 for an AUC, else 100 over the number of classes; None without classes."""
    if runs["classes"].iloc[0] is None:
        return None
    return 50.0 if runs["metric"].iloc[0] == "auc" else 100 / len(runs["classes"].iloc[0])


def chance_named(chance: float) -> str:
    """Return the label of the score of guessing in figures."""
    return f"guessing, {chance:g} %"


def seeds_in_words(seeds: pd.Series) -> str:
    """Return the number of seeds of cells in words: ``one seed``, ``3 seeds``, or ``1 to 3 seeds``."""
    fewest, most = int(seeds.min()), int(seeds.max())
    if most == 1:
        return "one seed"
    return f"{most} seeds" if fewest == most else f"{fewest} to {most} seeds"


def private_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of runs or cells with noise, and therefore a guarantee."""
    private: pd.DataFrame = table[_with_noise(table)]
    return private


def best_without_noise(table: pd.DataFrame) -> pd.DataFrame:
    """Return the row of `table1` with the best mean without noise; none if all runs have noise."""
    free: pd.DataFrame = table[~_with_noise(table)]
    return free.nlargest(1, "mean")


def _with_noise(table: pd.DataFrame) -> pd.Series[bool]:
    return table["epsilon"].map(lambda target: target.private).astype(bool)


def read_table1(path: Path) -> pd.DataFrame:
    """Read `table1` from its CSV."""
    return pd.read_csv(path, comment="#", converters={"epsilon": Target.named})


def leading_network(table: pd.DataFrame) -> str:
    """Return the network of a report: the first one with a guarantee, or the first network without any guarantee."""
    return str(next(iter([*private_rows(table)["network"], *table["network"]])))


def holders(table: pd.DataFrame) -> str:
    """Return the word for the held-out units: patients, speakers, or records if the persons are unknown."""
    units = set(table["unit"])
    return f"{units.pop()}s" if units in ({"record"}, {"speaker"}) else "patients"


def collect(run_dirs: Iterable[Path]) -> pd.DataFrame:
    """Read ``metrics.json`` and ``privacy.json`` of each run into one row.

    Parameters
    ----------
    run_dirs
        Folders of finished runs.

    Returns
    -------
    Data frame with networks and arms in the order of ``run_dirs``, then sorted by epsilon and seed. ``value`` is the
    task's ``metric``, in [0, 1]. ``epsilon`` is the `Target` that names the run, ``epsilon_stated`` the figure of its
    privacy statement, and ``threat`` the statement's threat model. ``epsilon_single_messages`` is None unless that is
    masked sums. ``notes`` are sentences of the task, and ``further`` the names of its further metrics, which have a
    column each. The columns ``notes``, ``further``, ``per_patient``, ``per_patient_images``, ``confusion``,
    ``classes``, ``nodes`` and ``node_metric`` hold objects. The columns of `OF_CLASSES` are None for tasks without
    classes.

    Raises
    ------
    UserError
        If no run is given, a file or key is missing, a run occurs twice, or a statement exceeds the run's target.
    """
    rows = [_row(directory) for directory in run_dirs]
    not_empty(rows)
    runs = pd.DataFrame(rows)
    twice = runs[runs.duplicated([*CELL, "seed"])]
    if not twice.empty:
        raise UserError(
            f"Expected each run once, found a second one of the same cell and seed in {twice.iloc[0]['directory']}."
        )
    return ordered(runs, "seed")


def histories(runs: pd.DataFrame) -> pd.DataFrame:
    """Stack the ``history.csv`` of each run; a `UserError` names a file that cannot be read.

    Parameters
    ----------
    runs
        Result of `collect`.

    Returns
    -------
    Data frame sorted like `collect`, then by round. In addition to the columns of ``history.csv`` it has those of the
    run's name and guarantee, ``metric``, and ``value``: that metric, in [0, 1], on validation patients.
    """
    not_empty(runs)
    parts = []
    for run in runs.to_dict("records"):
        path = RunFolder(Path(run["directory"])).history
        try:
            history = pd.read_csv(path)
        except (OSError, ValueError) as error:
            raise UserError(f"Cannot read {path} as a table: {error}. Run the training of this run again.") from error
        watched = [name for name in history.columns if name.startswith("validation_") and name != "validation_loss"]
        history = history.rename(columns=dict.fromkeys(watched, "value"))
        of_run = {key: run[key] for key in (*CELL, "seed", "unit", "delta", "noise_source", "threat")}
        parts.append(history.assign(**of_run, metric=watched[0].removeprefix("validation_")))
    return ordered(pd.concat(parts, ignore_index=True), "seed", "round")


def table1(runs: pd.DataFrame, cohort: Cohort) -> pd.DataFrame:
    """Return the task's metric against epsilon, one row for each network, arm and epsilon.

    Parameters
    ----------
    runs
        Result of `collect`.
    cohort
        The cohort.

    Returns
    -------
    Data frame with the metric in %. ``mean`` and ``std`` (denominator n - 1) are over seeds; ``std`` is missing with
    one seed. ``ci_low`` and ``ci_high`` bound the mean over seeds for the population of patients: patients are
    resampled, and each resample is used for all seeds. ``noise`` is "none" if epsilon is infinite. ``epsilon_stated``
    is the largest over seeds. ``epsilon_per_patient`` is the same for a whole patient: it differs if single images were
    drawn, and is missing if the persons behind the records are unknown. ``public_start`` is the metric of the public
    starting weights before any private training, and missing for other networks. Each of the task's ``further``
    metrics has a column, whose name ends in that of the metric.

    Raises
    ------
    UserError
        If no run is given, or the seeds of a cell have different units, deltas, metrics, threats or noise.
    """
    not_empty(runs)
    rows = []
    further = dict.fromkeys(name for names in runs["further"] for name in names)
    for cell, group in _cells(runs):
        mean, std = _mean_std(group["value"])
        low, high = _joint_interval(group)
        rows.append(
            {
                **dict(zip(CELL, cell, strict=True)),
                "seeds": len(group),
                "metric": _common(group, "metric"),
                "mean": mean,
                "std": std,
                "ci_low": 100 * low,
                "ci_high": 100 * high,
                **{key: 100 * float(group[key].mean()) for key in ("public_start", *further)},
                "cohort": str(cohort),
                "unit": _common(group, "unit"),
                "threat": _common(group, "threat"),
                "noise": "none" if not cell[2].private else _common(group, "noise_source"),
                "delta": _common(group, "delta"),
                "epsilon_stated": group["epsilon_stated"].max(),
                "epsilon_per_patient": group["epsilon_per_patient"].max(),
                "patients": len(set().union(*group["per_patient"])),
            }
        )
    return pd.DataFrame(rows)


def per_node(runs: pd.DataFrame) -> pd.DataFrame:
    """Return epsilon and the task's metric of each node: nodes of different sizes have different epsilons.

    Returns
    -------
    Data frame with ``epsilon_node``, the largest over seeds, and two columns named after the metric, such as
    ``accuracy`` and ``accuracy_std``: its mean and standard deviation over seeds, in %, on the node's validation
    patients. They are missing if nothing was measured.
    """
    not_empty(runs)
    rows = []
    for cell, group in _cells(runs):
        metric = group["metric"].iloc[0]
        # A node's size may depend on the seed, so each size has a row.
        spent: dict[tuple[str, int], list[float]] = {}
        reached: dict[tuple[str, int], list[float | None]] = {}
        for nodes, measured in zip(group["nodes"], group["node_metric"], strict=True):
            for name, node in nodes.items():
                key = (name, int(node["population"]))
                spent.setdefault(key, []).append(float(node["epsilon"]))
                reached.setdefault(key, []).append(measured.get(name))
        for key, values in spent.items():
            mean, std = _mean_std(pd.Series(reached[key], dtype=float))
            row = {"node": key[0], "population": key[1], "seeds": len(values), "epsilon_node": max(values)}
            rows.append({**dict(zip(CELL, cell, strict=True)), **row, metric: mean, f"{metric}_std": std})
    return pd.DataFrame(rows)


def _row(directory: Path) -> dict[str, Any]:
    """Read one run, and refuse it if only one of its name and its privacy statement has a finite epsilon."""
    metrics_path, privacy_path = RunFolder(directory).metrics, RunFolder(directory).privacy
    metrics = _keys(read_json(metrics_path), metrics_path, "run", *MEASURED, "node_metric")
    _keys(metrics, metrics_path, metrics["metric"])
    privacy = _keys(read_json(privacy_path), privacy_path, "epsilon", *STATED, "threat", "of_all_images")
    run, spent = _name(metrics["run"], metrics_path), float(privacy["epsilon"])
    if run.target.private != math.isfinite(spent):
        raise UserError(
            f"Expected {'a finite epsilon' if run.target.private else 'no guarantee'} in {privacy_path}, as the run's "
            f"name says, found epsilon {spent:g}. "
            f"{offer('restore the run in its folder from a backup', 'train it again')}"
        )
    threat, whole = privacy["threat"], privacy["of_all_images"] or privacy
    single = threat.get("epsilon_single_messages")
    return {
        **dict(zip((*CELL, "seed"), (run.network, run.arm, run.target, run.seed), strict=True)),
        **{key: metrics[key] for key in MEASURED},
        **{key: metrics.get(key) for key in (*OF_CLASSES, REPLICATES)},
        "value": metrics[metrics["metric"]],
        "notes": metrics.get("notes", []),
        "public_start": metrics.get("public_start", math.nan),
        "further": (further := metrics.get("further", [])),
        **{key: metrics[key] for key in further},
        "epsilon_stated": spent,
        **{key: privacy[key] for key in STATED},
        "threat": threat["model"],
        "colluding": (threat.get("sums") or {}).get("colluding"),
        "epsilon_single_messages": None if single is None else float(single),
        "epsilon_per_patient": float(whole["epsilon"]) if whole["unit"] in PERSONS else math.nan,
        "node_metric": metrics["node_metric"],
        "directory": directory.as_posix(),
    }


def _name(run: Mapping[str, Any], path: Path) -> RunName:
    """Return the name of a run that a file holds."""
    return RunName.from_json(_keys(run, path, *CELL, "seed"))


def _keys(content: Mapping[str, Any], path: Path, *keys: str) -> Mapping[str, Any]:
    """Return ``content`` if it has all ``keys``, or raise a `UserError` that names the file and the missing ones."""
    missing = [key for key in keys if key not in content]
    if missing:
        raise UserError(
            f"Expected {', '.join(keys)} in {path}, found no {', '.join(missing)}. Delete the file and run again."
        )
    return content


def ordered(frame: pd.DataFrame, *then: str) -> pd.DataFrame:
    """Sort by network, arm and epsilon as a number (infinity last), then by the columns ``then``.

    Networks, and the arms of each, stay in the order of their first rows, which is that of the configuration.
    """
    ranks = {
        "_network": frame.groupby("network", sort=False).ngroup(),
        "_arm": frame.groupby(["network", "arm"], sort=False).ngroup(),
    }
    order = frame.assign(**ranks).sort_values([*ranks, "epsilon", *then], kind="stable", ignore_index=True)
    return order.drop(columns=[*ranks])


def not_empty(runs: Sized) -> None:
    """Raise a `UserError` for an empty sequence of runs."""
    if not len(runs):
        raise UserError(
            "Expected at least one finished run, found none. Train first: the runs lie under results/NAME/runs."
        )


def _cells(runs: pd.DataFrame) -> list[tuple[tuple[str, str, Target], pd.DataFrame]]:
    """Return the runs of each network, arm and epsilon, in order."""
    return [
        ((str(n), str(a), cast("Target", target)), group)
        for (n, a, target), group in ordered(runs).groupby(CELL, sort=False)
    ]


def _mean_std(fractions: pd.Series) -> tuple[float, float]:
    """Return mean and standard deviation (n - 1) in %; the latter is NaN for a single value."""
    return 100 * float(fractions.mean()), 100 * float(fractions.std(ddof=1))


def _joint_interval(group: pd.DataFrame) -> tuple[float, float]:
    """Return the interval of the seed-averaged metric, as a fraction, resampling patients jointly over seeds."""
    if group[REPLICATES].notna().all():
        tail = (1 - LEVEL) / 2
        low, high = np.quantile(np.mean(np.stack(group[REPLICATES].to_list()), axis=0), [tail, 1 - tail])
        return float(low), float(high)
    patients = sorted(set().union(*group["per_patient"]))
    images = np.array([[n.get(patient, 0) for n in group["per_patient_images"]] for patient in patients], dtype=float)
    share = np.array([[a.get(patient, 0.0) for a in group["per_patient"]] for patient in patients], dtype=float)
    return accuracy_interval(share * images, images, stream(0, Purpose.BOOTSTRAP))


def _common(group: pd.DataFrame, column: str) -> Any:  # noqa: ANN401  (text or number, as the statement has it)
    """Return the value that all seeds of a cell share: an average over different guarantees is meaningless."""
    values = group[column].unique()
    if len(values) != 1:
        text = ", ".join(str(value) for value in values)
        cell = ", ".join(str(group[key].iloc[0]) for key in CELL)
        raise UserError(
            f"Expected one {column} for all seeds of {cell}, found {text}. Train the runs again with one setting."
        )
    return values[0]
