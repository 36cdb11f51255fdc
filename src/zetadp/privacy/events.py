"""Records of releases, which an accountant can compose.

A `Round` describes what one node released in one round. The code that draws patients and noise creates it. A
`NodeHistory` counts the rounds of one node by kind. A release is a noisy sum or a direction.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, NamedTuple, Self, TypeAlias

from zetadp.base.validation import UserError, in_range, positive

Mechanism: TypeAlias = tuple[float, float]
"""Sampling probability and noise multiplier of a noisy sum. Its privacy depends on nothing else."""


class Direction(NamedTuple):
    """The values on which the privacy of a direction depends.

    Attributes
    ----------
    sampling_probability
        Probability that a person is drawn.
    concentration
        Kappa of its von Mises-Fisher law.
    dimension
        Real dimension p. A complex coordinate counts twice.
    law
        Distinguishes a direction from other kinds with the same numbers.
    """

    sampling_probability: float
    concentration: float
    dimension: int
    law: str = "von Mises-Fisher"


Kind: TypeAlias = Mechanism | Direction
"""The values on which the privacy of a release depends. There are no other kinds."""


def gaussian_bound(level: float, dimension: int) -> float:
    r"""Convert a direction's concentration to the noise multiplier of Gaussian noise that hides no more, or back.

    .. math:: z = \sqrt{p - 3} / (2 \kappa), \quad \kappa = \sqrt{p - 3} / (2 z)

    This is a bound, not an approximation. The cosine t of opposite centres has the density
    :math:`\propto e^{\theta t} (1 - t^2)^{(p-3)/2}` with :math:`\theta = \pm\kappa`, which is log-concave with
    :math:`-(\log f)'' \ge p - 3`. Its increasing map from a standard normal number therefore has a slope of at most
    :math:`1 / \sqrt{p - 3}` (Caffarelli 2000, doi:10.1007/s002200000257). So s in :math:`P_\theta(t > c) = \Phi(s)` has
    the slope :math:`\mathrm{Cov}_\theta(1_{t > c}, t) / \varphi(s) \le 1 / \sqrt{p - 3}` in theta, and grows by at most
    :math:`2 \kappa / \sqrt{p - 3}` from one centre to the other. The tests of highest power have the form t > c, so the
    pair is Gaussian differentially private with that mu.

    Parameters
    ----------
    level
        Concentration, or noise multiplier.
    dimension
        Real dimension p, more than 3.
    """
    if dimension <= 3:
        raise ValueError(f"Expected a dimension above 3, found {dimension}.")
    positive(level=level)
    return math.sqrt(dimension - 3) / (2 * level)


@dataclass(frozen=True, slots=True)
class Round:
    """One noisy sum, or one direction, that one node released.

    Each of `population` patients was drawn independently with `sampling_probability`; each contribution was clipped to
    norm `clip`; complex Gaussian noise with variance ``(noise_multiplier * clip)**2`` in the real and the same in the
    imaginary part of every coordinate was added to the sum. The receiver divides by `expected`.

    If there is a `concentration`, no such noise was added. Instead, a unit vector was drawn from the von Mises-Fisher
    law around the direction of the sum, or around a fixed public direction if the sum was zero.

    Attributes
    ----------
    node
        Name of the node.
    round
        Number of the round, from zero. Two entries with one node and one round are two releases.
    population
        Patients (or records) at the node, a public constant N.
    expected
        The divisor R, a public constant, at most `population`.
    sampling_probability
        In (0, 1]; 1 is full participation.
    noise_multiplier
        Standard deviation of the noise in each part, in units of `clip`. Zero means no noise and no guarantee. For a
        direction, that of Gaussian noise that hides no more (`gaussian_bound`).
    clip
        Bound on the norm of one contribution. Infinite for an unclipped round, which is possible only without noise.
    count
        Number of releases in this entry, each with its own draw and noise, such as rows that a node sends together. One
        in a round of training.
    concentration, dimension
        Kappa and real dimension of a direction; both zero for a noisy sum.
    """

    node: str
    round: int
    population: int
    expected: float
    sampling_probability: float
    noise_multiplier: float
    clip: float
    count: int = 1
    concentration: float = 0.0
    dimension: int = 0

    def __post_init__(self) -> None:
        """Refuse values that no round can have."""
        positive(population=self.population, expected=self.expected, sampling_probability=self.sampling_probability)
        positive(count=self.count)
        in_range(0, 1, sampling_probability=self.sampling_probability)
        in_range(0, self.population, expected=self.expected)
        if self.round < 0 or not (self.noise_multiplier >= 0 and math.isfinite(self.noise_multiplier)):
            raise ValueError(
                f"Expected round and finite noise_multiplier >= 0, found {self.round}, {self.noise_multiplier}."
            )
        if self.clip == math.inf and self.noise_multiplier > 0:
            raise ValueError(f"Expected a finite clipping norm where noise is added, found {self.clip}.")
        if self.clip != math.inf:
            positive(clip=self.clip)
        if self.concentration or self.dimension:
            least = gaussian_bound(self.concentration, self.dimension)
            if not 0 < self.noise_multiplier <= least * (1 + 1e-9):
                raise ValueError(f"Expected a noise_multiplier above 0 and at most {least}, found {self}.")

    def as_direction(self, dimension: int) -> Self:
        """Return the round with a direction instead of the noisy sum, concentrated so that it hides no less.

        Parameters
        ----------
        dimension
            Real numbers of a message, more than 3.
        """
        kappa = gaussian_bound(self.noise_multiplier, dimension)
        return replace(self, concentration=kappa, dimension=dimension)

    @classmethod
    def poisson(
        cls,
        node: str,
        *,
        population: int,
        expected: float,
        noise_multiplier: float,
        clip: float,
        share: Fraction = Fraction(1),
    ) -> Self:
        """Return round zero of a node whose sampling probability follows from the expected number of patients.

        Parameters
        ----------
        node, population, expected, noise_multiplier, clip
            As the attributes. `expected` is at most `population`.
        share
            If several sums are released together: the share of them for which one patient can be drawn. The sampling
            probability in these sums is R / N / share. The count is one; the caller sets it for several sums.
        """
        return cls(
            node=node,
            round=0,
            population=population,
            expected=expected,
            sampling_probability=float(sampling_probability(population, expected, share)),
            noise_multiplier=noise_multiplier,
            clip=clip,
        )

    @property
    def mechanism(self) -> Kind:
        """Kind of the release: sampling probability and noise multiplier, or a direction."""
        if self.dimension:
            return Direction(self.sampling_probability, self.concentration, self.dimension)
        return self.sampling_probability, self.noise_multiplier

    def to_json(self) -> dict[str, Any]:
        """Return the round as a JSON object; an infinite clip becomes ``"inf"``, as everywhere in the project.

        A count of one is left out, as in old ledgers, and so are the concentration and dimension of a noisy sum.
        """
        several = {} if self.count == 1 else {"count": self.count}
        law = {"concentration": self.concentration, "dimension": self.dimension} if self.dimension else {}
        return {**several, **law} | {
            "node": self.node,
            "round": self.round,
            "population": self.population,
            "expected": self.expected,
            "sampling_probability": self.sampling_probability,
            "noise_multiplier": self.noise_multiplier,
            "clip": "inf" if self.clip == math.inf else self.clip,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Round:
        """Read a round that `to_json` wrote.

        Raises
        ------
        UserError
            If a key is missing, a value is impossible, or there are unknown keys. Unknown keys may mean that more was
            released than the known keys show.
        """
        if unknown := sorted(content.keys() - cls.__dataclass_fields__.keys()):
            msg = (
                f"A ledger entry has the key(s) {', '.join(unknown)}, which this version of zetadp does not know. What "
                "it released cannot be accounted for: read the ledger with the version that wrote it."
            )
            raise UserError(msg)
        try:
            return cls(
                node=str(content["node"]),
                round=int(content["round"]),
                population=int(content["population"]),
                expected=float(content["expected"]),
                sampling_probability=float(content["sampling_probability"]),
                noise_multiplier=float(content["noise_multiplier"]),
                clip=float(content["clip"]),
                count=int(content.get("count", 1)),
                concentration=float(content.get("concentration", 0)),
                dimension=int(content.get("dimension", 0)),
            )
        except KeyError as error:
            raise UserError(
                f"A ledger entry lacks the key {error}; found {list(content)}. The ledger is damaged: restore it."
            ) from error
        except (TypeError, ValueError) as error:
            raise UserError(
                f"A ledger entry is not a round: {error} Entry: {dict(content)}. The ledger is damaged: restore it."
            ) from error


def sampling_probability(population: int, expected: float, share: Fraction = Fraction(1)) -> Fraction:
    """Return exactly R / N / share, the probability that a patient is drawn (`Round.poisson`)."""
    return Fraction(expected) / population / share


@dataclass(frozen=True, slots=True)
class NodeHistory:
    """Everything that one node released in one run, counted by kind.

    All releases have one law: noisy sums, or directions of one concentration and dimension.

    Attributes
    ----------
    population, expected, clip, count
        As in `Round`. Each is constant in a run.
    mechanisms
        Number of releases of each kind, replays included.
    unshielded
        The releases in rounds where some node released twice or not at all. These rounds are never credited with the
        noise of other nodes, because differences of two sums can cancel it. The same holds for several releases at
        once, such as rows, because each of them is visible.
    rounds
        Number of different rounds. After a replay there are more releases than rounds.
    least_noise
        If the declared noise changes over the rounds (`least_noise`), the least noise of any declared round, whether it
        happened or not. Infinite if the noise is constant.
    """

    population: int
    expected: float
    clip: float
    mechanisms: Mapping[Kind, int]
    rounds: int
    unshielded: Mapping[Kind, int] = field(default_factory=dict)
    least_noise: float = math.inf
    count: int = 1

    @property
    def releases(self) -> int:
        """Number of releases, replays included."""
        return sum(self.mechanisms.values())


def histories(rounds: Iterable[Round], least_noise: Mapping[str, float] | None = None) -> dict[str, NodeHistory]:
    """Count the rounds of one run, node by node.

    Parameters
    ----------
    rounds
        Every release of the run.
    least_noise
        As in `NodeHistory`, by node. None if the noise is constant.

    Raises
    ------
    UserError
        If one node has two populations, divisors, clips, counts or laws. The rounds then belong to different runs.
    """
    least = least_noise or {}
    constants: dict[str, tuple[int, float, float, int, float, int]] = {}
    by_round: defaultdict[int, list[Round]] = defaultdict(list)
    for entry in rounds:
        found = (entry.population, entry.expected, entry.clip, entry.count, entry.concentration, entry.dimension)
        if constants.setdefault(entry.node, found) != found:
            raise UserError(
                f"The rounds of node {entry.node!r} show (population, expected, clip, count, concentration, dimension) "
                f"= {constants[entry.node]} and {found}. These are constants of a run: give the ledger of each run its "
                "own file."
            )
        by_round[entry.round].append(entry)

    mechanisms: dict[str, Counter[Kind]] = {node: Counter() for node in constants}
    unshielded: dict[str, Counter[Kind]] = {node: Counter() for node in constants}
    distinct: Counter[str] = Counter()
    for entries in by_round.values():
        nodes = {entry.node for entry in entries}
        # Several releases at once are visible one by one, not only in an average with those of other nodes.
        clean = len(entries) == len(nodes) == len(constants) and all(entry.count == 1 for entry in entries)
        distinct.update(nodes)
        for entry in entries:
            mechanisms[entry.node][entry.mechanism] += entry.count
            if not clean:
                unshielded[entry.node][entry.mechanism] += entry.count
    return {
        node: NodeHistory(
            population=population,
            expected=expected,
            clip=clip,
            mechanisms=mechanisms[node],
            rounds=distinct[node],
            unshielded=unshielded[node],
            least_noise=least.get(node, math.inf),
            count=count,
        )
        for node, (population, expected, clip, count, *_) in constants.items()
    }


def least_noise(header: Mapping[str, Any]) -> dict[str, float]:
    """Return the least noise of any declared round for each node of a run, from the header of its ledger.

    The result is empty if the noise is constant, as in every new run. Ledgers of old runs can declare a
    ``noise_decay``: over the rounds, the noise changed from that of the header to this multiple of it. The rounds that
    such a run did not release may have had any of these levels, so they count with the least noise.
    """
    training = header.get("training")
    # Other programs write their own headers, in which this key can have any value.
    if not isinstance(training, Mapping) or training.get("noise_decay", 1) == 1:
        return {}
    decay = training["noise_decay"]
    positive(rounds=training["rounds"], noise_decay=decay)
    least = min(1.0, decay) if training["rounds"] > 1 else 1.0
    return {node["name"]: least * node["noise_multiplier"] for node in header["nodes"]}
