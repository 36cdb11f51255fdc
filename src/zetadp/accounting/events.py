"""Records of releases, which an accountant can compose.

An `Event` describes what one node released in one round. The code that draws units and noise creates it. A
`NodeHistory` counts the events of one node.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

from zetadp.accounting.kinds import Kind
from zetadp.accounting.laws import kind_of
from zetadp.accounting.masked import MaskedSum
from zetadp.base.validation import UserError, in_range, positive, whole

MOST_RELEASES = 10**12
"""Largest number of releases of one kind."""
MOST = 10**9
"""Largest number of rounds, of units at a node, and of releases in one event."""


@dataclass(frozen=True, slots=True)
class Event:
    """Releases of one kind that one node made in one round: one noisy sum, one message of another law, or several rows.

    Each of `population` units was drawn independently with the sampling probability of the kind. Each contribution was
    clipped to norm `clip`, and the noise of the kind was added to the sum. For a noisy sum this is complex Gaussian
    noise with variance ``(noise_multiplier * clip)**2`` in the real and the same in the imaginary part of every
    coordinate, and the receiver divides by `expected`.

    Attributes
    ----------
    node
        Name of the node.
    round
        Number of the round, from zero. Two entries with one node and one round are two releases.
    population
        Units at the node, a public constant N.
    expected
        The divisor R, a public constant, at most `population`.
    clip
        Bound on the norm of one contribution. Infinite for an unclipped round, which is possible only without noise.
    kind
        Law of the noise, with the numbers on which privacy depends.
    count
        Number of releases in this entry, each with its own draw and noise, such as rows that a node sends together. One
        in a round of training.
    """

    node: str
    round: int
    population: int
    expected: float
    clip: float
    kind: Kind
    count: int = 1

    def __post_init__(self) -> None:
        """Refuse values that no event can have."""
        whole(0, MOST, round=self.round)
        whole(1, MOST, population=self.population, count=self.count)
        sampling_probability(self.population, self.expected)
        if not isinstance(self.kind, Kind):
            raise TypeError(f"Expected a kind of release, found {self.kind!r}.")
        if self.clip == math.inf and self.kind.private:
            raise ValueError(f"Expected a finite clipping norm where noise is added, found {self.clip}.")
        if self.clip != math.inf:
            positive(clip=self.clip)

    @property
    def sampling_probability(self) -> float:
        """Probability that a unit is drawn."""
        return self.kind.sampling_probability

    @property
    def noise_multiplier(self) -> float:
        """Noise multiplier of Gaussian noise that hides no more than the kind."""
        return self.kind.noise_multiplier

    def to_json(self) -> dict[str, Any]:
        """Return the event as a JSON object; an infinite clip becomes ``"inf"``, as everywhere in the project."""
        return {
            "node": self.node,
            "round": self.round,
            "population": self.population,
            "expected": self.expected,
            "clip": "inf" if self.clip == math.inf else self.clip,
            "kind": self.kind.to_json(),
            "count": self.count,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read an event that `to_json` wrote.

        Unknown keys are refused: they may mean that more was released than the known keys show.

        Raises
        ------
        TypeError, ValueError, UserError
            If a key is missing or unknown, or a value is impossible.
        """
        clip = math.inf if content["clip"] == "inf" else content["clip"]
        return cls(**{**content, "clip": clip, "kind": kind_from_json(content["kind"])})


def entries_of(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Return events as a ledger's line holds them: JSON objects, each with all nodes that released the same."""
    groups: dict[str, list[str]] = {}
    for event in events:
        constants = {key: value for key, value in event.to_json().items() if key != "node"}
        groups.setdefault(json.dumps(constants), []).append(event.node)
    return [{"nodes": nodes, **json.loads(constants)} for constants, nodes in groups.items()]


def events_in(entries: Iterable[Mapping[str, Any]]) -> list[Event]:
    """Read events that `entries_of` wrote; raise an error as `Event.from_json` does."""
    events: list[Event] = []
    for entry in entries:
        constants = dict(entry)
        nodes = constants.pop("nodes")
        if not (isinstance(nodes, list) and nodes and all(isinstance(node, str) for node in nodes)):
            raise UserError("A ledger entry names no nodes of a release.")
        events += [Event.from_json({"node": node, **constants}) for node in nodes]
    return events


def kind_from_json(content: Mapping[str, Any]) -> Kind:
    """Read a kind that `Kind.to_json` wrote; raise an error as `Event.from_json` does, also of an unknown law."""
    numbers = dict(content)
    law = numbers.pop("law", None)
    if not isinstance(law, str):
        raise ValueError(f"Expected the name of a law of noise, found {law!r}.")
    for key, value in numbers.items():
        in_range(-math.inf, math.inf, **{key: value})
    return kind_of(law)(**numbers)


def sampling_probability(population: int, expected: float, share: Fraction = Fraction(1)) -> Fraction:
    """Return exactly R / N / share, the probability that a unit is drawn for a sum that it can be in.

    Parameters
    ----------
    population, expected
        N and R, as in `Event`.
    share
        If several sums are released together: the share of them for which one unit can be drawn.

    Raises
    ------
    ValueError
        If N is not positive, or R is not above zero and at most N.
    """
    positive(population=population, expected=expected)
    in_range(0, population, expected=expected)
    return Fraction(expected) / population / share


@dataclass(frozen=True, slots=True)
class NodeHistory:
    """Everything that one node released in one run.

    Attributes
    ----------
    population, expected, clip, kind, count
        As in `Event`. Each is constant in a run.
    rounds
        Number of different rounds. After a replay there are more releases than rounds.
    releases
        Number of releases, replays included.
    unshielded
        Number of releases in rounds where some node released twice or not at all. These rounds are never credited with
        the noise of other nodes, because differences of two sums can cancel it. The same holds for several releases at
        once, such as rows, because each of them is visible.
    """

    population: int
    expected: float
    clip: float
    kind: Kind
    count: int
    rounds: int
    releases: int
    unshielded: int = 0

    @property
    def mechanisms(self) -> dict[Kind, int]:
        """The releases as an accountant counts them."""
        return {self.kind: self.releases}

    @property
    def done(self) -> int:
        """How many of the declared rounds are over: of masked sums, every try is a declared one."""
        return self.releases // self.count if isinstance(self.kind, MaskedSum) else self.rounds

    @property
    def noise_variance(self) -> float:
        """Variance of the node's noise in the average of all nodes' messages, per part."""
        noise = self.kind.noise_multiplier
        return (noise * self.clip / self.expected) ** 2 if noise else 0.0


def histories(events: Iterable[Event]) -> dict[str, NodeHistory]:
    """Count the events of one run, node by node.

    Raises
    ------
    UserError
        If one node has two populations, divisors, clips, kinds or counts. The events then belong to different runs.
    """
    constants: dict[str, tuple[int, float, float, Kind, int]] = {}
    by_round: defaultdict[int, list[Event]] = defaultdict(list)
    for event in events:
        values = (event.population, event.expected, event.clip, event.kind, event.count)
        if constants.setdefault(event.node, values) != values:
            raise UserError(
                f"The rounds of node {event.node!r} show (population, expected, clip, kind, count) = "
                f"{constants[event.node]} and {values}. These are constants of a run: give the ledger of each run its "
                "own file."
            )
        by_round[event.round].append(event)

    rounds: Counter[str] = Counter()
    releases: Counter[str] = Counter()
    unshielded: Counter[str] = Counter()
    for together in by_round.values():
        nodes = {event.node for event in together}
        rounds.update(nodes)
        # Several releases at once are visible one by one, not only in an average with those of other nodes.
        clean = len(together) == len(nodes) == len(constants) and all(event.count == 1 for event in together)
        for event in together:
            releases[event.node] += event.count
            unshielded[event.node] += 0 if clean else event.count
    return {
        node: NodeHistory(*values, rounds=rounds[node], releases=releases[node], unshielded=unshielded[node])
        for node, values in constants.items()
    }
