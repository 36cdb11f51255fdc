"""The plan of a run: public constants only, in one object for calibration, training, federation and ledger.

A plan names no patient and no file, so every site of a federation can have it. Settings that change the speed of a run
but not its result are in `zetadp.training.settings.Performance`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from zetadp.account.declaration import PUBLIC, Declaration
from zetadp.accounting.events import Event, sampling_probability
from zetadp.accounting.kinds import NOISE, Kind, NoisySum
from zetadp.accounting.masked import MaskedSum
from zetadp.accounting.threat import MASKED_SUMS, CohortUnit, Sums, Threat, Unit, check_threat
from zetadp.base.epsilon import Delta, Target, check_delta
from zetadp.base.names import check_distinct, checked_name
from zetadp.base.runfolder import RunName
from zetadp.base.storage import read_json, write_json
from zetadp.base.validation import UserError, Within, check_fields, in_range, one_of, shown
from zetadp.nn.settings import BY_NOISE, DESCENT, STUDY, NetworkSettings
from zetadp.training.settings import GAUSSIAN, MixingSettings, OptimiserSettings, TrainingSettings
from zetadp.training.task import task_of

FORMAT = 4
"""Version of a plan's file."""
HEAD = NetworkSettings("head", "features")
"""The network of a plan with mixed rows in `Plan.for_calibration`."""


@dataclass(frozen=True)
class NodeConstants:
    """Public constants of one node.

    Attributes
    ----------
    name
        Name of the node.
    population
        Declared number N of its units: training patients, or their images where single images are drawn.
    expected
        Expected number R of units in a round.
    noise_multiplier
        sigma. It is zero in runs without noise and in plans that are not calibrated yet. For another law of noise it
        is that of Gaussian noise that hides no more (`zetadp.accounting.kinds.Kind.hiding`).
    """

    name: str
    population: Annotated[int, Within(ge=1, le=10**9)]
    expected: float
    noise_multiplier: float = 0.0

    def __post_init__(self) -> None:
        """Check every constant."""
        checked_name(self.name, "the name of a node")
        check_fields(self)
        in_range(1e-6 * self.population, math.inf, expected=self.expected)
        if self.expected > self.population:
            raise UserError(
                f"Expected at most the {self.population} units of {self.name} in a round, found {self.expected:g}.",
                "expected",
            )
        if self.noise_multiplier != 0:
            in_range(*NOISE, noise_multiplier=self.noise_multiplier)


@dataclass(frozen=True)
class Plan:
    """Everything that defines a run.

    Attributes
    ----------
    run
        Name of the run; the starting weights follow from its seed.
    network, training
        The network and how it is trained. ``training.noise`` must be ``os`` where patients are real. A taper ``noise``
        becomes a number as soon as the plan has its noise.
    nodes
        The nodes. Their positions in this order distinguish their seeded streams.
    delta
        The delta that belongs to the epsilon of the run's target.
    cohort
        Name of the cohort.
    simulated
        Whether it is declared that no patient is real. The source of the noise is another thing (`protects_people`).
    task
        Name and settings of the task, and how inputs are prepared.
    partition
        Settings that determined which patient is at which node. Needed to add up several runs on the same patients.
    unit
        The unit that is drawn, clipped and protected: ``patient``, the cohort's whole unit whatever it is, or each
        ``image`` by itself. A ledger's ``unit`` is the `cohort_unit`.
    units_of_a_person
        Images of one patient if images are the unit, else one.
    threat, sums
        Threat model of the calibration; with masked sums, what they rely on, else None.
    public
        Hashes of the inputs from public data: ``backbone``, ``start``.
    cohort_unit
        The unit of the cohort: ``patient`` or ``speaker`` only if each person has one record, or if the records of each
        person are joined; else ``record``. Ledgers and statements take it from here.
    """

    run: RunName
    network: NetworkSettings
    training: TrainingSettings
    nodes: tuple[NodeConstants, ...]
    delta: Delta = 1e-3
    cohort: str = ""
    task: Mapping[str, Any] = field(default_factory=dict)
    partition: Mapping[str, Any] = field(default_factory=dict)
    unit: Literal["patient", "image"] = "patient"
    units_of_a_person: Annotated[int, Within(ge=1, le=10**6)] = 1
    threat: Threat = "local"
    sums: Sums | None = None
    public: Mapping[str, str] = field(default_factory=dict)
    simulated: bool = False
    cohort_unit: CohortUnit = "patient"

    def __post_init__(self) -> None:
        """Check every value, and that values agree with each other."""
        check_fields(self)
        check_threat(self.threat, len(self.nodes), self.sums)
        if self.cohort:
            checked_name(self.cohort, "the plan's cohort")
        for key, digest in self.public.items():
            one_of(PUBLIC, public=key)
            if not isinstance(digest, str):
                raise ValueError(f"Expected public.{key} to be a hash, found {digest!r}.")
        if not isinstance(self.task, Mapping):
            raise ValueError(f"Expected task to hold keys with values, found {self.task!r}.")
        if self.task:
            checked_name(self.task["name"], "the plan's task")
        names = [node.name for node in self.nodes]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"Expected one node or more, each with a different name, found {names}.")
        # Names become names of files, and not every file system tells capitals from small letters.
        check_distinct(names, "the plan's nodes")
        if self.network.taper == BY_NOISE:
            object.__setattr__(self, "network", replace(self.network, taper=self._by_noise()))
        if not self.training.seeded and len({node.noise_multiplier > 0 for node in self.nodes}) > 1:
            raise ValueError(
                "Expected noise from the operating system at all nodes or at none, found nodes with and without noise."
            )
        if not self.target.clipped and any(node.noise_multiplier > 0 for node in self.nodes):
            raise ValueError(f"Expected no noise in a run {self.target}: without clipping it would hide nothing.")
        for key, fault in self._contradictions():
            raise UserError(fault, key)
        if not self.training.seeded and self.unit == "patient":
            check_delta(self.delta, self.people)
        if self.sums is not None:
            noises = {node.noise_multiplier for node in self.nodes}
            if len(noises) > 1:
                raise UserError(f"Expected the same noise at all nodes for masked sums, found {sorted(noises)}.")
            self.sums.check_room(self.people, self.nodes[0].noise_multiplier, len(self.nodes))

    def _by_noise(self) -> float | str:
        """Return the taper that follows from the noise of all rounds, or its name while the noise is not known."""
        signal = getattr(task_of(self.task), "signal", None)
        if signal is None:
            raise UserError(
                f"Expected taper as a number for task {self.task.get('name', 'none')}, of whose features no signal is "
                f"known, found {BY_NOISE}.",
                "taper",
            )
        noise = self.noise_of_mean()
        if not noise and self.target.private:
            return BY_NOISE
        return float(f"{noise / math.sqrt(self.training.rounds) / signal:.4g}")

    def _contradictions(self) -> Iterator[tuple[str, str]]:
        """Yield the key of a setting that does not go with another one, and why."""
        training, network = self.training, self.network
        at_once = training.estimator != DESCENT
        if self.unit == "image" and network.domain == STUDY:
            yield "unit", f"Expected unit patient for domain {STUDY}: one image changes the features of all others."
        if self.unit == "image" and at_once:
            yield "unit", f"Expected unit patient for estimator {training.estimator}, found image."
        if self.sums is not None:
            self.sums.shares(len(self.nodes))
            instead = f"Expected a threat other than {MASKED_SUMS} for"
            if training.mixing is not None:
                yield "threat", f"{instead} mixed rows: each node sends its own."
            if training.mechanism != GAUSSIAN:
                yield "threat", f"{instead} mechanism {training.mechanism}: the cost of a sum of messages is unknown."
        if at_once and network.family != "head":
            chosen = training.estimator
            yield "estimator", f"Expected estimator {DESCENT} for a network that is not of family head, found {chosen}."
        if at_once and network.taper:
            yield "taper", f"Expected taper 0 with estimator {training.estimator}, found {network.taper}."
        if any(self.probability(node.name) > 1 for node in self.nodes):
            yield (
                "degree",
                "Expected at most as many patients in a mixed row as are open to it, found more. Lower the degree of "
                "mixing, or open rows to more classes.",
            )

    @property
    def label(self) -> str:
        """Name of the run in file names."""
        return self.run.label

    @property
    def digest(self) -> str:
        """Hash of everything in the plan."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    @property
    def clip(self) -> float:
        """The clipping norm B; infinite where contributions are not clipped."""
        return self.training.clip if self.target.clipped else math.inf

    @property
    def target(self) -> Target:
        """What the run may cost one unit, and whether it clips."""
        return self.run.target

    @property
    def protects_people(self) -> bool:
        """Whether the run protects its people: its noise is exact and comes from the operating system's generator."""
        return not self.training.seeded and self.nodes[0].noise_multiplier > 0

    @property
    def tries(self) -> int:
        """Number of declared releases of a node: one per round, and the spare tries of masked sums."""
        return self.training.rounds + (0 if self.sums is None else self.sums.spare)

    @property
    def people(self) -> int:
        """Declared number of units of all nodes."""
        return sum(node.population for node in self.nodes)

    def expected(self, missing: Collection[str] = ()) -> float:
        """Return the expected number of units in a round of all nodes but the missing: the divisor of a masked sum."""
        return math.fsum(node.expected for node in self._senders(missing))

    def noise_of_mean(self, missing: Collection[str] = ()) -> float:
        """Return the standard deviation of the noise in the mean of a round's messages, per part, in clipping norms.

        Masked sums are divided by the expected number of their nodes' units. Other messages are means of their nodes'
        units, and the mean of these has every node with equal weight.

        Parameters
        ----------
        missing
            Names of nodes that sent no message.
        """
        nodes = self._senders(missing)
        if self.sums is not None:
            return math.hypot(*(node.noise_multiplier for node in nodes)) / self.expected(missing)
        return math.hypot(*(node.noise_multiplier / node.expected for node in nodes)) / len(nodes)

    @property
    def noise_of_row(self) -> float:
        """Standard deviation of the noise in each number of a mixed row: its root mean square over the nodes."""
        rows = [node.noise_multiplier / node.expected for node in self.nodes]
        return self.training.clip * math.hypot(*rows) / math.sqrt(len(rows))

    def _senders(self, missing: Collection[str]) -> list[NodeConstants]:
        return [node for node in self.nodes if node.name not in missing]

    @property
    def masked(self) -> bool:
        """Whether nodes release parts of masked sums, which are whole numbers."""
        return self.sums is not None and self.nodes[0].noise_multiplier > 0

    @property
    def protects(self) -> Unit:
        """The unit of the guarantee in the word that ledgers, statements and pages have for it: patient, image, ..."""
        return "image" if self.unit == "image" else self.cohort_unit

    @property
    def together(self) -> int:
        """Number of images that make one contribution."""
        return 1 if self.unit == "image" else self.training.images_per_patient

    def position(self, name: str) -> int:
        """Return a node's position in the order of nodes, counted from zero.

        Raises
        ------
        UserError
            If the plan has no node of this name.
        """
        names = [node.name for node in self.nodes]
        if name not in names:
            raise UserError(f"Expected the name of a node of the plan ({', '.join(names)}), found {name!r}.")
        return names.index(name)

    @property
    def open_rows(self) -> int:
        """Number of sums of a round that can contain one unit: one, or several mixed rows."""
        mixing = self.training.mixing
        return 1 if mixing is None else mixing.open_rows

    def probability(self, name: str) -> Fraction:
        """Return the chance that a unit of a node is drawn for a sum that it can be in."""
        node, mixing = self.nodes[self.position(name)], self.training.mixing
        return sampling_probability(node.population, node.expected, Fraction(1) if mixing is None else mixing.share)

    def event(self, name: str, round_number: int) -> Event:
        """Return the entry of a round in a node's ledger: public constants, the same for every round.

        The kind of a masked sum counts the fewest nodes that are relied on to add noise, regardless of who takes part.
        Any other kind is the noisy sum that the plan was calibrated for. Another law hides as much or more, and the
        ledger records it, because its numbers follow from the network too.
        """
        node, probability = self.nodes[self.position(name)], float(self.probability(name))
        kind: Kind = NoisySum(probability, node.noise_multiplier)
        if self.sums is not None and kind.private:
            kind = MaskedSum(probability, node.noise_multiplier, self.sums.shares(len(self.nodes)))
        return Event(name, round_number, node.population, node.expected, self.clip, kind, self.open_rows)

    def mechanisms(self, name: str) -> Counter[Kind]:
        """Return the kinds of a node's releases with their numbers, as an accountant counts them."""
        event = self.event(name, 0)
        return Counter({event.kind: self.tries * event.count})

    def with_noise(self, noise_multiplier: float) -> Self:
        """Return the plan with this noise at every node."""
        return replace(self, nodes=tuple(replace(node, noise_multiplier=noise_multiplier) for node in self.nodes))

    def with_public(self, **digests: str) -> Self:
        """Return the plan with further hashes of inputs from public data."""
        return replace(self, public={**self.public, **digests})

    def for_calibration(self) -> Self:
        """Return the plan with only the values that determine its noise: equal results need the same noise."""
        return replace(
            self,
            run=RunName("any", "any", self.target, 0),
            nodes=tuple(replace(node, noise_multiplier=0.0) for node in self.nodes),
            unit="patient",
            units_of_a_person=1,
            cohort_unit="patient",
            network=NetworkSettings("linear") if self.training.mixing is None else HEAD,
            training=self.training.for_calibration(),
            cohort="",
            task={},
            partition={},
            public={},
            simulated=False,
        )

    def declaration(self) -> Declaration:
        """Return what an attempt declares in its ledger's first line."""
        return Declaration(
            run=self.run.to_json(),
            network=self.network.to_json(),
            training={key: value for key, value in self.training.described().items() if key != "noise"},
            nodes=[asdict(node) for node in self.nodes],
            releases=tuple(self.event(node.name, 0) for node in self.nodes),
            noise=self.training.noise,
            delta=self.delta,
            cohort=self.cohort,
            task=dict(self.task),
            partition=dict(self.partition),
            cohort_unit=self.cohort_unit,
            threat=self.threat,
            plan=self.digest,
            public=self.public,
            # A reader of the ledger must know that several of the counted units belong to one patient.
            images=self.units_of_a_person if self.unit == "image" else None,
            sums=self.sums,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the plan as a JSON object."""
        content = {**asdict(self), "run": self.run.to_json(), "network": self.network.to_json()}
        content |= {"training": self.training.described(), "nodes": list(content["nodes"])}
        return {"format": FORMAT, **content}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read a plan that `to_json` wrote.

        Raises
        ------
        UserError
            If the plan has another format, or a key or value is missing, unknown or wrong.
        """
        remaining = dict(content) if isinstance(content, Mapping) else {}
        if (version := remaining.pop("format", None)) != FORMAT:
            raise UserError(f"Expected a plan of format {FORMAT}, found {shown(str(version))}. Make the plan again.")
        try:
            training = dict(remaining.pop("training"))
            training["optimiser"] = OptimiserSettings(**training["optimiser"])
            if "mixing" in training:
                training["mixing"] = MixingSettings(**training["mixing"])
            return cls(
                run=RunName.from_json(remaining.pop("run")),
                network=NetworkSettings(**remaining.pop("network")),
                training=TrainingSettings(**training),
                nodes=tuple(NodeConstants(**node) for node in remaining.pop("nodes")),
                sums=None if (sums := remaining.pop("sums", None)) is None else Sums(**sums),
                **remaining,
            )
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise UserError(
                "Expected a plan as the coordinator sent it, found a key or value that is missing or wrong: "
                f"{shown(str(error))}."
            ) from error

    def write(self, path: Path | str) -> None:
        """Write the plan as a JSON file."""
        write_json(Path(path), self.to_json())

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a plan's file; raise `UserError` as `from_json` does, with the file."""
        content = read_json(path)
        try:
            return cls.from_json(content)
        except UserError as error:
            error.args = (f"{error} The plan is {path}.",)
            raise
