"""Training killed at every point of its rounds: before, within and after every durable operation, release and step."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from crash.processes import run
from crash.tiny import NODES, ROUNDS, counted, train_each, train_tiny, weights_of

pytestmark = pytest.mark.slow

# What a round does beyond the durable operations, which have points of their own.
ALSO = [
    "zetadp.account.ledger:Ledger.record",
    "zetadp.account.ledger:Ledger.note_sent",
    "zetadp.mechanism.release:NodeMechanism.draw",
    "zetadp.mechanism.release:NodeMechanism.release",
    "zetadp.training.outbox:Outbox.keep",
    "zetadp.training.outbox:Outbox.discard",
    "zetadp.training.server:Server.step",
    "zetadp.training.checkpoint:Checkpoint.save",
]


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


@pytest.mark.parametrize("checkpoint_seconds", [0.0, 1e6])
@pytest.mark.parametrize("noise", ["seeded", "os"])
def test_a_training_killed_at_any_point_goes_on(tmp_path, noise, checkpoint_seconds):
    """Seeded: the same bits in the end. From the operating system: nothing that was sent is drawn again."""
    settings = {"noise": noise, "checkpoint_seconds": checkpoint_seconds}
    straight = tmp_path / "straight"
    dry = run(train_tiny, {"folder": straight, **settings}, points=True, also=ALSO)
    assert dry.status == 0, dry.log
    # All that is promised to be a point is one, in every round.
    passed = Counter(point.partition("#")[0] for point in dry.points)
    per_round = ["Ledger.record", "Ledger.note_sent", "Server.step", "Outbox.keep"]
    for name in per_round:
        assert passed[f"before:{name}"] == passed[f"after:{name}"] == ROUNDS, passed
    assert passed["after:NodeMechanism.release"] == ROUNDS * NODES
    assert passed["torn:write"] >= 2 * ROUNDS
    assert min(passed[f"after:{name}"] for name in ("fsync", "replace", "unlink")) > 0

    folders = {point: tmp_path / point.replace(":", "-").replace("#", "-") for point in dry.points}
    for point, folder in folders.items():
        dead = run(train_tiny, {"folder": folder, **settings}, kill_at=point, also=ALSO)
        assert dead.killed, (point, dead.log)
        if (folder / "ledgers/run.jsonl").exists():
            check_never_less_than_released(folder)
    done = run(train_each, {"folders": [*folders.values()], **settings})
    assert done.status == 0, done.log
    for point, folder in folders.items():
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
