"""What is written down: every release, before it is made, for ever, and in full in the statement."""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

from dp_accounting.pld import privacy_loss_distribution
from torch import Tensor
from training_builder import Held, train_run

from mutants.installing import certain, mutant
from mutants.stub import random_records, releases_seen
from zetadp.account.attempts import read_ledger
from zetadp.account.exposure import Run, runs_of
from zetadp.account.statement import run_statement
from zetadp.accounting import composition, gaussian
from zetadp.base.epsilon import Target
from zetadp.base.runfolder import RunName
from zetadp.mechanism.release import Draw, NodeMechanism
from zetadp.nn.models import NetworkSettings
from zetadp.training.checkpoint import RunFiles
from zetadp.training.settings import Performance, TrainingSettings

ROUNDS = 8
NODES = 2
SIGMA = 2.0
PLANS = [Held(f"node-{place}", [[3 * place + i] for i in range(3)], 3, 1.25, SIGMA) for place in range(NODES)]
SETTINGS = TrainingSettings(rounds=ROUNDS)
RUN = RunName("linear", "federated", Target(8), 3)
DELTA = 1e-3


class KilledError(Exception):
    """Stands for a job that is killed."""


@dataclass
class Server:
    """Sees all that leaves the nodes, and may be killed after a round."""

    seen: list[tuple[int, str]] = field(default_factory=list)
    killed_after: int = 0

    def __call__(self, done: int, messages: Tensor) -> None:
        self.seen.append((done, hashlib.sha256(messages.numpy().tobytes()).hexdigest()))
        if done == self.killed_after:
            raise KilledError

    @property
    def releases(self) -> int:
        """Messages of a node that differ: each is one release, however often it is transmitted."""
        return len(set(self.seen))


def trained(
    folder: Path, server: Server, *, killed_after: int = 0, data_seed: int = 0, side: int = 4, **settings: Any
) -> None:
    """Train at two nodes, or go on, until the end or until a kill."""
    server.killed_after = killed_after
    try:
        train_run(
            RUN,
            NetworkSettings("linear"),
            replace(SETTINGS, **settings),
            PLANS,
            random_records(6, side=side, seed=data_seed),
            random_records(0, side=side),
            ledger_path=folder / "ledger.jsonl",
            checkpoint_path=folder / "run.partial",
            performance=Performance(checkpoint_seconds=1e6),
            after_round=server,
        )
    except KilledError:
        return
    RunFiles(folder / "ledger.jsonl", folder / "run.partial").finish()


def _runs(folder: Path) -> list[Run]:
    """Return what the ledger alone says, whatever the register notices."""
    return runs_of(folder / "ledger.jsonl", read_ledger(folder / "ledger.jsonl"))


def _counted(folder: Path) -> dict[str, int]:
    """Return how many releases of each node all statements on a ledger account for."""
    counts: Counter[str] = Counter()
    for run in _runs(folder):
        for node, history in run.nodes.items():
            counts[node] += history.releases
    return dict(counts)


def stated(run: Run) -> float:
    """Return the epsilon that the statement on a run says."""
    return float(run_statement(run, target_epsilon=8.0)["epsilon"])


def true_epsilon(rounds: int, node: Held) -> float:
    """Return epsilon of so many rounds from the privacy-loss distribution of a library, to 0.2 % or so."""
    one = privacy_loss_distribution.from_gaussian_mechanism(
        node.noise_multiplier, sampling_prob=node.expected / node.population, value_discretization_interval=1e-3
    )
    return float(one.self_compose(rounds).get_epsilon_for_delta(DELTA))


def _states_all_rounds(run: Run, what: str) -> None:
    true, found = true_epsilon(ROUNDS, PLANS[0]), stated(run)
    assert 0.995 * true <= found <= 1.01 * true, f"{what} states epsilon {found:.3f}, all rounds cost {true:.3f}"


@certain
def check_the_statement_is_that_of_all_rounds_seen(folder: Path) -> None:
    """Epsilon from the ledger is that of as many rounds as messages left a node, at the plans' noise and probability.

    The plans' p = 5/12 is the inverse of no whole number, so that a rounded rate shows.
    """
    server = Server()
    trained(folder, server)
    assert server.releases == ROUNDS
    (run,) = _runs(folder)
    assert {node: history.releases for node, history in run.nodes.items()} == {p.name: ROUNDS for p in PLANS}
    _states_all_rounds(run, "a finished training")


@certain
def check_stopping_early_lowers_no_epsilon(folder: Path) -> None:
    """A training that was killed after a quarter of its declared rounds states the epsilon of all of them."""
    trained(folder, Server(), killed_after=ROUNDS // 4)
    (run,) = _runs(folder)
    _states_all_rounds(run, "a training stopped early")


@certain
def check_every_release_stays_counted(folder: Path) -> None:
    """Through kills, lost messages, torn lines and training anew, as many releases are stated as messages were seen.

    Exact noise, so that what is drawn again differs. What is sent again is not counted again.
    """
    server = Server()

    def counted(what: str) -> None:
        found, needed = _counted(folder), {plan.name: server.releases for plan in PLANS}
        assert found == needed, f"after {what}: {needed} left the nodes, {found} are counted"

    trained(folder, server, noise="os", killed_after=3)
    counted("a kill")
    trained(folder, server, noise="os", killed_after=3)
    counted("a replay")
    (messages,) = folder.glob("*.messages")
    for kept in messages.iterdir():
        kept.unlink()
    trained(folder, server, noise="os", killed_after=4)
    counted("lost messages")
    trained(folder, server, noise="os")
    counted("the end")
    trained(folder, server, noise="os", data_seed=1)
    counted("training anew")
    ledger = folder / "ledger.jsonl"
    # A crash can cut a line off after its first bytes; whether its release was made nobody knows.
    ledger.write_bytes(ledger.read_bytes() + b'{"chain":"0')
    server.seen.append((0, "torn"))
    counted("a torn line")


@contextmanager
def releases_watched() -> Iterator[None]:
    """Before each release in the block, look at what of its ledger has reached the disk."""
    synced: dict[int, bytes] = {}
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        status = os.fstat(descriptor)
        with suppress(OSError):  # folders, and files that nobody can read by this descriptor
            synced[status.st_ino] = os.pread(descriptor, status.st_size, 0)

    def look(mechanism: NodeMechanism, draw: Draw) -> None:
        path, which = mechanism.ledger.path, f"round {draw.event.round} is released and not yet"
        known = read_ledger(path)[-1].events if path.exists() else []
        assert draw.event in known, f"{which} in the ledger"
        assert synced.get(path.stat().st_ino) == path.read_bytes(), f"{which} synced"

    with mock.patch.object(os, "fsync", noted), releases_seen(look):
        yield


@mutant("zetadp.account.ledger:Ledger.start", check_every_release_stays_counted)
def training_anew_forgets_the_ledger(original, self, declaration, draws=None):
    self._file.truncate(0)
    self._size = 0
    self._head, self.attempts = "0" * 64, []
    original(self, declaration, draws)


@mutant("zetadp.account.attempts:Attempt.releases", check_every_release_stays_counted)
def torn_line_not_counted(original, self):
    return list(self.events)


@mutant("zetadp.account.attempts:Attempt.releases", check_every_release_stays_counted)
def repeated_round_counted_once(original, self):
    torn = original(self)[len(self.events) :]
    return [*dict.fromkeys(self.events), *torn]


@mutant("zetadp.account.exposure:declared", check_the_statement_is_that_of_all_rounds_seen)
def steps_counted_as_epochs(original, history, declared_rounds):
    found = original(history, declared_rounds)
    return Counter({kind: math.ceil(kind.sampling_probability * count) for kind, count in found.items()})


@mutant("zetadp.accounting.composition:quoted", check_the_statement_is_that_of_all_rounds_seen)
def central_limit_quoted_as_a_bound(original, mechanisms, delta, tolerance=0.0):
    mus = [composition.central_limit_mu(k.sampling_probability, k.noise_multiplier, n) for k, n in mechanisms.items()]
    return gaussian.epsilon(delta, math.hypot(*mus)), "privacy-loss distribution"


@mutant("zetadp.account.exposure:declared", check_stopping_early_lowers_no_epsilon)
def stopping_early_thought_cheaper(original, history, declared_rounds):
    return original(history, 1)


@mutant("zetadp.mechanism.release:NodeMechanism.draw", check_the_statement_is_that_of_all_rounds_seen)
def rate_stated_as_one_over_the_number_of_batches(original, self, round_number, *, again=0):
    # 24 of 44 make two batches: stated 0.5, drawn 0.545. It bites where R does not divide N.
    full = original(self, round_number, again=again)
    batches = math.ceil(self.event.population / self.event.expected)
    return replace(full, event=replace(full.event, kind=replace(full.event.kind, sampling_probability=1 / batches)))
