"""The releases to which a patient was exposed, in one run or over many runs, as each audience sees them."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias, get_args

from zetadp.account.attempts import Attempt
from zetadp.account.declaration import Declaration, Limit, MixedRows, Series
from zetadp.accounting import composition
from zetadp.accounting.composition import Exposure
from zetadp.accounting.events import MOST_RELEASES, NodeHistory, histories
from zetadp.accounting.kinds import Kind, NoisySum
from zetadp.accounting.masked import MaskedSum
from zetadp.accounting.threat import (
    NOISE_SOURCES,
    Audience,
    CohortUnit,
    NoiseSource,
    Sums,
    Threat,
    Unit,
    check_threat,
    condition,
)
from zetadp.base.epsilon import DELTAS
from zetadp.base.validation import UserError, one_of, whole


@dataclass(frozen=True, slots=True)
class Run:
    """One training run, as an accountant sees it.

    Attributes
    ----------
    name
        Name of the run: arm, epsilon, seed.
    nodes
        The releases of each node. A node's name stands for the same patients in every run of a cohort.
    declared_rounds
        The largest number of rounds, fixed before the run. The guarantee is stated for it even after an early stop.
    partition
        The rule that assigned patients to nodes. Nodes with one name hold the same patients only if it is equal too.
    threat
        The threat model that the run was calibrated for.
    sums
        None if each node's noise protects its own message. Otherwise only sums of messages can be read, and this is
        what they rely on. The kinds in the histories are then `MaskedSum`.
    images
        None if patients were drawn. If single images were drawn, the histories count images, and this is the number of
        images of one patient.
    noise
        Source of the noise: ``os``, or ``seeded``, which protects no one. Noise of installed laws counts as ``seeded``
        whatever a ledger declares, because no exact samplers of them are known.
    unit
        The unit of the cohort: ``patient`` or ``speaker`` only if each person has one record, or if the records of each
        person are joined. If single images were drawn, a unit has several of them.
    delta
        The delta at which the run was declared.
    series
        The series of runs that the run belongs to, all declared before the first of them; None if it stands alone.
    mixed_rows
        The mixed rows that nodes released, each of which is visible; None if they released something else.
    limit
        The limit under which the run began and always continued; None without one, or if it changed meanwhile.
    """

    name: str
    nodes: Mapping[str, NodeHistory]
    declared_rounds: int
    partition: str = ""
    threat: Threat = "local"
    sums: Sums | None = None
    images: int | None = None
    noise: NoiseSource = NoiseSource.OS
    unit: Unit = "patient"
    delta: float = 1e-3
    series: Series | None = None
    mixed_rows: MixedRows | None = None
    limit: Limit | None = None

    @property
    def division(self) -> tuple[str, frozenset[tuple[str, int]]]:
        """The division of the cohort among nodes. Runs with the same division add up node by node."""
        images = self.images or 1
        sizes = frozenset((node, history.population // images) for node, history in self.nodes.items())
        return self.partition if len(sizes) > 1 else "", sizes

    def __post_init__(self) -> None:
        """Refuse a run without releases, and impossible combinations."""
        whole(1, MOST_RELEASES, declared_rounds=self.declared_rounds, images=1 if self.images is None else self.images)
        check_threat(self.threat, len(self.nodes), self.sums)
        one_of(get_args(CohortUnit), unit=self.unit)
        one_of(NOISE_SOURCES, noise=self.noise)
        object.__setattr__(self, "noise", NoiseSource.SEEDED if self.laws else NoiseSource(self.noise))
        DELTAS.check("delta", self.delta)
        if not self.nodes:
            raise UserError(f"The ledger of run {self.name!r} holds no rounds: train before accounting.")
        if any(isinstance(kind, MaskedSum) != (self.sums is not None) for kind in self.kinds if kind.private):
            raise UserError(
                f"Expected the ledger of run {self.name!r} to hold masked sums where it declares them, and nowhere "
                "else. The ledger is damaged, or from another version."
            )

    @property
    def kinds(self) -> set[Kind]:
        """The kinds of release of all nodes."""
        return {history.kind for history in self.nodes.values()}

    @property
    def shares(self) -> int:
        """Fewest nodes that are relied on to add noise to a masked sum; zero without such sums."""
        return min((kind.shares for kind in self.kinds if isinstance(kind, MaskedSum)), default=0)

    @property
    def laws(self) -> set[type[Kind]]:
        """The laws of noise of its releases that installed packages bring."""
        return {type(kind) for kind in self.kinds if not kind.gaussian}

    @property
    def repeated(self) -> bool:
        """Whether more was released than declared, because somebody restored files or a crash lost a message."""
        return any(
            declared(history, self.declared_rounds).total() > history.count * self.declared_rounds
            for history in self.nodes.values()
        )

    @property
    def private(self) -> bool:
        """Whether every release of every node carried noise."""
        return all(kind.private for kind in self.kinds)


def runs_of(ledger: Path, attempts: Sequence[Attempt]) -> list[Run]:
    """Return the attempts of a ledger, each with its own name: `zetadp.account.book.recorded_runs` of what was read.

    An attempt that has begun counts in full: only a line that closes it before its first release makes it count as
    nothing. An attempt beyond the declared number was chosen after earlier results: it belongs to no
    series.
    """
    runs: list[Run] = []
    for number, attempt in enumerate(attempts, start=1):
        name = ledger.stem if number == 1 else f"{ledger.stem} (attempt {number})"
        if attempt.closed:
            continue
        with name_in_errors(ledger, f"the declaration of {name}"):
            run = run_of(name, attempt)
            earlier = sum(other.series == run.series for other in runs)
            runs.append(run if earlier < (attempt.declaration.attempts or 1) else replace(run, series=None))
    return runs


def run_of(name: str, attempt: Attempt) -> Run:
    """Return the releases of an attempt as a run with this name: what is said of a run follows from its ledger.

    An attempt that has recorded nothing counts as if all of its declared rounds were over. If the declaration names the
    node whose ledger it is in, these are the releases of that node alone.
    """
    declaration, cap = attempt.declaration, attempt.declaration.cap
    rounds, nodes = declaration.rounds, histories(attempt.releases())
    if not nodes:
        one = histories(event for event in declaration.releases if declaration.node in (None, event.node))
        nodes = {
            node: replace(of, rounds=rounds, releases=rounds * of.releases, unshielded=rounds * of.unshielded)
            for node, of in one.items()
        }
    return Run(
        name,
        nodes,
        rounds,
        partition=json.dumps(declaration.partition, sort_keys=True),
        threat=declaration.threat,
        sums=declaration.sums,
        images=declaration.images,
        noise=declaration.noise,
        unit=declaration.cohort_unit,
        delta=declaration.delta,
        series=declaration.series,
        mixed_rows=declaration.mixed_rows,
        # One that was changed meanwhile was chosen after results.
        limit=None if cap is None or any(later != cap for later in attempt.caps) else cap,
    )


def declared_run(name: str, declaration: Declaration) -> Run:
    """Return everything that an attempt of this declaration will have released after its last declared round."""
    return run_of(name, Attempt(declaration))


def noise_of(runs: Iterable[Run]) -> NoiseSource:
    """Return the source of the noise of all runs. With one seeded run, it is ``seeded``."""
    return NoiseSource.OS if {run.noise for run in runs} == {NoiseSource.OS} else NoiseSource.SEEDED


def guarantee_of(runs: Sequence[Run]) -> str:
    """Return ``none`` if no run had noise, ``simulated`` if the noise of any came from a seed, or else ``holds``."""
    if not any(run.private for run in runs):
        return "none"
    return "simulated" if noise_of(runs) == NoiseSource.SEEDED else "holds"


def common_unit(runs: Iterable[Run]) -> Unit:
    """Return the unit of runs whose costs are to be added up.

    Raises
    ------
    UserError
        If there are no runs, or if their units differ: records and persons do not add up.
    """
    return one_unit({run.unit: run.name for run in runs})


def one_unit(names: Mapping[Unit, str]) -> Unit:
    """Return the only unit, of units with the name of a run each; raise an error as `common_unit`."""
    if len(names) != 1:
        units = " and ".join(f"{unit} ({name})" for unit, name in names.items()) or "no runs"
        raise UserError(
            f"Expected runs on the same patients that protect one unit, found {units}. Costs of different units cannot "
            "be added. Train with the unit of the earlier runs (cohort.unit)."
        )
    return next(iter(names))


def condition_of(runs: Iterable[Run]) -> str:
    """Return what the epsilon of runs depends on, as the end of a sentence; empty without masked sums."""
    return condition(any(run.sums and run.private for run in runs))


@contextmanager
def name_in_errors(ledger: Path, part: str) -> Iterator[None]:
    """Turn errors into one message that names the ledger, and the part of it that is incomplete or wrong."""
    try:
        yield
    except UserError as error:
        if str(ledger) in str(error):
            raise
        raise UserError(f"{ledger}: {error}") from error
    except KeyError as error:
        raise UserError(f"{ledger}: {part} lacks the key {error}, which its other keys require.") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError(f"{ledger}: {part} holds a value that no training can have: {error}") from error


def declared(history: NodeHistory, declared_rounds: int) -> Counter[Kind]:
    """Return the releases of a node up to the declared round. Rounds that did not happen count like those that did."""
    return Counter({history.kind: history.releases + max(0, declared_rounds - history.done) * history.count})


def seen_by(run: Run, audience: Audience) -> dict[str, Counter[Kind]] | None:
    r"""Return for each node what an audience has seen of it up to the declared round; None without such an audience.

    An audience that receives each node's own message faces only that node's noise. A reader of the models sees only the
    average :math:`\sum_k S_k / R_k`, with the noise of all nodes. Another node also sees the average, and can subtract
    its own message; the worst such node counts. A patient adds at most :math:`B_i / R_i` to the average, under noise of
    variance :math:`\sum_j (\sigma_j B_j / R_j)^2`.

    Rounds in which some node released twice or not at all count with the node's own noise (`NodeHistory.unshielded`).
    Of masked sums, the server sees the noise of the nodes that are relied on, and ``"messages"`` is what somebody sees
    who could undo the masks. The law of an average is known for Gaussian noise only. Each audience therefore counts as
    seeing the single releases of another law. Mixed rows are public one by one, so no other noise hides them.
    """
    if run.laws or run.mixed_rows:
        if audience == "node" and len(run.nodes) == 1:
            return None
        return {name: declared(history, run.declared_rounds) for name, history in run.nodes.items()}
    if run.sums is not None and run.private:
        # Members of a sum are at least the nodes that are relied on, and those that may collude.
        more = {"server": 0, "node": run.sums.colluding - 1, "reader": run.sums.colluding}.get(audience)
        return {name: in_sums(declared(history, run.declared_rounds), more) for name, history in run.nodes.items()}
    if audience == "node" and len(run.nodes) == 1:
        return None
    variances = {name: history.noise_variance for name, history in run.nodes.items()}
    seen: dict[str, Counter[Kind]] = {}
    for name, history in run.nodes.items():
        others = sorted(variance for other, variance in variances.items() if other != name)
        credited = others[:-1] if audience == "node" else others
        noise = history.kind.noise_multiplier
        if audience in ("node", "reader"):
            noise = math.sqrt(math.fsum([variances[name], *credited])) / (history.clip / history.expected)
        shielded = declared(history, run.declared_rounds).total() - history.unshielded
        seen[name] = Counter({history.kind: history.unshielded} if history.unshielded else {})
        seen[name][NoisySum(history.kind.sampling_probability, noise)] += shielded
    return seen


def in_sums(exposure: Exposure, more: int | None = None) -> Counter[Kind]:
    """Return masked sums as somebody sees them who faces the noise of the nodes that are relied on, and of ``more``.

    With None, all masks can be undone, and each message has the noise of its own node alone.
    """
    seen: Counter[Kind] = Counter()
    for kind, count in exposure.items():
        if isinstance(kind, MaskedSum):
            seen[kind.with_shares(1 if more is None else kind.shares + more)] += count
        else:
            seen[kind] += count
    return seen


def spent(exposure: Exposure, delta: float, *, beforehand: bool) -> float:
    """Return epsilon of releases: by a filter unless all of them were declared beforehand.

    The filter adds up Renyi divergences (Feldman and Zrnic 2021, arXiv:2008.11193). Where every unit takes part in
    every round, it adds up squares of mu (Smith and Thakurta 2022, arXiv:2210.17520), which gives the same value as the
    composition of declared releases. It keeps a limit that was set before the first release. Without such a limit its
    value describes what was spent, and is not a promise (`zetadp.account.totals`).
    """
    if beforehand or composition.exact_mu(exposure) is not None:
        return composition.epsilon(exposure, delta)
    return composition.epsilon_rdp(exposure, delta)


def promised(exposure: Exposure, delta: float, *, beforehand: bool) -> float:
    """Return an epsilon that holds for releases whatever made somebody stop after them."""
    return (composition.epsilon if beforehand else composition.epsilon_any_time)(exposure, delta)


Measure: TypeAlias = Callable[..., float]
"""`spent` or `promised`."""


def over_runs(
    runs: Sequence[Run], delta: float, *, unmasked: bool = False, measure: Measure = spent
) -> dict[str, Counter[Kind]]:
    """Return for each node the costliest exposure of one of its patients over all runs, as servers see it.

    Runs over the same nodes add up node by node. If other runs divide the cohort into other nodes (such as a central
    and a federated run), a patient's node there is not known, and the worst node at `delta` is assumed. Noise of other
    nodes is credited in masked sums only, and with ``unmasked`` not even there. If a run drew single images, the
    exposure is that of a patient with all images.

    Parameters
    ----------
    runs, delta, unmasked
        As `total`.
    measure
        How exposures are compared.

    Raises
    ------
    UserError
        As `common_unit`.
    """
    if runs:
        common_unit(runs)
    partitions: dict[tuple[str, frozenset[tuple[str, int]]], dict[str, Counter[Kind]]] = {}
    for run in runs:
        totals = partitions.setdefault(run.division, {node: Counter() for node in run.nodes})
        for node, history in run.nodes.items():
            exposure = declared(history, run.declared_rounds)
            totals[node] += composition.grouped(in_sums(exposure) if unmasked else exposure, run.images or 1)
    worst: dict[str, Counter[Kind]] = {}
    epsilon = partial(measure, delta=delta, beforehand=declared_together(runs))
    for position, totals in enumerate(partitions.values()):
        others = [distinct(other.values()) for index, other in enumerate(partitions.values()) if index != position]
        for node, node_total in totals.items():
            candidates = [sum(choice, node_total) for choice in itertools.product(*others)]
            name = node if node not in worst else f"{node} (partition {position + 1})"
            worst[name] = max(candidates, key=epsilon)
    return worst


def declared_together(runs: Sequence[Run]) -> bool:
    """Return whether all that was released was declared beforehand, so that losses compose as declared.

    That is so for one run, and for the whole of one series, unless rounds were released again: someone who restores
    files or kills a process chooses how often that happens after seeing earlier results.
    """
    series = {run.series for run in runs}
    only = next(iter(series), None)
    whole = len(series) == 1 and only is not None and len(runs) == only.runs
    return (len(runs) <= 1 or whole) and not any(run.repeated for run in runs)


def accountant(exposures: Iterable[Exposure], delta: float, *, beforehand: bool) -> str:
    """Return the name of the accountant that `promised` uses for each of these exposures, or of all that it uses."""
    if not beforehand:
        return "Renyi privacy odometer"
    return ", ".join(sorted({composition.quoted(exposure, delta)[1] for exposure in exposures}))


def total(runs: Iterable[Run], delta: float, *, unmasked: bool = False, measure: Measure = spent) -> float:
    """Return epsilon of all runs together for the most exposed patient; infinite if one run had no noise.

    This is the one computation behind totals, limits and statements. By default it is what was spent, which a limit is
    compared with. What may be said of it, `zetadp.account.totals.Total` says. With ``unmasked``, single messages of
    masked sums count as visible.

    Raises
    ------
    UserError
        As `common_unit`.
    """
    several = list(runs)
    beforehand = declared_together(several)
    exposures = over_runs(several, delta, unmasked=unmasked, measure=measure).values()
    return max((measure(exposure, delta, beforehand=beforehand) for exposure in exposures), default=0.0)


def distinct(totals: Iterable[Exposure]) -> list[Counter[Kind]]:
    """Drop repetitions, so that equal nodes are accounted for once."""
    return list({composition.ordered(total): Counter(dict(total)) for total in totals}.values())
