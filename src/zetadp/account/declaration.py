"""What an attempt declares in the first line of its ledger, before it releases anything: public constants only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Annotated, Any, Self

from zetadp.accounting.events import MOST_RELEASES, Event, entries_of, events_in
from zetadp.accounting.threat import NOISE_SOURCES, CohortUnit, NoiseSource, Sums, Threat
from zetadp.base.epsilon import Delta, Target
from zetadp.base.validation import Checked, Count, OneOf, Positive, Within, whole

PUBLIC = ("backbone", "start", "model", "encoder")
"""Inputs from public data whose hashes a plan may hold; a ledger has each under a key of its own."""
_KEYS = {"cohort_unit": "unit", "images": "images_of_a_patient"}
"""Keys of a ledger's line that differ from the names of the fields."""


@dataclass(frozen=True)
class Series(Checked):
    """Runs that were declared together, before the first of them released anything.

    Attributes
    ----------
    name
        Hash of everything that was declared.
    runs
        Number of its runs with noise; runs without noise are not counted.
    """

    name: str
    runs: Annotated[int, Within(ge=0, le=MOST_RELEASES)]


@dataclass(frozen=True)
class Limit(Checked):
    """A limit on the total of all runs, as an attempt recorded it before its first release.

    Attributes
    ----------
    epsilon, delta
        The limit, and the delta at which it holds.
    """

    epsilon: Positive
    delta: Delta


@dataclass(frozen=True, slots=True)
class MixedRows:
    """What a ledger declares of mixed rows.

    Attributes
    ----------
    number
        Number of rows of each node.
    active
        Share of the rows that are open to each class.
    shares
        Declared share of each class among the units, which the labels of rows assume; None for equal ones.
    """

    number: int
    active: float
    shares: tuple[float, ...] | None = None


_PARTS: Mapping[str, type[Sums | Series | Limit]] = {"sums": Sums, "series": Series, "cap": Limit}


@dataclass(frozen=True, kw_only=True)
class Declaration(Checked):
    """The first line of an attempt in a ledger. The order of the fields is that of its keys.

    A statement needs the unit, delta, the source of the noise and the number of rounds. A program that writes a ledger
    of its own may leave the rest out.

    Attributes
    ----------
    run, network, training, nodes
        Settings of the plan, as JSON. ``training`` has the number of ``rounds``.
    releases
        The releases of one round, as rounds record them.
    noise
        Source of the noise: ``os``, or ``seeded``, which protects no one.
    delta, cohort, task, partition, cohort_unit, threat, public, sums
        As in `zetadp.training.plan.Plan`.
    plan
        Hash of the plan.
    images
        None if patients are drawn. If single images are drawn, the number of images of one patient.
    grid_bits, dimension
        Bits of the grid of integer sums, None without one, and the dimension of one contribution.
    node
        The node whose ledger it is; None in the ledger of all nodes.
    attempts
        Number of declared attempts; None stands for one.
    series
        The series of runs that the run belongs to, all declared before the first of them; None if it stands alone.
    data
        Keyed hash of the data that an attempt is made on (`zetadp.training.partition.training_data`).
    engine, federation
        What runs a real federation, and the server's name of its attempt.
    cap
        The limit under which the attempt began.
    """

    run: Mapping[str, Any] = field(default_factory=dict)
    network: Mapping[str, Any] | None = None
    training: Mapping[str, Any]
    nodes: Sequence[Mapping[str, Any]] | None = None
    releases: Sequence[Event] = ()
    noise: Annotated[NoiseSource, OneOf(NOISE_SOURCES)]
    delta: Delta
    cohort: str | None = None
    task: Mapping[str, Any] | None = None
    partition: Mapping[str, Any] | None = None
    cohort_unit: CohortUnit
    threat: Threat = "local"
    plan: str | None = None
    public: Mapping[str, str] = field(default_factory=dict)
    images: Count | None = None
    sums: Sums | None = None
    grid_bits: int | None = None
    dimension: int | None = None
    node: str | None = None
    attempts: Count | None = None
    series: Series | None = None
    data: str | None = None
    engine: str | None = None
    federation: str | None = None
    cap: Limit | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        object.__setattr__(self, "noise", NoiseSource(self.noise))

    @property
    def rounds(self) -> int:
        """Largest number of releases of a node: one per round, and the spare tries of masked sums."""
        whole(1, MOST_RELEASES, **{"training.rounds": self.training["rounds"]})
        return int(self.training["rounds"]) + (0 if self.sums is None else self.sums.spare)

    @property
    def target(self) -> Target:
        """What the run may cost one unit, as its name says."""
        return Target.read(self.run["epsilon"])

    @property
    def mixed_rows(self) -> MixedRows | None:
        """The mixed rows that nodes release; None if they release something else."""
        mixing = self.training.get("mixing")
        shares = None if mixing is None or mixing.get("shares") is None else tuple(mixing["shares"])
        return None if mixing is None else MixedRows(mixing["rows"], mixing["active"], shares)

    def to_json(self) -> dict[str, Any]:
        """Return the content of the line: a run without a grid says so, and no other field that is None has a key."""
        content: dict[str, Any] = {}
        for name, value in vars(self).items():
            if name == "public":
                content |= value
            elif value is not None or (name == "grid_bits" and self.dimension is not None):
                content[_KEYS.get(name, name)] = asdict(value) if isinstance(value, Sums | Series | Limit) else value
        return content | {"releases": entries_of(self.releases)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read the content of a line. Keys that are not known have no meaning for a statement, and are left out.

        Raises
        ------
        KeyError, TypeError, ValueError, UserError
            If a key is missing, or a value is impossible.
        """
        keys = {item.name: _KEYS.get(item.name, item.name) for item in fields(cls) if item.name != "public"}
        required = {item.name for item in fields(cls) if item.default is item.default_factory is MISSING}
        values = {name: content[key] for name, key in keys.items() if key in content or name in required}
        values |= {name: kind(**values[name]) for name, kind in _PARTS.items() if values.get(name) is not None}
        values |= {"releases": tuple(events_in(content.get("releases", ())))}
        return cls(**values, public={key: value for key, value in content.items() if key in PUBLIC})
