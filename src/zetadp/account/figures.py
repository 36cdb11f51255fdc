"""The numbers of a privacy statement: epsilons, trade-off curves and what follows from them, as its JSON holds them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from zetadp.account.exposure import (
    Run,
    accountant,
    declared,
    declared_together,
    distinct,
    over_runs,
    promised,
    total,
)
from zetadp.account.totals import Total
from zetadp.accounting import composition
from zetadp.accounting.composition import Exposure
from zetadp.accounting.events import NodeHistory
from zetadp.accounting.threat import Unit
from zetadp.base.epsilon import FALSE_ALARMS

CURVE = (0.001, *FALSE_ALARMS, 0.2, 0.3, 0.5, 0.7, 0.9)
"""Rates of false alarms at which a statement has points of its trade-off curve."""
SMALL_DELTAS = (1e-5, 1e-6)
RECORDS_OF_ONE_PERSON = (2, 6)


def figures_of(
    runs: Sequence[Run], unit: Unit, delta: float, apart: Mapping[str, Exposure] | None = None
) -> dict[str, Any]:
    """Return the epsilons of runs together for the most exposed person, as servers see them, and what follows.

    Statements of totals call the runs with noise ``private_rows``, after the rows of a table of results, and all runs
    ``all_rows``.

    Parameters
    ----------
    runs, unit, delta
        The runs, and what their epsilons are for.
    apart
        Of a single run: exposures of its nodes that compose for a person with records at two of them.
    """
    if not runs:
        nothing = dict.fromkeys(("accountant", "mu", "worst_node", "records_of_one_person", "trade_off"))
        return {**nothing, "epsilon": 0.0, "nodes": {}, "smaller_deltas": []}
    together = Total.of(runs, delta)
    totals, beforehand = over_runs(runs, delta, measure=promised), together.basis == "declared"
    costs = {node: promised(exposure, delta, beforehand=beforehand) for node, exposure in totals.items()}
    worst = max(costs, key=lambda node: costs[node])
    return {
        "epsilon": number(together.epsilon),
        **basis_of(together),
        "accountant": accountant(totals.values(), delta, beforehand=beforehand),
        "mu": number(composition.exact_mu(totals[worst])) if beforehand else None,
        "worst_node": worst,
        "nodes": {node: number(value) for node, value in costs.items()},
        # The worst node there may be another one.
        "smaller_deltas": [
            {"delta": small, "epsilon": number(total(runs, small, measure=promised))}
            for small in SMALL_DELTAS
            if small < delta
        ],
        "records_of_one_person": None
        if unit != "record"
        else _records_of_one_person(apart or totals, delta, beforehand=beforehand, apart=apart is not None),
        "trade_off": curve_of(runs, totals, unit),
    }


def curve_of(runs: Sequence[Run], totals: Mapping[str, Exposure], unit: Unit) -> dict[str, Any] | None:
    """Return points of the trade-off curve of runs together, whose exposures are given by node; None if it is unknown.

    No curve is computed for many images together, whose epsilon is too large for a useful curve, nor for what was
    chosen after earlier results, where the curve holds up to a limit only.
    """
    if any(run.images for run in runs) or not (declared_together(runs) and _follows_from_node(runs)):
        return None
    kinds = distinct(totals.values())
    curves = [composition.trade_off(total, CURVE) for total in kinds]
    return {
        "meaning": f"for each rate of false alarms, the least rate of misses when looking for one {unit}",
        "false_alarms": list(CURVE),
        "misses": [min(rates) for rates in zip(*curves, strict=True)],
    }


def _follows_from_node(runs: Sequence[Run]) -> bool:
    """Return whether a patient's node in one division of the cohort determines the exposure over all runs.

    If it does not, the worst exposure at one delta need not be the worst along the whole curve.
    """
    divisions = {run.division for run in runs}
    kinds = [distinct(declared(history, run.declared_rounds) for history in run.nodes.values()) for run in runs]
    return len(divisions) == 1 or all(len(of_run) == 1 for of_run in kinds)


def _records_of_one_person(
    totals: Mapping[str, Exposure], delta: float, *, beforehand: bool, apart: bool
) -> list[dict[str, Any]]:
    """Return epsilon for a person behind several records, all on one node and, if asked for, two ``apart``."""
    kinds = distinct(totals.values())

    def row(records: int, nodes: int, exposures: Iterable[Exposure]) -> dict[str, Any]:
        epsilon = number(worst_epsilon(exposures, delta, beforehand=beforehand))
        return {"records": records, "nodes": nodes, "epsilon": epsilon}

    rows = [
        row(records, 1, (composition.grouped(total, records) for total in kinds)) for records in RECORDS_OF_ONE_PERSON
    ]
    pairs = [composition.compose(first, second) for first, second in itertools.combinations(totals.values(), 2)]
    return [*rows, row(2, 2, distinct(pairs))] if apart and pairs else rows


def figures_of_node(history: NodeHistory, total: Exposure, run: Run, *, summed: bool) -> dict[str, Any]:
    """Return the constants and releases of a node, and their cost as the server sees it."""
    in_sum = {"in_the_sum": _mechanisms(total)} if summed else {}
    return {
        "population": history.population,
        "expected": history.expected,
        "clip": number(history.clip),
        "rounds": history.rounds,
        "mechanisms": _mechanisms(history.mechanisms),
        **in_sum,
        "epsilon": number(promised(total, run.delta, beforehand=not run.repeated)),
        "epsilon_rdp": number(composition.epsilon_rdp(total, run.delta)),
        "mu": number(composition.exact_mu(total)),
    }


def _mechanisms(exposure: Exposure) -> list[dict[str, Any]]:
    return [{**kind.values(), "releases": count} for kind, count in composition.ordered(exposure)]


def number(value: float | None) -> float | str | None:
    """Return a number as JSON can hold it: infinity becomes a string. None, for a number that is unknown, stays."""
    return value if value is None else "inf" if value == math.inf else float(value)


def basis_of(total: Total) -> dict[str, Any]:
    """Return the entries of a statement on a total that is not a promise as a whole; none for one that is."""
    if total.basis == "declared":
        return {}
    return {"basis": total.basis, "spent": number(total.spent), "promise": str(total)}


def worst_epsilon(exposures: Iterable[Exposure], delta: float, *, beforehand: bool) -> float:
    """Return the largest epsilon of any of some exposures, as `promised`."""
    return max(promised(exposure, delta, beforehand=beforehand) for exposure in exposures)
