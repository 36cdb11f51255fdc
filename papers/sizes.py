"""The sizes in which a paper is repeated: ``smoke``, ``short`` and ``whole``.

``short`` is what papers/PAPER/results holds, ``whole`` also the scenarios of days that paper.yaml lists under
``whole``. A ``smoke`` runs the scenarios of both with 20 patients, three rounds, and one seed and epsilon of the first
network of each block of runs. Programs take the smaller of two values of each constant (`by_size`), and a few hundred
simulated digits in place of MNIST and Fashion-MNIST. Results of a smoke stay apart: experiments and cohorts get another
name, which figures and tables of the workflow show, and tables go to results/papers/smoke. It shows that commands work;
its figures mean nothing.
"""

from __future__ import annotations

import os
from collections.abc import Container
from pathlib import Path
from typing import Any, TypeVar

from zetadp.config.load import overlay, read_overlaid
from zetadp.config.sections import TaskSection
from zetadp.nn.settings import FEATURES

ROOT = Path(__file__).parents[1]
SIZES = SMOKE, SHORT, WHOLE = ("smoke", "short", "whole")
VARIABLE = "ZETADP_PAPER_SIZE"
"""Environment variable that tells the programs of a paper which size `papers.__main__` was asked for."""
PATIENTS = {"train_patients": 14, "test_patients": 6}
ROUNDS, EXPECTED, NODES, GRID = 3, 2, 2, [32, 32, 24]
Value = TypeVar("Value")


def current() -> str:
    """Return the size of this process, ``short`` if nothing asked for another."""
    return os.environ.get(VARIABLE, SHORT)


def by_size(value: Value, smoke: Value) -> Value:
    """Return a constant of a program: its value, or the smaller one that a smoke has."""
    return smoke if current() == SMOKE else value


def tables(size: str | None = None) -> Path:
    """Return the folder of all papers' tables of a size, by default of the current one."""
    return Path("results/papers") / (SMOKE if (size or current()) == SMOKE else "")


def stored(name: str) -> Path:
    """Return the folder in which programs store runs, features and weights, by its name."""
    return by_size(Path("results"), smoke=tables()) / name


def content(file: str, size: str | None = None) -> dict[str, Any]:
    """Return the configuration of a scenario over the default one, as a size has it."""
    configuration = read_overlaid([ROOT / "config.yaml", ROOT / file])
    if (size or current()) == SMOKE:
        overlay(configuration, smoke(configuration))
    return configuration


def list_scenarios(declared: dict[str, Any], size: str) -> list[tuple[str, str | None]]:
    """Return the scenarios of a size that a paper.yaml lists: the file of each, and the name of the data it needs."""
    scenarios = declared.get("scenarios", []) + (declared.get("whole", []) if size != SHORT else [])
    return [(entry, None) if isinstance(entry, str) else next(iter(entry.items())) for entry in scenarios]


def reason_to_omit(program: dict[str, Any], size: str, data: Container[str]) -> str:
    """Return why a program of a paper.yaml is not run in a size, as a relative clause; empty if it is run.

    Parameters
    ----------
    program
        What paper.yaml declares of it.
    size
        One of `SIZES`.
    data
        Names of the data that are given.
    """
    if "data" in program and program["data"] not in data:
        return f"which needs {program['data']}"
    if size == SMOKE:
        return "" if "smoke" in program else "which has no small form"
    return "which SIZE=whole runs" if size != WHOLE and program.get("size") == WHOLE else ""


def smoke(scenario: dict[str, Any]) -> dict[str, Any]:
    """Return the overlay that makes a smoke of a scenario.

    Parameters
    ----------
    scenario
        The scenario's configuration, over the default one.

    Returns
    -------
    Sections to lay over it. Its list of runs is empty if no run can be made small: data in a folder have the numbers
    that the scenario declares, and public networks that are not shipped take minutes to train.
    """
    networks, cohort = scenario["networks"], scenario["cohort"]
    shipped = of_brains(scenario)
    runs: list[dict[str, Any]] = []
    for block in scenario["runs"] if cohort["source"] != "folder" else []:
        network = block["networks"][0]
        if not shipped and (networks[network].get("domain") in FEATURES or networks[network].get("start") == "public"):
            continue
        every = [{"networks": [network], "arms": [arm], "epsilons": block["epsilons"][:1]} for arm in block["arms"]]
        seeds = {"seeds": [0]}
        runs += [run | seeds for run in every if run | seeds not in runs]
    nodes = min(scenario["partition"]["nodes"], NODES)
    watching = min(scenario["partition"]["validation_patients"], 1)
    return {
        "name": f"smoke-{scenario['name']}",
        "cohort": {
            "name": f"{cohort['name']}-smoke-no-result",
            **PATIENTS,
            **({"simulated": {"grid": GRID}} if shipped else {}),
        },
        "shards": 1,
        "partition": {"nodes": nodes, "validation_patients": watching},
        "networks": {
            name: {"training": _training(settings.get("training", {}))} for name, settings in networks.items()
        },
        "arms": {name: {"expected_patients": EXPECTED, "rounds": ROUNDS, "epochs": None} for name in scenario["arms"]},
        "audit": {"training": {"trials": 50}},
        "runs": runs,
    }


def of_brains(scenario: dict[str, Any]) -> bool:
    """Return whether a scenario is of the task whose public networks are shipped, and which audits the code."""
    return bool(scenario.get("task", {}).get("name", TaskSection.name) == TaskSection.name)


def _training(settings: dict[str, Any]) -> dict[str, Any]:
    """Return what a smoke changes in the training of a network."""
    small = {"rounds": ROUNDS, "expected_patients": EXPECTED}
    return {name: value for name, value in small.items() if name in settings}
