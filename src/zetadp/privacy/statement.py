"""Privacy statements: what a run, or a cohort after many runs, can truthfully claim, and what it cannot.

A statement is a JSON object that gives unit, neighbours, sampling, audience and delta with every epsilon; `wording`
turns it into a text. Infinite epsilons are the string ``"inf"``, as everywhere in the project.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from zetadp.epsilon import epsilon_value
from zetadp.privacy import accounting, wording
from zetadp.privacy.accounting import Exposure, Mechanisms
from zetadp.privacy.events import Direction, Kind, NodeHistory
from zetadp.privacy.exposure import Run, declared, distinct, over_runs, run_of, seen_by
from zetadp.privacy.ledger import Attempt, read_ledger
from zetadp.privacy.threat import NOTHING_HIDDEN, SECURE_AGGREGATION, Audience, adversary, assumptions
from zetadp.privacy.units import PERSONS, Unit
from zetadp.validation import UserError, one_of

NoiseSource: TypeAlias = Literal["seeded", "os"]

FALSE_ALARMS = (0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
SMALL_DELTAS = (1e-5, 1e-6)
RECORDS_OF_ONE_PERSON = (2, 6)


@dataclass(frozen=True)
class Terms:
    """Terms of a statement: delta, unit and source of the noise.

    Attributes
    ----------
    delta
        The delta of the quoted epsilon.
    unit
        The meaning of a record: ``"patient"`` only if the cohort declares one record a patient, or merged the records
        of each. ``"speaker"`` is the same for recordings of speech. If single images were drawn, the statement is per
        image and also gives the figures for this unit.
    noise_source
        ``"seeded"`` is a simulation and protects no one; ``"os"`` is the operating system's generator.
    """

    delta: float
    unit: Unit
    noise_source: NoiseSource

    def __post_init__(self) -> None:
        """Refuse unknown units and sources."""
        one_of((*PERSONS, "record"), unit=self.unit)
        one_of(("seeded", "os"), noise_source=self.noise_source)


def run_statement(
    run: Run,
    terms: Terms,
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
        What happened, and how many rounds were declared. The figures are for the larger of the two.
    terms
        Delta, unit and source of the noise.
    weights
        Public weight of each node in the server's average.
    target_epsilon
        Target epsilon of the calibration.
    earlier
        Earlier attempts at the same model, finished or not: their releases count as well.
    backbone
        Hash of the public network that weights or features came from.
    """
    if set(weights) != set(run.nodes):
        raise ValueError(f"Expected a weight for each of the nodes {sorted(run.nodes)}, found {sorted(weights)}.")
    delta = terms.delta
    unit: Unit = "image" if run.images else terms.unit
    totals = seen_by(run, weights, "server") or {}
    epsilons = {node: accounting.epsilon(total, delta) for node, total in totals.items()}
    worst = max(epsilons, key=lambda node: epsilons[node])
    kinds = distinct(totals.values())
    summed = run.threat == SECURE_AGGREGATION
    exact = all(accounting.exact_mu(total) is not None for total in kinds)
    unhidden = any(each.private and each.noise == "seeded" for each in earlier)
    guarantee = _guarantee(private=run.private, noise_source=terms.noise_source, simulated=summed or unhidden)
    audiences = {audience: _audience(run, weights, audience, delta) for audience in _audiences(run)}
    alone = audiences["messages"] if summed else None
    together = _with_earlier(run, earlier, delta, terms.unit)
    # In sums, several contributions of one person lie under the same noise and do not compose. What single messages
    # cost composes, and bounds them.
    open_totals = (seen_by(run, weights, "messages") or {}) if summed else totals
    whole = _of_all_images(run, terms.unit, open_totals.values(), delta, summed=summed) if run.images else None
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
        **wording.setting(unit, terms.noise_source, noisy=run.private, directions=run.directions),
        "threat": {
            "model": run.threat,
            "colluding": run.colluding,
            "against": adversary(run.threat, run.colluding, len(run.nodes)) if run.private else "against nobody",
            "assumes": assumptions(run.threat, run.colluding, len(run.nodes)) if run.private else NOTHING_HIDDEN,
            "epsilon_single_messages": alone and alone["epsilon"],
        },
        "delta": delta,
        "target_epsilon": _number(target_epsilon),
        "epsilon": _number(epsilons[worst]),
        "accountant": "exact composition of Gaussians" if exact else "privacy-loss distribution",
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


def _of_all_images(run: Run, unit: Unit, totals: Iterable[Mechanisms], delta: float, *, summed: bool) -> dict[str, Any]:
    """Return what a training that draws single images costs the patient, or record, behind all of its images."""
    images = run.images or 1
    worst = max(accounting.epsilon_group(total, delta, images) for total in distinct(totals))
    return {"unit": unit, "images": images, "epsilon": _number(worst), "single_messages": summed}


def _with_earlier(run: Run, earlier: Sequence[Run], delta: float, unit: Unit) -> dict[str, Any] | None:
    """Return what this training and those before it release together; None where there were none before."""
    if not earlier:
        return None
    private = all(each.private for each in (run, *earlier))
    epsilon = _worst(over_runs((run, *earlier), delta).values(), delta) if private else math.inf
    seeded = sum(each.private and each.noise == "seeded" for each in earlier)
    found: dict[str, Any] = {"number": len(earlier), "epsilon_together": _number(epsilon), "seeded": seeded}
    counted = [
        *(["every message as if it lay open"] if any(each.colluding for each in (run, *earlier)) else []),
        *([f"all images of a {unit} together"] if any(each.images for each in (run, *earlier)) else []),
    ]
    if counted:
        found["counted"] = " and ".join(counted)
    return found


def account_run(ledger: Path, model: Path, *, name: str, epsilon: str, delta: float, unit: Unit) -> dict[str, Any]:
    """Return the statement of the training that made a model; the last attempt in the ledger is the one.

    Parameters
    ----------
    ledger, model
        The run's sealed ledger and its model, which holds the head of that ledger.
    name
        How the statement names the run.
    epsilon
        The run's target.
    delta, unit
        As in `Terms`.

    Raises
    ------
    UserError
        If the ledger is not that of the model's training, or not all of it.
    """
    from zetadp.tensors import load_tensors  # PyTorch takes seconds to import

    attempts = read_ledger(ledger)
    if not attempts or load_tensors(model)[1].get("ledger_head") not in attempts[-1].heads:
        raise UserError(
            f"Expected {ledger} to record the training that made {model}, found another or none, or lines are missing "
            "at its end. Train the model again."
        )
    return last_statement(attempts, name=name, epsilon=epsilon, delta=delta, unit=unit)


def last_statement(attempts: Sequence[Attempt], *, name: str, epsilon: str, delta: float, unit: Unit) -> dict[str, Any]:
    """Return the statement of the last of a ledger's attempts; those before it released as well. Else as `account_run`.

    All nodes have the same weight.
    """
    last = attempts[-1]
    happened = run_of(name, last)
    earlier = [run_of(f"attempt {number}", attempt) for number, attempt in enumerate(attempts[:-1]) if attempt.events]
    return run_statement(
        happened,
        Terms(delta, unit, last.header["noise"]),
        weights=dict.fromkeys(happened.nodes, 1.0),
        target_epsilon=epsilon_value(epsilon),
        earlier=earlier,
        backbone=last.header.get("backbone"),
    )


def total_statement(
    runs: Sequence[Run],
    terms: Terms,
    *,
    unnoised: Sequence[str] = (),
    shared: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Return the privacy statement of a cohort after all the runs on it.

    One run's epsilon is for a hospital that trains once. Here every run counts: the private ones alone, and then all of
    them. Runs with secure aggregation count with what their single messages cost: no protocol hid those. The second
    total is "none" as soon as one run had no noise, or anything was computed from training patients and released
    without noise.

    Parameters
    ----------
    runs
        All runs on the cohort.
    terms
        Delta, unit and source of the noise.
    unnoised
        Names of whatever else was released from training patients without noise.
    shared
        Other cohorts that hold some of the same training records, and how many. Their runs are among ``runs``.
    """
    delta, unit = terms.delta, terms.unit
    private = [run for run in runs if run.private]
    broken = [run.name for run in runs if not run.private] + list(unnoised)
    rows = _private_rows(private, delta, unit)
    summed = [run.name for run in private if run.threat == SECURE_AGGREGATION]
    by_image = [run.name for run in private if run.images]
    guarantee = _guarantee(private=bool(private), noise_source=terms.noise_source)
    claim = wording.claim_sentence(guarantee, unit, float(rows["epsilon"]), delta)
    return {
        "kind": "total",
        "statement": wording.total_sentences(claim, private, broken, unit, shared or {}),
        "guarantee": "none" if broken else guarantee,
        **wording.setting(unit, terms.noise_source, noisy=bool(private), directions=any(r.directions for r in private)),
        "delta": delta,
        "private_rows": rows,
        "single_messages": {"runs": summed, "counted": "every message as if it lay open"} if summed else None,
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


def _worst(totals: Iterable[Exposure], delta: float) -> float:
    return max(accounting.epsilon(total, delta) for total in totals)


def _audiences(run: Run) -> tuple[Audience, ...]:
    if run.threat == SECURE_AGGREGATION:
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
    totals = over_runs(private, delta)
    nodes = {node: accounting.epsilon(total, delta) for node, total in totals.items()}
    worst = max(nodes, key=lambda node: nodes[node], default=None)
    rows: dict[str, Any] = {
        "runs": len(private),
        "epsilon": 0.0 if worst is None else _number(nodes[worst]),
        "mu": None if worst is None else _exact_mu(totals[worst]),
        "worst_node": worst,
        "nodes": {node: _number(value) for node, value in nodes.items()},
        "smaller_deltas": [],
        "records_of_one_person": None,
        "trade_off": None,
    }
    if worst is None:
        return rows
    # Where partitions leave a choice, the exposure that is worst at one delta is not always worst at another.
    smaller = {small: _worst(over_runs(private, small).values(), small) for small in SMALL_DELTAS if small < delta}
    rows["smaller_deltas"] = [{"delta": small, "epsilon": _number(epsilon)} for small, epsilon in smaller.items()]
    if unit == "record":
        rows["records_of_one_person"] = _records_of_one_node(totals, delta)
    # No curve is computed of many images together; their epsilon leaves nothing to draw.
    if _follows_from_node(private) and not any(run.images for run in private):
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
    """Return whether a patient's node in one division of the cohort says all of the exposure over the runs.

    Where it does not, the exposure that is worst at one delta need not be worst along a whole curve.
    """
    divisions = {run.division for run in runs}
    kinds = [distinct(declared(history, run.declared_rounds) for history in run.nodes.values()) for run in runs]
    return len(divisions) == 1 or all(len(of_run) == 1 for of_run in kinds)


def _records_of_one_person(totals: Mapping[str, Mechanisms], delta: float) -> list[dict[str, Any]]:
    """Return epsilon for a person behind several records: all on one node, and two on two nodes."""
    rows = _records_of_one_node(totals, delta)
    pairs = [accounting.compose(first, second) for first, second in itertools.combinations(totals.values(), 2)]
    if pairs:
        rows.append({"records": 2, "nodes": 2, "epsilon": _number(_worst(distinct(pairs), delta))})
    return rows


def _records_of_one_node(totals: Mapping[str, Exposure], delta: float) -> list[dict[str, Any]]:
    """Return epsilon for a person behind several records that are always together on one node."""
    kinds = distinct(totals.values())
    worst = {
        records: max(accounting.epsilon_group(total, delta, records) for total in kinds)
        for records in RECORDS_OF_ONE_PERSON
    }
    return [{"records": records, "nodes": 1, "epsilon": _number(epsilon)} for records, epsilon in worst.items()]


def _node(history: NodeHistory, total: Mechanisms, delta: float, *, summed: bool) -> dict[str, Any]:
    """Return what a node added, and what it cost as the server sees it."""
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


def _mechanisms(mechanisms: Mechanisms) -> list[dict[str, Any]]:
    def level(kind: Kind) -> dict[str, Any]:
        if isinstance(kind, Direction):
            return {"concentration": kind.concentration, "dimension": kind.dimension}
        return {"noise_multiplier": kind[1]}

    return [
        {"sampling_probability": kind[0], **level(kind), "releases": count}
        for kind, count in sorted(mechanisms.items())
        if count
    ]


def _guarantee(*, private: bool, noise_source: NoiseSource, simulated: bool = False) -> str:
    if not private:
        return "none"
    return "simulated" if simulated or noise_source == "seeded" else "holds"


def _exact_mu(total: Exposure) -> float | str | None:
    mu = accounting.exact_mu(total)
    return None if mu is None else _number(mu)


def _number(value: float) -> float | str:
    """Return a number that JSON can hold; infinity becomes the word for it."""
    return "inf" if value == math.inf else float(value)
