"""Privacy statements: what a run, or a cohort after many runs, can truthfully claim, and what it cannot.

A statement is a JSON object that names unit, neighbours, sampling, audience and delta beside every epsilon, and a text
that a data-protection officer can read. Infinite epsilons are the string ``"inf"``, as everywhere in the project.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from zetadp.epsilon import rounded_up
from zetadp.privacy import accounting
from zetadp.privacy.accounting import Audience, Exposure, Mechanisms
from zetadp.privacy.events import NodeHistory
from zetadp.privacy.exposure import Run, declared, distinct, over_runs, seen_by
from zetadp.privacy.threat import NOTHING_HIDDEN, SECURE_AGGREGATION, adversary, assumptions
from zetadp.validation import one_of

Unit: TypeAlias = Literal["patient", "record", "image"]
NoiseSource: TypeAlias = Literal["seeded", "os"]

FALSE_ALARMS = (0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
SMALL_DELTAS = (1e-5, 1e-6)
RECORDS_OF_ONE_PERSON = (2, 6)

_FALSE_ALARMS_IN_TEXT = (0.01, 0.05, 0.1)

_NOISE: dict[NoiseSource, str] = {
    "seeded": (
        "simulated: the noise comes from a seed and protects nobody; the figures are those of the ideal mechanism"
    ),
    "os": "drawn from the operating system's generator and never stored",
}

_AUDIENCES: dict[Audience, str] = {
    "server": "Whoever receives this node's own messages: the server, alone or together with any other nodes.",
    "messages": (
        "A server that sees the node's own messages, alone or together with any other nodes: what holds without a "
        "protocol that hides them, as in this training."
    ),
    "node": (
        "One other node, which knows its own noise and sees every intermediate model. Holds only if the server shows "
        "nothing but averages, all remaining nodes add their noise, and what the rounding of single messages tells is "
        "left aside."
    ),
    "reader": (
        "Readers of every intermediate model. Holds only if the server shows nothing but averages, all nodes add their "
        "noise, and what the rounding of single messages tells is left aside."
    ),
}

_SUMS = (
    "The server, honest but curious, together with at most {colluding} other node(s). Holds only if it sees nothing "
    "but the sum of the messages of a round and the remaining nodes add their noise; no protocol for that is "
    "implemented."
)

_COVERS = (
    "every model of every round, the final one included, and anything computed from them",
    "attackers who know everything from elsewhere, all other {unit}s included",
    "messages repeated after an interruption, which are counted as further releases",
)

_DOES_NOT_COVER = (
    "the search for settings: each run with other settings on the same {unit}s is a further release, and so is "
    "training again from the start",
    "test and validation {unit}s: they have no guarantee, and curves or scores computed on them are not noised",
    "choosing a round or a model by watching validation {unit}s",
    "statistics of preprocessing that cross {unit}s: the figures assume that there are none",
    "patients known to two hospitals: the two hospitals' exposures add up",
    "what a model trained without a patient would have revealed about that patient too",
    "the public constants: numbers of {unit}s, sampling probabilities, divisors, weights, assignment to nodes",
)

_TWO_HOSPITALS = "patients known to two hospitals: the two hospitals' exposures add up"
_NOT_COVERED_IN_SUMS = tuple(
    "patients known to two hospitals: what single messages cost adds up, and in sums both are under the same noise"
    if text == _TWO_HOSPITALS
    else text
    for text in _DOES_NOT_COVER
)

_PUBLIC = (
    "Before any {unit} of this cohort took part, a network was trained on simulated patients, who are nobody; starting "
    "weights or features come from it (sha256 {digest}). It is a function of no data of this cohort and spends no "
    "privacy."
)


def run_statement(
    run: Run,
    *,
    delta: float,
    unit: Unit,
    noise_source: NoiseSource,
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
    delta
        The delta of the quoted epsilon.
    unit
        What a record of the cohort stands for: ``"patient"`` only where the cohort declares one record a patient, or
        merged the records of each. Where single images were drawn, the statement is per image, and tells what holds for
        this unit beside it.
    noise_source
        ``"seeded"`` is simulation and protects nobody; ``"os"`` is the operating system's generator.
    weights
        Public weight of each node in the server's average.
    target_epsilon
        What the run was calibrated to.
    earlier
        Trainings of the same model that were begun before and given up, or made before: they released as well.
    backbone
        Hash of the public network that weights or features came from.
    """
    one_of(("patient", "record"), unit=unit)
    one_of(("seeded", "os"), noise_source=noise_source)
    if set(weights) != set(run.nodes):
        msg = f"Expected a weight for each of the nodes {sorted(run.nodes)}, found {sorted(weights)}."
        raise ValueError(msg)
    behind, unit = unit, "image" if run.images else unit
    totals = seen_by(run, weights, "server") or {}
    epsilons = {node: accounting.epsilon(total, delta) for node, total in totals.items()}
    worst = max(epsilons, key=lambda node: epsilons[node])
    kinds = distinct(totals.values())
    summed = run.threat == SECURE_AGGREGATION
    exact = all(accounting.exact_mu(total) is not None for total in kinds)
    unhidden = any(each.private and each.noise == "seeded" for each in earlier)
    guarantee = _guarantee(private=run.private, noise_source=noise_source, simulated=summed or unhidden)
    audiences = {audience: _audience(run, weights, audience, delta) for audience in _audiences(run)}
    alone = audiences["messages"] if summed else None
    together = _with_earlier(run, earlier, delta, behind)
    # In sums, several contributions of one person lie under the same noise and do not compose. What single messages
    # cost composes, and bounds them.
    open_totals = (seen_by(run, weights, "messages") or {}) if summed else totals
    whole = _of_all_images(run, behind, open_totals.values(), delta, summed=summed) if run.images else None
    return {
        "kind": "run",
        "name": run.name,
        "statement": _sentence(guarantee, unit, epsilons[worst], delta, run, alone)
        + _whole_sentence(whole)
        + _earlier_sentence(together),
        "guarantee": guarantee,
        "earlier_attempts": together,
        "of_all_images": whole,
        "public": None if backbone is None else _PUBLIC.format(unit=unit, digest=backbone),
        **_setting(unit, noise_source, noisy=run.private),
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
            "replayed": max(history.releases - history.rounds for history in run.nodes.values()),
        },
        "audiences": audiences,
        "smaller_deltas": [
            {"delta": small, "epsilon": _number(_worst(kinds, small))} for small in SMALL_DELTAS if small < delta
        ],
        "records_of_one_person": _records_of_one_person(open_totals, delta) if unit == "record" else None,
        "trade_off": _trade_off(kinds, unit),
        "nodes": {node: _node(history, totals[node], delta, summed=summed) for node, history in run.nodes.items()},
        "covers": [text.format(unit=unit) for text in _COVERS],
        "does_not_cover": [text.format(unit=unit) for text in (_NOT_COVERED_IN_SUMS if summed else _DOES_NOT_COVER)],
    }


def _of_all_images(run: Run, unit: Unit, totals: Iterable[Mechanisms], delta: float, *, summed: bool) -> dict[str, Any]:
    """Return what a training that draws single images costs the patient, or record, behind all of its images."""
    images = run.images or 1
    worst = max(accounting.epsilon_group(total, delta, images) for total in distinct(totals))
    return {"unit": unit, "images": images, "epsilon": _number(worst), "single_messages": summed}


def _whole_sentence(whole: Mapping[str, Any] | None) -> str:
    if whole is None or whole["epsilon"] == "inf":
        return ""
    seen = " where single messages are seen" if whole["single_messages"] else ""
    return (
        f" That is per image and protects no {whole['unit']}: for a {whole['unit']}, behind whom {whole['images']} "
        f"images stand, the true epsilon at the same delta{seen} is {_shown(whole['epsilon'])}."
    )


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


def _earlier_sentence(together: Mapping[str, Any] | None) -> str:
    if together is None:
        return ""
    epsilon = together["epsilon_together"]
    cost = "no guarantee, because not all had noise" if epsilon == "inf" else f"epsilon {_shown(epsilon)}"
    cost += f", counting {together['counted']}" if "counted" in together else ""
    seeded = (
        f" In {together['seeded']} of those attempts the noise came from a seed, which protects nobody."
        if together["seeded"]
        else ""
    )
    return (
        f" This model was trained from its start {together['number']} time(s) before, and what was released then stays "
        f"released: together {cost}.{seeded}"
    )


def total_statement(
    runs: Sequence[Run],
    *,
    delta: float,
    unit: Unit,
    noise_source: NoiseSource,
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
    delta, unit, noise_source
        As in `run_statement`.
    unnoised
        Names of whatever else was released from training patients without noise.
    shared
        Other cohorts that hold some of the same training records, and how many. Their runs are among ``runs``.
    """
    one_of(("patient", "record"), unit=unit)
    one_of(("seeded", "os"), noise_source=noise_source)
    private = [run for run in runs if run.private]
    broken = [run.name for run in runs if not run.private] + list(unnoised)
    rows = _private_rows(private, delta, unit)
    summed = [run.name for run in private if run.threat == SECURE_AGGREGATION]
    by_image = [run.name for run in private if run.images]
    guarantee = _guarantee(private=bool(private), noise_source=noise_source)
    text = _sentence(guarantee, unit, float(rows["epsilon"]), delta)
    if private:
        text = f"{len(private)} private run(s) together: {text}"
    if any(run.threat == "central" for run in private):
        text += " Where all data lay with one holder, that is against whoever sees its models, not against the holder."
    if private and broken:
        text += f" Everything together: no guarantee, because of {len(broken)} release(s) without noise."
    if summed:
        text += (
            f" Secure aggregation was simulated in {len(summed)} of the private runs: no protocol hid their messages, "
            "so they count with what their single messages cost."
        )
    if by_image:
        text += (
            f" In {len(by_image)} of the private runs single images were drawn; they count with what they cost a "
            f"{unit} with all images."
        )
    for other, count in (shared or {}).items():
        text += f" The runs of cohort {other} are counted as well: it holds {count} of the same training records."
    return {
        "kind": "total",
        "statement": text,
        "guarantee": "none" if broken else guarantee,
        **_setting(unit, noise_source, noisy=bool(private)),
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
        "does_not_cover": [text.format(unit=unit) for text in _DOES_NOT_COVER[1:]],
    }


def plain_text(statement: Mapping[str, Any]) -> str:
    """Return a statement as text for a reader who knows hospitals better than differential privacy."""
    lines = [
        statement["statement"],
        "",
        *([f"Threat model: {statement['threat']['assumes']}"] if "threat" in statement else []),
        f"Neighbours: {statement['neighbours']}",
        f"Sampling: {statement['sampling']}",
        f"Noise: {statement['noise']}.",
        *([f"Public: {statement['public']}"] if statement.get("public") else []),
        "",
        *(_total_lines(statement) if statement["kind"] == "total" else _run_lines(statement)),
        "Not covered:",
        *(f"  - {text}" for text in statement["does_not_cover"]),
    ]
    return "\n".join(lines) + "\n"


def _total_lines(statement: Mapping[str, Any]) -> list[str]:
    private, everything, delta = statement["private_rows"], statement["all_rows"], statement["delta"]
    if everything["guarantee"] == "none":
        verdict = f"none, because without noise: {', '.join(everything['without_noise'])}."
    else:
        verdict = f"epsilon {_shown(everything['epsilon'])} at delta {delta:g}."
    return [
        f"The {private['runs']} private run(s) alone: epsilon {_shown(private['epsilon'])} at delta {delta:g}.",
        *(_further_lines(private, statement["unit"]) if private["runs"] else ()),
        f"All {everything['runs']} run(s): {verdict}",
    ]


def _run_lines(statement: Mapping[str, Any]) -> list[str]:
    if statement["guarantee"] == "none":
        return ["No figures: without noise every epsilon is infinite."]
    rounds, delta = statement["rounds"], statement["delta"]
    return [
        f"Rounds: {rounds['declared']} declared, {rounds['happened']} happened, {rounds['replayed']} repeated. "
        "The figures hold for the declared number; stopping early lowers nothing.",
        f"Epsilon at delta {delta:g}, by who is looking:",
        *(f"  {_shown(row['epsilon'])}: {row['assumption']}" for row in statement["audiences"].values() if row),
        *_further_lines(statement, statement["unit"]),
        "Covered:",
        *(f"  - {text}" for text in statement["covers"]),
    ]


def _further_lines(figures: Mapping[str, Any], unit: Unit) -> list[str]:
    """Return what stands beside the quoted epsilon: smaller deltas, several records, and odds."""
    lines = [
        *(f"At delta {row['delta']:g}: epsilon {_shown(row['epsilon'])}." for row in figures["smaller_deltas"]),
        *(
            f"A person with {row['records']} records on {row['nodes']} node(s): epsilon {_shown(row['epsilon'])}."
            for row in figures["records_of_one_person"] or ()
        ),
    ]
    if figures["trade_off"] is None:
        return lines
    misses = dict(zip(figures["trade_off"]["false_alarms"], figures["trade_off"]["misses"], strict=True))
    return [
        *lines,
        f"Whoever looks for one {unit} in the models, by whatever method, and suspects",
        *(
            f"  {rate:.0%} of the {unit}s that took no part overlooks at least {_percent_down(misses[rate])} of those "
            "that did"
            for rate in _FALSE_ALARMS_IN_TEXT
        ),
    ]


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
    of_sums = audience == "server" and run.threat == SECURE_AGGREGATION
    assumption = _SUMS.format(colluding=run.colluding) if of_sums else _AUDIENCES[audience]
    return {"epsilon": _number(_worst(distinct(seen.values()), delta)), "assumption": assumption}


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
    """Tell whether a patient's node in one division of the cohort says all of the exposure over the runs.

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
    return [
        {"sampling_probability": probability, "noise_multiplier": sigma, "releases": count}
        for (probability, sigma), count in sorted(mechanisms.items())
        if count
    ]


def _setting(unit: Unit, noise_source: NoiseSource, *, noisy: bool) -> dict[str, Any]:
    return {
        "unit": unit,
        "neighbours": (
            f"One {unit}'s contribution is replaced by zero. The number of {unit}s, the sampling probability, the "
            "divisor and the assignment to nodes are public constants."
        ),
        "sampling": (
            f"In every round each {unit} is drawn independently with the node's sampling probability, by the node, "
            "which keeps the draw to itself."
        ),
        "noise_source": noise_source,
        "noise": _NOISE[noise_source] if noisy else "none was added",
    }


def _guarantee(*, private: bool, noise_source: NoiseSource, simulated: bool = False) -> str:
    if not private:
        return "none"
    return "simulated" if simulated or noise_source == "seeded" else "holds"


def _sentence(
    guarantee: str,
    unit: Unit,
    epsilon: float,
    delta: float,
    run: Run | None = None,
    alone: Mapping[str, Any] | None = None,
) -> str:
    """Say in one sentence what holds, and against whom: the run's threat model, or the server for a total."""
    if guarantee == "none":
        return "No guarantee: without noise, a model may reveal whom it was trained on."
    against = adversary("local", None, 0) if run is None else adversary(run.threat, run.colluding, len(run.nodes))
    claim = f"({_shown(epsilon)}, {delta:g})-differentially private for each training {unit}, {against}"
    if alone is not None:
        return (
            "Simulated, protecting nobody: with noise that is not from a seed and a protocol for secure aggregation, "
            f"of which there is none here, training would be {claim}. Against a server that sees single messages, "
            f"epsilon is {_shown(alone['epsilon'])}."
        )
    if guarantee == "simulated":
        return f"Simulated, protecting nobody: with noise that is not from a seed, training would be {claim}."
    return f"Training was {claim}."


def _exact_mu(total: Exposure) -> float | str | None:
    mu = accounting.exact_mu(total)
    return None if mu is None else _number(mu)


def _number(value: float) -> float | str:
    """Return a number that JSON can hold; infinity becomes the word for it."""
    return "inf" if value == math.inf else float(value)


def _shown(value: float | str) -> str:
    """Return an epsilon for reading, or that there is none."""
    return "no guarantee" if float(value) == math.inf else rounded_up(value, digits=3)


def _percent_down(rate: float) -> str:
    return f"{math.floor(rate * 1000) / 10:.1f} %"
