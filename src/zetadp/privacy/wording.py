"""Sentences of privacy statements, and the text of a whole statement for a data-protection officer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zetadp.base.epsilon import rounded_up
from zetadp.privacy.events import PERSONS, Unit
from zetadp.privacy.threat import adversary

if TYPE_CHECKING:
    from zetadp.privacy.exposure import Run
    from zetadp.privacy.statement import NoiseSource
    from zetadp.privacy.threat import Audience

_FALSE_ALARMS_IN_TEXT = (0.01, 0.05, 0.1)

_NOISE: dict[NoiseSource, str] = {
    "seeded": (
        "simulated: the noise comes from a seed and protects nobody; the figures are those of the ideal mechanism"
    ),
    "os": "drawn from the operating system's generator and never stored",
}

_DIRECTIONS = (
    ". Nodes that release directions send a random unit vector instead of a noisy sum. It follows the von Mises-Fisher "
    "law around the direction of the sum, or around a fixed direction if the sum is zero. The length of the sum stays "
    "at the node"
)

_AVERAGES_OF_DIRECTIONS = "computed from the directions that the nodes sent, so this figure equals the server's."

_AUDIENCES: dict[Audience, str] = {
    "server": "Anyone who receives this node's own messages: the server, alone or together with any other nodes.",
    "messages": ("Anyone who could undo the masks of this node's messages. This figure does not rest on cryptography."),
    "node": (
        "One other node, which knows its own noise and sees every intermediate model. Holds only if the server shows "
        "nothing but averages and all remaining nodes add their noise. What the rounding of single messages may reveal "
        "is not counted."
    ),
    "reader": (
        "Readers of every intermediate model. Holds only if the server shows nothing but averages and all nodes add "
        "their noise. What the rounding of single messages may reveal is not counted."
    ),
}

_SUMS: dict[Audience, str] = {
    "server": (
        "The server, which may deviate in any way, together with at most {colluding} other node(s). Holds if the "
        "nodes' keys are authentic, at least {shares} nodes add independent noise, and the masks cannot be told from "
        "random numbers."
    ),
    "node": "One other node, which knows its own noise and sees every intermediate model.",
    "reader": "Readers of every intermediate model.",
}

_COVERS = (
    "every model of every round, the final one included, and anything computed from them",
    "attackers who know everything else, including all other {unit}s",
    "messages repeated after an interruption, which are counted as further releases",
)

_DOES_NOT_COVER = (
    "the search for settings: each run with other settings on the same {unit}s is a further release, and so is "
    "training again from the start",
    "test and validation {unit}s: they have no guarantee, and curves or scores computed on them are not noised",
    "choosing a round or a model by watching validation {unit}s",
    "statistics of preprocessing that cross {unit}s: the figures assume that there are none",
    "{person}s known to two hospitals: the two hospitals' exposures add up",
    "what a model trained without a {person} would also reveal about that {person}",
    "the public constants: numbers of {unit}s, sampling probabilities, divisors, weights, assignment to nodes",
)

_TWO_HOSPITALS = "{person}s known to two hospitals: the two hospitals' exposures add up"
_NOT_COVERED_IN_SUMS = tuple(
    "{person}s known to two hospitals: what single messages cost adds up, and in sums both are under the same noise"
    if text == _TWO_HOSPITALS
    else text
    for text in _DOES_NOT_COVER
)

_PUBLIC = (
    "Starting weights or features come from a network that was trained on simulated data only (sha256 {digest}), "
    "before any {unit} of this cohort took part. It uses no data of this cohort and costs no privacy."
)


def claim_sentence(
    guarantee: str,
    unit: Unit,
    epsilon: float,
    delta: float,
    run: Run | None = None,
    alone: Mapping[str, Any] | None = None,
) -> str:
    """Return the claim in one sentence. It holds in the run's threat model, or for a total against the server."""
    if guarantee == "none":
        return "No guarantee: without noise, a model may reveal whom it was trained on."
    against = adversary("local", None) if run is None else adversary(run.threat, run.sums)
    what = "Training"
    if run is not None and run.rows:
        what, against = "The release", "against anyone who has the rows"
    claim = f"({_shown(epsilon)}, {delta:g})-differentially private for each training {unit}, {against}"
    open_messages = (
        f" Without cryptography, against anyone who could undo the masks, epsilon is {_shown(alone['epsilon'])}."
        if alone is not None
        else ""
    )
    if guarantee == "simulated":
        text = f"Simulated, protecting nobody: with noise that is not from a seed, {what.lower()} would be {claim}."
        return text + open_messages
    return f"{what} was {claim}.{open_messages}"


def whole_sentence(whole: Mapping[str, Any] | None) -> str:
    """Return a sentence on the cost of a run that draws single images, for a person with all images."""
    if whole is None or whole["epsilon"] == "inf":
        return ""
    return (
        f" That is per image and protects no {whole['unit']}: a {whole['unit']} has {whole['images']} images, and the "
        f"true epsilon for all of them at the same delta is {_shown(whole['epsilon'])}."
    )


def earlier_sentence(together: Mapping[str, Any] | None) -> str:
    """Return a sentence on the releases of earlier attempts and the cost of all attempts together."""
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
        f" This model was trained from its first round {together['number']} time(s) before. Those releases count too: "
        f"together {cost}.{seeded}"
    )


def total_sentences(
    claim: str,
    private: Sequence[Run],
    broken: Sequence[str],
    unit: Unit,
    shared: Mapping[str, int],
    unmasked: Mapping[str, Any] | None,
) -> str:
    """Return the claim of all runs with noise, what else counts in the total, and the runs that break it.

    ``unmasked`` has the total in which single messages of masked sums count as visible, if there are any.
    """
    text = claim
    if private:
        text = f"{len(private)} private run(s) together: {text}"
    if any(run.threat == "central" for run in private):
        text += " If one holder had all data, this protects against those who see its models, not against the holder."
    if private and broken:
        text += f" Everything together: no guarantee, because of {len(broken)} release(s) without noise."
    if unmasked is not None:
        text += (
            f" In {len(unmasked['runs'])} of the private runs masks hide single messages. Against anyone who could "
            f"undo them, epsilon of all private runs together is {_shown(unmasked['epsilon'])}."
        )
    if by_image := sum(bool(run.images) for run in private):
        text += (
            f" In {by_image} of the private runs single images were drawn; they count with their cost for a {unit} "
            "with all images."
        )
    for other, count in shared.items():
        text += f" The runs of cohort {other} are counted too: it contains {count} of the same training records."
    return text


def public_sentences(unit: Unit, backbone: str) -> str:
    """Return a sentence on the data on which the public network with this hash was trained."""
    return _PUBLIC.format(unit=unit, digest=backbone)


def assumption(run: Run, audience: Audience) -> str:
    """Return a description of an audience, and the assumptions of its figure."""
    if run.sums is not None and audience in _SUMS:
        return _SUMS[audience].format(colluding=run.sums.colluding, shares=run.shares)
    if run.directions and audience != "server":
        who = "One other node sees" if audience == "node" else "Readers see"
        return f"{who} averages that are {_AVERAGES_OF_DIRECTIONS}"
    return _AUDIENCES[audience]


def covers(unit: Unit) -> list[str]:
    """Return what the guarantee of a run covers."""
    return [text.format(unit=unit) for text in _COVERS]


def does_not_cover(unit: Unit, *, summed: bool = False) -> list[str]:
    """Return what the guarantee of a run does not cover. With ``summed``, the server sees only sums."""
    person = unit if unit in PERSONS else PERSONS[0]
    return [text.format(unit=unit, person=person) for text in (_NOT_COVERED_IN_SUMS if summed else _DOES_NOT_COVER)]


def setting(unit: Unit, noise_source: NoiseSource, *, noisy: bool, directions: bool = False) -> dict[str, Any]:
    """Return the entries of a statement on unit, neighbours, sampling and noise.

    With ``directions``, some node sent directions instead of noisy sums.
    """
    return {
        "unit": unit,
        "neighbours": (
            f"One {unit}'s contribution is replaced by zero. The number of {unit}s, the sampling probability, the "
            "divisor and the assignment to nodes are public constants."
        ),
        "sampling": (
            f"In every round the node draws each {unit} independently with its sampling probability. It keeps the draw "
            "to itself."
        ),
        "noise_source": noise_source,
        "noise": _NOISE[noise_source] + _DIRECTIONS * directions if noisy else "none was added",
    }


def plain_text(statement: Mapping[str, Any]) -> str:
    """Return a statement as text for readers who are not experts in differential privacy."""
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
        verdict = f"no guarantee, because these had no noise: {', '.join(everything['without_noise'])}."
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
        "The figures hold for the declared number. Stopping early does not lower them.",
        f"Epsilon at delta {delta:g}, by attacker:",
        *(f"  {_shown(row['epsilon'])}: {row['assumption']}" for row in statement["audiences"].values() if row),
        *_further_lines(statement, statement["unit"]),
        "Covered:",
        *(f"  - {text}" for text in statement["covers"]),
    ]


def _further_lines(figures: Mapping[str, Any], unit: Unit) -> list[str]:
    """Return the lines after the quoted epsilon: smaller deltas, several records, and points of the trade-off curve."""
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
        f"Any attack that looks for one {unit} in the models and wrongly suspects",
        *(
            f"  {rate:.0%} of the {unit}s that took no part misses at least {_percent_down(misses[rate])} of those "
            "that did"
            for rate in _FALSE_ALARMS_IN_TEXT
        ),
    ]


def _shown(value: float | str) -> str:
    """Return an epsilon for display, or "no guarantee"."""
    return "no guarantee" if float(value) == math.inf else rounded_up(value, digits=3)


def _percent_down(rate: float) -> str:
    return f"{math.floor(rate * 1000) / 10:.1f} %"
