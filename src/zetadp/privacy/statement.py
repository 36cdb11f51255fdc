"""Privacy statements: what can be claimed for a run, or for all runs on a cohort, and what cannot.

A statement is a JSON object that gives unit, neighbours, sampling, audience and delta with every epsilon. `wording`
turns it into text. An infinite epsilon is the string ``"inf"``, as everywhere in the project.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from zetadp.base.epsilon import epsilon_value
from zetadp.base.validation import UserError
from zetadp.privacy import accounting, wording
from zetadp.privacy.accounting import Exposure
from zetadp.privacy.events import NodeHistory, Unit
from zetadp.privacy.exposure import (
    Run,
    accountant,
    cost,
    declared,
    declared_together,
    distinct,
    noise_of,
    over_runs,
    runs_of,
    seen_by,
    total,
)
from zetadp.privacy.ledger import Attempt, read_ledger
from zetadp.privacy.threat import MASKED_SUMS, NOTHING_HIDDEN, Audience, adversary, assumptions

NoiseSource: TypeAlias = Literal["seeded", "os"]

FALSE_ALARMS = (0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
SMALL_DELTAS = (1e-5, 1e-6)
RECORDS_OF_ONE_PERSON = (2, 6)


def run_statement(
    run: Run,
    *,
    weights: Mapping[str, float],
    target_epsilon: float,
    earlier: Sequence[Run] = (),
    backbone: str | None = None,
) -> dict[str, Any]:
    """Return the privacy statement of one run.

    Parameters
    ----------
    run
        The releases, and what the ledger declares: delta, unit, source of the noise, number of rounds. The figures are
        for the larger number of rounds.
    weights
        Public weight of each node in the server's average.
    target_epsilon
        Target epsilon of the calibration.
    earlier
        Earlier attempts of the run, finished or not. Their releases count too.
    backbone
        Hash of the public network from which weights or features came.
    """
    if set(weights) != set(run.nodes):
        raise ValueError(f"Expected a weight for each of the nodes {sorted(run.nodes)}, found {sorted(weights)}.")
    delta = run.delta
    unit: Unit = "image" if run.images else run.unit
    totals = seen_by(run, weights, "server") or {}
    epsilons = {node: accounting.epsilon(exposure, delta) for node, exposure in totals.items()}
    worst = max(epsilons, key=lambda node: epsilons[node])
    kinds = distinct(totals.values())
    summed = run.threat == MASKED_SUMS and run.private
    unhidden = any(each.private and each.noise == "seeded" for each in earlier)
    guarantee = _guarantee(private=run.private, noise_source=run.noise, simulated=unhidden)
    audiences = {audience: _audience(run, weights, audience, delta) for audience in _audiences(run)}
    alone = audiences["messages"] if summed else None
    together = _with_earlier(run, earlier)
    # In a sum, contributions of one person at two nodes are under the same noise, so their costs do not compose. The
    # costs of single messages compose and are an upper bound.
    open_totals = (seen_by(run, weights, "messages") or {}) if summed else totals
    whole = _of_all_images(run, run.unit, totals.values(), delta) if run.images else None
    return {
        "kind": "run",
        "name": run.name,
        "statement": wording.claim_sentence(guarantee, unit, epsilons[worst], delta, run, alone)
        + wording.whole_sentence(whole)
        + wording.earlier_sentence(together),
        "guarantee": guarantee,
        "earlier_attempts": together,
        "of_all_images": whole,
        "public": None if backbone is None else wording.public_sentences(unit, backbone),
        **wording.setting(unit, run.noise, noisy=run.private, directions=run.directions),
        "threat": {
            "model": run.threat,
            "sums": None if run.sums is None else {**asdict(run.sums), "shares": run.shares},
            "against": adversary(run.threat, run.sums) if run.private else "against nobody",
            "assumes": assumptions(run.threat, run.sums, run.shares) if run.private else NOTHING_HIDDEN,
            "epsilon_single_messages": alone and alone["epsilon"],
        },
        "delta": delta,
        "target_epsilon": _number(target_epsilon),
        "epsilon": _number(epsilons[worst]),
        "accountant": accountant(kinds, beforehand=True),
        "epsilon_rdp": _number(max(accounting.epsilon_rdp(total, delta) for total in kinds)),
        "mu": _exact_mu(totals[worst]),
        "worst_node": worst,
        "rounds": {
            "declared": run.declared_rounds,
            "happened": max(history.rounds for history in run.nodes.values()),
            "replayed": max(history.releases // history.count - history.rounds for history in run.nodes.values()),
        },
        "audiences": audiences,
        "smaller_deltas": [
            {"delta": small, "epsilon": _number(_worst(kinds, small))} for small in SMALL_DELTAS if small < delta
        ],
        "records_of_one_person": _records_of_one_person(open_totals, delta) if unit == "record" else None,
        "trade_off": _trade_off(kinds, unit),
        "nodes": {node: _node(history, totals[node], delta, summed=summed) for node, history in run.nodes.items()},
        "covers": wording.covers(unit),
        "does_not_cover": wording.does_not_cover(unit, summed=summed),
    }


def _of_all_images(run: Run, unit: Unit, totals: Iterable[Exposure], delta: float) -> dict[str, Any]:
    """Return the cost of a run that draws single images, for a patient or record with all of its images."""
    images = run.images or 1
    worst = max(accounting.epsilon_group(total, delta, images) for total in distinct(totals))
    return {"unit": unit, "images": images, "epsilon": _number(worst)}


def _with_earlier(run: Run, earlier: Sequence[Run]) -> dict[str, Any] | None:
    """Return the cost of this attempt and all earlier ones together, or None if there were none."""
    if not earlier:
        return None
    runs = [*earlier, run]
    epsilon = total(runs, run.delta) if all(each.private for each in runs) else math.inf
    seeded = sum(each.private and each.noise == "seeded" for each in earlier)
    found: dict[str, Any] = {"number": len(earlier), "epsilon_together": _number(epsilon), "seeded": seeded}
    if any(each.images for each in runs):
        found["counted"] = f"all images of a {run.unit} together"
    return found


def account_run(ledger: Path, model: Path, *, name: str) -> dict[str, Any]:
    """Return the statement of the attempt that made a model, which is the last one in the ledger.

    Parameters
    ----------
    ledger, model
        The run's sealed ledger, and its model, which contains the head of that ledger.
    name
        Name of the run in the statement.

    Raises
    ------
    UserError
        If the ledger does not record the run that made the model, or lacks lines.
    """
    from zetadp.base.tensors import load_tensors  # PyTorch takes seconds to import

    attempts = read_ledger(ledger)
    if not attempts or load_tensors(model)[1].get("ledger_head") not in attempts[-1].heads:
        raise UserError(
            f"Expected {ledger} to record the run that made {model}, found another or none, or lines are missing at "
            "its end. Train the model again."
        )
    return last_statement(attempts, name)


def last_statement(attempts: Sequence[Attempt], name: str) -> dict[str, Any]:
    """Return the statement of the last attempt in a ledger, which includes the releases of earlier attempts.

    Unit, delta, source of the noise and target epsilon are those of the ledger. All nodes have the same weight.

    Parameters
    ----------
    attempts
        What the ledger says.
    name
        Name of the run in the statement.
    """
    *earlier, happened = runs_of(Path(name), attempts)
    last = attempts[-1].header
    return run_statement(
        replace(happened, name=name),
        weights=dict.fromkeys(happened.nodes, 1.0),
        target_epsilon=epsilon_value(last["run"]["epsilon"]),
        earlier=earlier,
        backbone=last.get("backbone"),
    )


def total_statement(
    runs: Sequence[Run],
    *,
    unnoised: Sequence[str] = (),
    shared: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Return the privacy statement of a cohort after all runs on it.

    One run's epsilon is for a hospital that trains once. Here every run counts: first the private runs alone, then all
    runs. Runs with masked sums count as their servers see them, and beside it with their single messages. The second
    total is "none" as soon as one run had no noise, or anything computed from training patients was released
    without noise.

    Parameters
    ----------
    runs
        All runs on the cohort. Unit and source of the noise are what their ledgers say: with one seeded run, all of it
        is a simulation. Delta is the smallest one that a ledger declares.
    unnoised
        Names of other results that were computed from training patients and released without noise.
    shared
        Other cohorts that contain some of the same training records, and the number of these. ``runs`` includes their
        runs.

    Raises
    ------
    UserError
        If there are no runs, or if their units differ: records and persons do not add up.
    """
    units = {run.unit for run in runs}
    if len(units) != 1:
        raise UserError(f"Expected runs with one unit, found {', '.join(sorted(units)) or 'no runs'}.")
    unit: Unit = runs[0].unit
    delta, noise = min(run.delta for run in runs), noise_of(runs)
    private = [run for run in runs if run.private]
    broken = [run.name for run in runs if not run.private] + list(unnoised)
    rows = _private_rows(private, delta, unit)
    summed = [run.name for run in private if run.threat == MASKED_SUMS]
    by_image = [run.name for run in private if run.images]
    unmasked = _unmasked(private, delta, summed) if summed else None
    guarantee = _guarantee(private=bool(private), noise_source=noise)
    claim = wording.claim_sentence(guarantee, unit, float(rows["epsilon"]), delta)
    return {
        "kind": "total",
        "statement": wording.total_sentences(claim, private, broken, unit, shared or {}, unmasked),
        "guarantee": "none" if broken else guarantee,
        **wording.setting(unit, noise, noisy=bool(private), directions=any(r.directions for r in private)),
        "delta": delta,
        "private_rows": rows,
        "single_messages": unmasked,
        "of_all_images": {"runs": by_image, "counted": f"all images of a {unit} together"} if by_image else None,
        "all_rows": {
            "runs": len(runs),
            "epsilon": "inf" if broken else rows["epsilon"],
            "guarantee": "none" if broken else guarantee,
            "without_noise": broken,
        },
        "shared_with": dict(shared or {}),
        "does_not_cover": wording.does_not_cover(unit)[1:],
    }


def _unmasked(private: Sequence[Run], delta: float, summed: Sequence[str]) -> dict[str, Any]:
    """Return the total in which the messages of masked sums count as visible, and the runs that have such sums."""
    return {"runs": list(summed), "epsilon": _number(total(private, delta, unmasked=True))}


def _worst(totals: Iterable[Exposure], delta: float) -> float:
    return max(accounting.epsilon(total, delta) for total in totals)


def _audiences(run: Run) -> tuple[Audience, ...]:
    if run.threat == MASKED_SUMS:
        return ("server", "messages", "node", "reader")
    return ("server", "node", "reader")


def _audience(run: Run, weights: Mapping[str, float], audience: Audience, delta: float) -> dict[str, Any] | None:
    seen = seen_by(run, weights, audience)
    if seen is None:
        return None
    epsilon = _worst(distinct(seen.values()), delta)
    return {"epsilon": _number(epsilon), "assumption": wording.assumption(run, audience)}


def _private_rows(private: Sequence[Run], delta: float, unit: Unit) -> dict[str, Any]:
    """Return the figures of all runs with noise together, against the server."""
    totals, beforehand = over_runs(private, delta), declared_together(private)
    nodes = {node: cost(exposure, delta, beforehand=beforehand) for node, exposure in totals.items()}
    worst = max(nodes, key=lambda node: nodes[node], default=None)
    rows: dict[str, Any] = {
        "runs": len(private),
        "epsilon": 0.0 if worst is None else _number(nodes[worst]),
        "accountant": None if worst is None else accountant(totals.values(), beforehand=beforehand),
        "mu": None if worst is None else _exact_mu(totals[worst]),
        "worst_node": worst,
        "nodes": {node: _number(value) for node, value in nodes.items()},
        "smaller_deltas": [],
        "records_of_one_person": None,
        "trade_off": None,
    }
    if worst is None:
        return rows
    # If a patient's node is not known, the worst exposure can differ between deltas.
    smaller = {small: total(private, small) for small in SMALL_DELTAS if small < delta}
    rows["smaller_deltas"] = [{"delta": small, "epsilon": _number(epsilon)} for small, epsilon in smaller.items()]
    if unit == "record":
        rows["records_of_one_person"] = _records_of_one_node(totals, delta, beforehand=beforehand)
    # No curve is computed for many images together, whose epsilon is too large for a useful curve, nor for a filter.
    exact = all(accounting.exact_mu(each) is not None for each in totals.values())
    if (beforehand or exact) and _follows_from_node(private) and not any(run.images for run in private):
        rows["trade_off"] = _trade_off(distinct(totals.values()), unit)
    return rows


def _trade_off(kinds: Iterable[Exposure], unit: Unit) -> dict[str, Any]:
    curves = [accounting.trade_off(total, FALSE_ALARMS) for total in kinds]
    return {
        "meaning": f"for each rate of false alarms, the least rate of misses when looking for one {unit}",
        "false_alarms": list(FALSE_ALARMS),
        "misses": [min(rates) for rates in zip(*curves, strict=True)],
    }


def _follows_from_node(runs: Sequence[Run]) -> bool:
    """Return whether a patient's node in one division of the cohort determines the exposure over all runs.

    If it does not, the worst exposure at one delta need not be the worst along the whole curve.
    """
    divisions = {run.division for run in runs}
    kinds = [distinct(declared(history, run.declared_rounds) for history in run.nodes.values()) for run in runs]
    return len(divisions) == 1 or all(len(of_run) == 1 for of_run in kinds)


def _records_of_one_person(totals: Mapping[str, Exposure], delta: float) -> list[dict[str, Any]]:
    """Return epsilon for a person behind several records: all on one node, and two on two nodes."""
    rows = _records_of_one_node(totals, delta)
    pairs = [accounting.compose(first, second) for first, second in itertools.combinations(totals.values(), 2)]
    if pairs:
        rows.append({"records": 2, "nodes": 2, "epsilon": _number(_worst(distinct(pairs), delta))})
    return rows


def _records_of_one_node(
    totals: Mapping[str, Exposure], delta: float, *, beforehand: bool = True
) -> list[dict[str, Any]]:
    """Return epsilon for a person behind several records that are always together on one node."""
    kinds = distinct(totals.values())
    worst = {
        records: max(cost(accounting.grouped(total, records), delta, beforehand=beforehand) for total in kinds)
        for records in RECORDS_OF_ONE_PERSON
    }
    return [{"records": records, "nodes": 1, "epsilon": _number(epsilon)} for records, epsilon in worst.items()]


def _node(history: NodeHistory, total: Exposure, delta: float, *, summed: bool) -> dict[str, Any]:
    """Return the constants and releases of a node, and their cost as the server sees it."""
    in_sum = {"in_the_sum": _mechanisms(total)} if summed else {}
    return {
        "population": history.population,
        "expected": history.expected,
        "clip": _number(history.clip),
        "rounds": history.rounds,
        "mechanisms": _mechanisms(history.mechanisms),
        **in_sum,
        "epsilon": _number(accounting.epsilon(total, delta)),
        "epsilon_rdp": _number(accounting.epsilon_rdp(total, delta)),
        "mu": _exact_mu(total),
    }


def _mechanisms(exposure: Exposure) -> list[dict[str, Any]]:
    return [{**kind.values(), "releases": count} for kind, count in accounting.ordered(exposure)]


def _guarantee(*, private: bool, noise_source: NoiseSource, simulated: bool = False) -> str:
    if not private:
        return "none"
    return "simulated" if simulated or noise_source == "seeded" else "holds"


def _exact_mu(total: Exposure) -> float | str | None:
    mu = accounting.exact_mu(total)
    return None if mu is None else _number(mu)


def _number(value: float) -> float | str:
    """Return a number that JSON can hold. Infinity becomes a string."""
    return "inf" if value == math.inf else float(value)
