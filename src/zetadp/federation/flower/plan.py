"""What all sites of a federation agree on before it begins: public constants only.

The plan is a file that every hospital and the server hold. Requests name it by its hash and carry nothing of it, so
the server cannot change noise, clipping, sampling, network or rounds: a node does what its own copy says.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from zetadp.cohort.decathlon import SEQUENCES
from zetadp.epsilon import UNCLIPPED
from zetadp.estimators import DESCENT
from zetadp.federation.flower.updates import FORMATS
from zetadp.federation.server import OptimiserSettings
from zetadp.nn.models import NetworkSettings, build
from zetadp.nn.parameters import Layout
from zetadp.privacy.events import Round
from zetadp.privacy.exact_mechanism import ExactSampledGaussian
from zetadp.privacy.grid import Grid
from zetadp.privacy.mechanism import SampledGaussian
from zetadp.randomness import Purpose, stream
from zetadp.storage import read_json, write_json
from zetadp.training import RunName, TrainingSettings
from zetadp.validation import UserError, in_range, one_of, positive

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from zetadp.privacy.ledger import Ledger

FORMAT = 1


@dataclass(frozen=True)
class PlannedNode:
    """Public constants of one node.

    Attributes
    ----------
    name
        Name of the node.
    population
        Declared number of its training patients, N.
    expected
        Expected patients in a round, R.
    noise_multiplier
        sigma; zero adds none.
    """

    name: str
    population: int
    expected: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        """Check every constant."""
        positive(population=self.population, expected=self.expected)
        in_range(0, self.population, expected=self.expected)
        in_range(0, float("inf"), noise_multiplier=self.noise_multiplier)


@dataclass(frozen=True)
class Plan:
    """A training that all sites have agreed to.

    Attributes
    ----------
    run
        Network, arm, epsilon and seed; the starting weights follow from the seed.
    cohort
        Name that stands for the patients.
    network, training
        What is trained and how. ``training.noise`` must be ``os`` where patients are real.
    slices, size
        Centre slices of each sequence, and their side in pixels.
    nodes
        The nodes; the place in this order sets a node's seeded streams apart, where a simulation has any.
    update
        How updates travel: ``float32`` as they are; ``float16`` or ``int8`` rounded after the noise, which is
        post-processing and costs no privacy.
    partition
        What decided who is where, for whoever adds up several trainings on the same patients.
    """

    run: RunName
    cohort: str
    network: NetworkSettings
    training: TrainingSettings
    slices: int
    size: int
    nodes: tuple[PlannedNode, ...]
    update: str = "float32"
    partition: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Check what no part checks alone."""
        one_of(FORMATS, update=self.update)
        positive(slices=self.slices, size=self.size)
        names = [node.name for node in self.nodes]
        if not names or len(set(names)) != len(names):
            msg = f"Expected nodes with names of their own, found {names}."
            raise ValueError(msg)
        if self.training.estimator != DESCENT:
            msg = f"Expected estimator {DESCENT} in a federation, found {self.training.estimator}."
            raise ValueError(msg)
        if self.training.noise == "os" and len({node.noise_multiplier > 0 for node in self.nodes}) > 1:
            msg = "Expected noise at all nodes or at none where it comes from the operating system, found some without."
            raise ValueError(msg)
        if self.training.noise_decay != 1:
            msg = f"Expected constant noise, noise_decay 1, in a federation, found {self.training.noise_decay}."
            raise ValueError(msg)

    @property
    def label(self) -> str:
        """What files of the run are called."""
        run = self.run
        return f"{run.network}-{run.arm}-eps-{run.epsilon}-seed-{run.seed}"

    @property
    def digest(self) -> str:
        """Hash of everything in the plan."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def place(self, name: str) -> int:
        """Return a node's place in the order of nodes.

        Raises
        ------
        UserError
            If the plan does not know the node.
        """
        names = [node.name for node in self.nodes]
        if name not in names:
            msg = f"Expected the name of a node of the plan ({', '.join(names)}), found {name!r}."
            raise UserError(msg)
        return names.index(name)

    def event(self, name: str, round_number: int) -> Round:
        """Return what a node's ledger says of a round: public constants, the same for every round."""
        node = self.nodes[self.place(name)]
        return Round(
            node=name,
            round=round_number,
            population=node.population,
            expected=node.expected,
            sampling_probability=node.expected / node.population,
            noise_multiplier=node.noise_multiplier,
            clip=self.clip,
        )

    @property
    def clip(self) -> float:
        """The clipping norm, infinite where gradients are not clipped."""
        return float("inf") if self.run.epsilon == UNCLIPPED else self.training.clip

    def model(self) -> nn.Module:
        """Return the network with its starting weights."""
        return build(self.network, len(SEQUENCES), self.size, stream(self.run.seed, Purpose.WEIGHTS))

    def grid(self, layout: Layout) -> Grid | None:
        """Return the grid of integer sums that all nodes share, where their noise is exact."""
        least = min(node.noise_multiplier for node in self.nodes)
        if self.training.noise != "os" or all(node.noise_multiplier == 0 for node in self.nodes):
            return None
        population = max(node.population for node in self.nodes)
        return Grid.choose(
            self.training.clip, noise_multiplier=least, population=population, dimension=layout.dimension
        )

    def mechanism(self, name: str, layout: Layout, seed: int, ledger: Ledger) -> SampledGaussian:
        """Return a node's mechanism; the seed is used by simulations alone."""
        place = self.place(name)
        node, grid = self.nodes[place], self.grid(layout)
        constants: dict[str, Any] = {
            "population": node.population,
            "expected": node.expected,
            "noise_multiplier": node.noise_multiplier,
            "ledger": ledger,
        }
        if grid is not None:
            return ExactSampledGaussian(name, place, clip=self.training.clip, grid=grid, **constants)
        return SampledGaussian(name, place, clip=self.clip, seed=seed, **constants)

    def header(self) -> dict[str, Any]:
        """Return what ledgers say of the run in the first line of an attempt, as those of simulations do."""
        grid = self.grid(Layout.of(self.model()))
        return {
            "run": asdict(self.run),
            "network": self.network.described(),
            "training": self.training.stated(),
            "nodes": [asdict(node) for node in self.nodes],
            "noise": self.training.noise,
            "cohort": self.cohort,
            "partition": self.partition,
            "grid_bits": grid.bits if grid else None,
            "engine": "flower",
        }

    def to_json(self) -> dict[str, Any]:
        """Return the plan as a JSON object."""
        content = asdict(self)
        content["network"]["widths"] = list(self.network.widths)
        content["nodes"] = [asdict(node) for node in self.nodes]
        if not self.training.tf32:
            content["training"].pop("tf32")  # as plans said before it could be chosen
        content["training"].pop("noise_decay")  # one in every plan
        return {"format": FORMAT, **content}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Plan:
        """Read a plan that `to_json` wrote.

        Raises
        ------
        UserError
            If it is of another version, or lacks or adds anything.
        """
        given = dict(content)
        if given.pop("format", None) != FORMAT:
            msg = f"Expected a plan of format {FORMAT}, found {content.get('format')}. Make it with this version."
            raise UserError(msg)
        try:
            training = dict(given.pop("training"))
            network = dict(given.pop("network"))
            return cls(
                run=RunName(**given.pop("run")),
                network=NetworkSettings(**{**network, "widths": tuple(network["widths"])}),
                training=TrainingSettings(**{**training, "optimiser": OptimiserSettings(**training["optimiser"])}),
                nodes=tuple(PlannedNode(**node) for node in given.pop("nodes")),
                **given,
            )
        except (KeyError, TypeError, ValueError) as error:
            msg = f"Not a plan of a federation: {error}. Take the file that the coordinating site sent, unchanged."
            raise UserError(msg) from error

    def write(self, path: Path) -> None:
        """Write the plan as a JSON file."""
        write_json(path, self.to_json())

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Read a plan's file."""
        return cls.from_json(read_json(path))
