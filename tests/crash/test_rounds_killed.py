"""Training killed at every point of its rounds: before, within and after every durable operation, release and step."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from crash.zygote import Zygote

if TYPE_CHECKING:
    from torch import Tensor

pytestmark = pytest.mark.slow

ROUNDS, NODES, PATIENTS = 3, 2, 3
# What a round does beyond the durable operations, which have points of their own.
ALSO = [
    "zetadp.privacy.ledger:Ledger.record",
    "zetadp.privacy.ledger:Ledger.note_sent",
    "zetadp.privacy.mechanism:NodeMechanism.draw",
    "zetadp.privacy.mechanism:NodeMechanism.release",
    "zetadp.core.outbox:Outbox.keep",
    "zetadp.core.outbox:Outbox.discard",
    "zetadp.core.server:Server.step",
    "zetadp.core.checkpoint:Checkpoint.save",
]


def train_tiny(folder: str, noise: str, checkpoint_seconds: float) -> None:
    """Train, finish as the workflow's script does, and keep what reached the server beside it."""
    from zetadp.core.server import Server

    here = Path(folder)
    here.mkdir(exist_ok=True)
    step = Server.step
    with (here / "sent.txt").open("a") as sent:

        def arrive(server: Server, messages: Tensor, number: int) -> None:
            """Note what reached the server: it stays there, whatever happens to the sender."""
            sent.write(f"{number} {messages.numpy().tobytes().hex()}\n")
            sent.flush()
            step(server, messages, number)

        Server.step = arrive
        try:
            _train(here, noise, checkpoint_seconds)
        finally:
            Server.step = step


def _train(here: Path, noise: str, checkpoint_seconds: float) -> None:
    from training_builder import TINY, Held, records, train_run

    from zetadp.base.tensors import save_tensors
    from zetadp.core.checkpoint import RunFiles
    from zetadp.core.plan import RunName
    from zetadp.core.settings import OptimiserSettings, Performance, TrainingSettings

    settings = TrainingSettings(
        rounds=ROUNDS,
        images_per_patient=4,
        optimiser=OptimiserSettings(0.02),
        noise=noise,
    )
    plans = [Held(f"node-{n}", [[n * PATIENTS + i] for i in range(PATIENTS)], PATIENTS, 2.0, 0.9) for n in range(NODES)]
    trained = train_run(
        RunName("complex", "federated", "8", 3),
        TINY,
        settings,
        plans,
        records(NODES * PATIENTS),
        records(2, seed=99),
        ledger_path=here / "ledgers/run.jsonl",
        checkpoint_path=here / "checkpoints/run.safetensors",
        performance=Performance(evaluate_every=2, checkpoint_seconds=checkpoint_seconds),
    )
    weights = {name: p.detach() for name, p in trained.model.named_parameters()}
    save_tensors(here / "model.safetensors", weights, {"ledger_head": trained.ledger_head})
    RunFiles(here / "ledgers/run.jsonl", here / "checkpoints/run.safetensors").finish()
    trained.history.drop(columns="seconds").to_csv(here / "history.csv", index=False)


def counted(folder: Path) -> Counter:
    """Return how often the ledger counts each round at each node, over all attempts, torn lines included."""
    from zetadp.privacy.ledger import read_ledger

    attempts = read_ledger(folder / "ledgers/run.jsonl")
    return Counter((event.round, event.node) for attempt in attempts for event in attempt.releases())


def released(folder: Path) -> dict[int, set[str]]:
    """Return the different messages that arrived, by round."""
    found: dict[int, set[str]] = {}
    for line in (folder / "sent.txt").read_text().splitlines():
        number, content = line.split()
        found.setdefault(int(number), set()).add(content)
    return found


def check_never_less_than_released(folder: Path) -> None:
    counts = counted(folder)
    for number, messages in released(folder).items():
        for node in range(NODES):
            assert counts[number, f"node-{node}"] >= len(messages), (number, counts)


def weights_of(folder: Path) -> dict:
    from zetadp.base.tensors import load_tensors

    return load_tensors(folder / "model.safetensors")[0]


@pytest.mark.parametrize("checkpoint_seconds", [0.0, 1e6])
@pytest.mark.parametrize("noise", ["seeded", "os"])
def test_a_training_killed_at_any_point_goes_on(zygote: Zygote, tmp_path, noise, checkpoint_seconds):
    """Seeded: the same bits in the end. From the operating system: nothing that was sent is drawn again."""
    settings = {"noise": noise, "checkpoint_seconds": checkpoint_seconds}
    zygote.warm(train_tiny, {"folder": tmp_path / "warm", **settings})
    straight = tmp_path / "straight"
    dry = zygote.run(train_tiny, {"folder": straight, **settings}, points=True, also=ALSO)
    assert dry.status == 0, dry.log
    # All that is promised to be a point is one, in every round.
    passed = Counter(point.partition("#")[0] for point in dry.points)
    per_round = ["Ledger.record", "Ledger.note_sent", "Server.step", "Outbox.keep"]
    for name in per_round:
        assert passed[f"before:{name}"] == passed[f"after:{name}"] == ROUNDS, passed
    assert passed["after:NodeMechanism.release"] == ROUNDS * NODES
    assert passed["torn:write"] >= 2 * ROUNDS
    assert min(passed[f"after:{name}"] for name in ("fsync", "replace", "unlink")) > 0

    for point in dry.points:
        folder = tmp_path / point.replace(":", "-").replace("#", "-")
        dead = zygote.run(train_tiny, {"folder": folder, **settings}, kill_at=point, also=ALSO)
        assert dead.killed, (point, dead.log)
        if (folder / "ledgers/run.jsonl").exists():
            check_never_less_than_released(folder)
        done = zygote.run(train_tiny, {"folder": folder, **settings})
        assert done.status == 0, (point, done.log)
        check_never_less_than_released(folder)
        # A crash costs at most the round in progress, or the line that it tore; made anew, the whole, once its
        # checkpoint was removed at the end.
        excess = sum(counted(folder).values()) - ROUNDS * NODES
        assert excess in (0, NODES, ROUNDS * NODES), (point, excess)
        anew = excess == ROUNDS * NODES
        different = {len(messages) for messages in released(folder).values()}
        assert different == {2 if anew and noise == "os" else 1}, point
        if noise == "seeded":
            expected, found = weights_of(straight), weights_of(folder)
            assert all((expected[name] == found[name]).all() for name in expected), point
            assert (folder / "history.csv").read_text() == (straight / "history.csv").read_text()
