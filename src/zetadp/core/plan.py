"""What defines a training: public constants only, one object for calibration, training, federation and ledger.

A plan names no patient and no file, so every site of a federation can hold it. What changes how fast a training goes
but not its result is no part of it (`zetadp.core.settings.Performance`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, Self

from zetadp.core.settings import DIRECTION, GAUSSIAN, MixingSettings, OptimiserSettings, TrainingSettings
from zetadp.epsilon import UNCLIPPED
from zetadp.nn.settings import DESCENT, MIXED_ROWS, NetworkSettings
from zetadp.privacy.events import Kind, Round, sampling_probability
from zetadp.privacy.threat import SECURE_AGGREGATION, Threat
from zetadp.storage import read_json, write_json
from zetadp.validation import UserError, in_range, one_of, positive

FORMAT = 2
"""Version of a plan's file."""
SEEDING = 1
"""Version of the list of values that seeded draws are a function of."""
HEAD = NetworkSettings("head", "features")
"""The network of a plan that is bare but for mixed rows."""
UPDATES = ("float32", "float16", "int8")
"""How updates travel between sites."""


@dataclass(frozen=True, order=True)
class RunName:
    """What tells one run of an experiment from another.

    Attributes
    ----------
    network, arm
        Names of sections of the configuration.
    epsilon
        Target as text: a number, ``inf`` (clips, adds no noise) or ``unclipped`` (neither).
    seed
        Seed of the starting weights and, with all that defines the run, of sampling and noise.
    """

    network: str
    arm: str
    epsilon: str
    seed: int

    def __str__(self) -> str:
        return f"{self.network} {self.arm} eps-{self.epsilon} seed-{self.seed}"


@dataclass(frozen=True)
class NodeConstants:
    """Public constants of one node.

    Attributes
    ----------
    name
        Name of the node.
    population
        Declared number of its units, N: training patients, or their images where single images are drawn.
    expected
        Expected units in a round, R.
    noise_multiplier
        sigma; zero adds none, for runs without noise and for plans that are not calibrated yet. Where directions are
        released, that of Gaussian noise which hides no more (`zetadp.privacy.events.gaussian_bound`).
    """

    name: str
    population: int
    expected: float
    noise_multiplier: float = 0.0

    def __post_init__(self) -> None:
        """Check every constant."""
        positive(population=self.population, expected=self.expected)
        in_range(0, self.population, expected=self.expected)
        in_range(0, float("inf"), noise_multiplier=self.noise_multiplier)


@dataclass(frozen=True)
class Plan:
    """A training, by all that defines it.

    Attributes
    ----------
    run
        Name of the run; the starting weights follow from its seed.
    network, training
        What is trained and how. ``training.noise`` must be ``os`` where patients are real.
    nodes
        The nodes; the place in this order sets a node's seeded streams apart.
    delta
        The delta of the epsilon that the run's name promises.
    cohort
        Name that stands for the patients.
    simulated
        Whether the patients are simulated; None where nobody says, as in plans of earlier versions.
    task
        What the networks learn, and how inputs are prepared.
    partition
        What decided who is where, for whoever adds up several trainings on the same patients.
    unit
        Who is drawn, clipped and hidden: ``patient``, or each ``image`` by itself.
    units_of_a_person
        Images of one patient where images are drawn, else one.
    threat, colluding
        Against whom the noise was calibrated; with secure aggregation, how many nodes' noise is not counted on.
    public
        Hashes of what the training takes from public data: ``backbone``, ``start``.
    update
        How updates travel in a federation: ``float32`` as they are; ``float16`` or ``int8`` rounded after the noise,
        which is post-processing and costs no privacy.
    """

    run: RunName
    network: NetworkSettings
    training: TrainingSettings
    nodes: tuple[NodeConstants, ...]
    delta: float = 1e-3
    cohort: str = ""
    task: Mapping[str, Any] = field(default_factory=dict)
    partition: Mapping[str, Any] = field(default_factory=dict)
    unit: Literal["patient", "image"] = "patient"
    units_of_a_person: int = 1
    threat: Threat = "local"
    colluding: int | None = None
    public: Mapping[str, str] = field(default_factory=dict)
    update: str = "float32"
    simulated: bool | None = None

    def __post_init__(self) -> None:
        """Check what no part checks alone."""
        one_of(UPDATES, update=self.update)
        one_of(("patient", "image"), unit=self.unit)
        one_of(("local", "central", SECURE_AGGREGATION), threat=self.threat)
        positive(units_of_a_person=self.units_of_a_person)
        in_range(0, 1, delta=self.delta)
        names = [node.name for node in self.nodes]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"Expected nodes with names of their own, found {names}.")
        if self.training.noise == "os" and len({node.noise_multiplier > 0 for node in self.nodes}) > 1:
            raise ValueError(
                "Expected noise at all nodes or at none where it comes from the operating system, found some without."
            )
        if (self.threat == SECURE_AGGREGATION) != (self.colluding is not None):
            raise ValueError(f"Expected colluding exactly with threat {SECURE_AGGREGATION}, found {self.colluding}.")
        if self.training.estimator != DESCENT and self.network.family != "head":
            found = self.training.estimator
            raise UserError(f"Expected estimator {DESCENT} for a network that is not of family head, found {found}.")
        if any(self.probability(node.name) > 1 for node in self.nodes):
            raise UserError(
                "Expected at most as many patients in a mixed row as are open to it, found more. Lower the degree of "
                "mixing, or open rows to more classes."
            )
        if self.training.mixing is not None and self.threat == SECURE_AGGREGATION:
            raise UserError(
                f"Expected a threat other than {SECURE_AGGREGATION} for mixed rows: each node sends its own."
            )
        if self.training.release == DIRECTION and self.threat == SECURE_AGGREGATION:
            raise UserError(
                f"Expected a threat other than {SECURE_AGGREGATION} for release {DIRECTION}: what a sum of directions "
                "costs is not known."
            )

    @property
    def label(self) -> str:
        """What files of the run are called."""
        run = self.run
        return f"{run.network}-{run.arm}-eps-{run.epsilon}-seed-{run.seed}"

    @property
    def digest(self) -> str:
        """Hash of everything in the plan."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    @property
    def clip(self) -> float:
        """The clipping norm, infinite where contributions are not clipped."""
        return math.inf if self.run.epsilon == UNCLIPPED else self.training.clip

    @property
    def exact(self) -> bool:
        """Whether noise is exact and comes from the operating system."""
        return self.training.noise == "os" and self.nodes[0].noise_multiplier > 0

    @property
    def together(self) -> int:
        """Images that make one contribution."""
        return 1 if self.unit == "image" else self.training.images_per_patient

    def place(self, name: str) -> int:
        """Return a node's place in the order of nodes.

        Raises
        ------
        UserError
            If the plan does not know the node.
        """
        names = [node.name for node in self.nodes]
        if name not in names:
            raise UserError(f"Expected the name of a node of the plan ({', '.join(names)}), found {name!r}.")
        return names.index(name)

    @property
    def open_rows(self) -> int:
        """Sums of a round that one unit can be in: one, or mixed rows."""
        mixing = self.training.mixing
        return 1 if mixing is None else mixing.open_rows

    def probability(self, name: str) -> Fraction:
        """Return the chance of each unit of a node to be drawn for a sum that it can be in."""
        node, mixing = self.nodes[self.place(name)], self.training.mixing
        return sampling_probability(node.population, node.expected, Fraction(1) if mixing is None else mixing.share)

    def event(self, name: str, round_number: int) -> Round:
        """Return what a node's ledger says of a round: public constants, the same for every round.

        Of a direction, the ledger adds dimension and concentration, which follow from the network; they cost no more.
        """
        node, mixing = self.nodes[self.place(name)], self.training.mixing
        first = Round.poisson(
            name,
            population=node.population,
            expected=node.expected,
            noise_multiplier=node.noise_multiplier,
            clip=self.clip,
            share=Fraction(1) if mixing is None else mixing.share,
        )
        return replace(first, round=round_number, count=self.open_rows)

    def events(self, name: str) -> Iterator[Round]:
        """Return all that a node will have released after the last round."""
        return (self.event(name, number) for number in range(self.training.rounds))

    def mechanisms(self, name: str) -> Counter[Kind]:
        """Return what a node's releases are to an accountant."""
        found: Counter[Kind] = Counter()
        for event in self.events(name):
            found[event.mechanism] += event.count
        return found

    def with_noise(self, noise_multiplier: float) -> Self:
        """Return the plan with this noise at every node."""
        return replace(self, nodes=tuple(replace(node, noise_multiplier=noise_multiplier) for node in self.nodes))

    def with_public(self, **digests: str) -> Self:
        """Return the plan with further hashes of what comes from public data."""
        return replace(self, public={**self.public, **digests})

    def calibration(self) -> list[Any]:
        """Return what the noise of the plan follows from; plans that agree in it need the same noise."""
        sizes = [[node.population, float(node.expected)] for node in self.nodes]
        mixing = self.training.mixing
        rows = [] if mixing is None else [[mixing.rows, mixing.active]]
        return [self.run.epsilon, self.delta, self.training.rounds, self.threat, self.colluding, sizes, *rows]

    def bare(self) -> Self:
        """Return the plan with its name, its unit and what its noise follows from, and nothing else of its own."""
        return replace(
            self,
            network=NetworkSettings("linear") if self.training.mixing is None else HEAD,
            training=self._bare_training(),
            cohort="",
            task={},
            partition={},
            public={},
            update="float32",
            simulated=None,
        )

    def _bare_training(self) -> TrainingSettings:
        mixing = self.training.mixing
        if mixing is None:
            return TrainingSettings(self.training.rounds)
        return TrainingSettings(1, estimator=MIXED_ROWS, mixing=MixingSettings(mixing.rows, mixing.active))

    @property
    def seeding(self) -> str:
        """Hash of a fixed list of values, version `SEEDING`, that tells seeded runs apart.

        A value that is added to a plan later does not join the list: runs of an older version keep their draws. Nothing
        in it depends on data, or on weights or features computed from data, whose last bits differ between processors.
        """
        net, own, optimiser = self.network, self.training, self.training.optimiser
        run = [self.run.network, self.run.arm, self.run.epsilon, self.run.seed, self.cohort]
        network = [net.family, net.domain, list(net.widths), net.convolutions, net.head, net.hidden, net.groups]
        network += [net.activation, net.transform, net.components, net.start, net.trained, net.rank]
        training = [own.rounds, own.images_per_patient, float(own.clip), own.estimator, float(own.feature_norm)]
        training += [optimiser.name, *map(float, (optimiser.learning_rate, optimiser.drop_after))]
        training += map(float, (optimiser.drop_factor, optimiser.momentum, optimiser.averaged))
        nodes = [[n.name, n.population, float(n.expected), float(n.noise_multiplier)] for n in self.nodes]
        rest = [self.unit, self.units_of_a_person, self.threat, self.colluding]
        partition = json.dumps(self.partition, sort_keys=True)
        further: list[Any] = [] if own.release == GAUSSIAN else [own.release]
        further += [] if own.mixing is None else [asdict(own.mixing)]
        content = json.dumps([SEEDING, run, network, training, nodes, rest, partition, *further])
        return hashlib.sha256(content.encode()).hexdigest()

    def entropy(self, repeat: int = 0) -> int:
        """Return the seed of sampling and noise where they are seeded, which protects nobody.

        Parameters
        ----------
        repeat
            Tells apart trainings by one plan whose releases count as independent.
        """
        return int(hashlib.sha256(f"{self.seeding} {repeat}".encode()).hexdigest()[:32], 16)

    def header(self) -> dict[str, Any]:
        """Return what the first line of an attempt says in a ledger."""
        found: dict[str, Any] = {
            "run": asdict(self.run),
            "network": self.network.described(),
            "training": _without(_described(self.training), "noise"),
            "nodes": [asdict(node) for node in self.nodes],
            "noise": self.training.noise,
            "delta": self.delta,
            "cohort": self.cohort,
            "task": dict(self.task),
            "partition": dict(self.partition),
            **self.public,
        }
        if self.training.mixing is not None:
            # Of one round; a patient can be in so many of its rows, with this chance in each.
            found["rows"] = {
                "open": self.open_rows,
                "sampling_probability": {node.name: float(self.probability(node.name)) for node in self.nodes},
            }
        if self.unit == "image":
            # Whoever reads the ledger must know that a patient stands behind many of the units that it counts.
            found |= {"unit": "image", "images_of_a_patient": self.units_of_a_person}
        if self.threat == SECURE_AGGREGATION:
            # Its noise was meant for sums.
            found |= {"threat": self.threat, "colluding": self.colluding}
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the plan as a JSON object."""
        content = {**asdict(self), "training": _described(self.training)}
        content["network"]["widths"] = list(self.network.widths)
        content["nodes"] = list(content["nodes"])
        if self.simulated is None:
            del content["simulated"]  # a plan of an earlier version keeps its hash
        return {"format": FORMAT, **content}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read a plan that `to_json` wrote.

        Raises
        ------
        UserError
            If it is of another version, or lacks or adds anything.
        """
        given = dict(content)
        if given.pop("format", None) != FORMAT:
            raise UserError(
                f"Expected a plan of format {FORMAT}, found {content.get('format')}. Make it with this version."
            )
        try:
            training = dict(given.pop("training"))
            training["optimiser"] = OptimiserSettings(**training["optimiser"])
            if "mixing" in training:
                training["mixing"] = MixingSettings(**training["mixing"])
            return cls(
                run=RunName(**given.pop("run")),
                network=NetworkSettings(**given.pop("network")),
                training=TrainingSettings(**training),
                nodes=tuple(NodeConstants(**node) for node in given.pop("nodes")),
                **given,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"Not a plan of a training: {error}. Take the file that the coordinating site sent, unchanged."
            ) from error

    def write(self, path: Path) -> None:
        """Write the plan as a JSON file."""
        write_json(path, self.to_json())

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a plan's file."""
        return cls.from_json(read_json(path))


def _described(training: TrainingSettings) -> dict[str, Any]:
    """Return settings as files name them: those of mixing and of directions stand there where there are any."""
    content = asdict(training)
    if training.release == GAUSSIAN:
        del content["release"]
    return content if training.mixing is not None else _without(content, "mixing")


def _without(content: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name != key}
