"""Power that fails at any moment: what was not synced is gone, and nothing that remains refers to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from crash.points import CrashPoints
from crash.power import ForgetfulDisk
from crash.tiny import NODES, ROUNDS, counted, train_tiny, weights_of
from hospitals.sites import make_hospital, make_plan
from hospitals.test_hospital import request
from ledger_builder import DECLARATION

from zetadp.account.attempts import read_ledger
from zetadp.account.book import Book
from zetadp.account.ledger import Ledger
from zetadp.hospitals.ledgers import Mirror
from zetadp.hospitals.protocol import Answer, Reason, Refusal

pytestmark = pytest.mark.slow

NOTE = "zetadp.account.ledger:Ledger.note_sent"


class Failing(CrashPoints):
    """Do something at every point, not at one."""

    def __init__(self, act: Callable[[int], None], also: tuple[str, ...] = ()) -> None:
        super().__init__(also=also)
        self.each = act

    def _reach(self, when: str, name: str, number: int) -> bool:
        super()._reach(when, name, number)
        if when != "torn":
            self.each(len(self.seen))
        return False


@pytest.mark.parametrize(("noise", "checkpoint_seconds"), [("seeded", 0.0), ("os", 0.0), ("os", 1e6)])
def test_a_training_goes_on_wherever_the_power_failed(tmp_path, noise, checkpoint_seconds):
    """Whatever remains is consistent: no line is missed that something names, nothing that was sent is forgotten."""
    settings = {"noise": noise, "checkpoint_seconds": checkpoint_seconds}
    straight = tmp_path / "straight"
    straight.mkdir()
    remains: dict[str, Path] = {}
    with ForgetfulDisk(straight, tmp_path / "attic") as disk:

        def fail(place: int) -> None:
            if disk.state() not in remains:
                remains[disk.state()] = disk.remains(tmp_path / f"failed-{place}")

        with Failing(fail, also=(NOTE,)):
            train_tiny(str(straight), **settings)
    assert len(remains) > 4 * ROUNDS
    for folder in remains.values():
        train_tiny(str(folder), **settings)
        assert len(Book.read(folder / "ledgers").runs()) >= 1
        counts = counted(folder)
        assert all(counts[number, f"node-{node}"] >= 1 for number in range(ROUNDS) for node in range(NODES)), folder
        # As after any crash: at most the round in progress is released again, or the whole once it was finished.
        assert sum(counts.values()) - ROUNDS * NODES in (0, NODES, ROUNDS * NODES), folder
        if noise == "seeded":
            expected, found = weights_of(straight), weights_of(folder)
            assert all((expected[name] == found[name]).all() for name in expected), folder


@pytest.mark.parametrize("noise", ["seeded", "os"])
def test_a_hospital_goes_on_wherever_the_power_failed(tmp_path, noise):
    """The server remembers what it was sent. The hospital still has it: it sends the same bytes and all its lines."""
    plan = make_plan(noise=noise)
    own = tmp_path / "own"
    own.mkdir()
    mirror = Mirror(tmp_path / "mirror.jsonl")
    sent: list[bytes] = []
    moments: dict[str, tuple[Path, str, list[bytes]]] = {}
    with ForgetfulDisk(own, tmp_path / "attic") as disk:

        def fail(place: int) -> None:
            moment = f"{disk.state()} {mirror.known}"
            if moment not in moments:
                moments[moment] = (disk.remains(tmp_path / f"failed-{place}"), mirror.known, list(sent))

        with Failing(fail, also=(NOTE,)):
            for number in range(ROUNDS):
                answer = make_hospital(plan, 0, own).reply(request(plan, number, head=mirror.known))
                assert isinstance(answer, Answer)
                mirror.extend(answer.lines)
                sent.append(answer.update)
                fail(1000 + number)
    assert len(moments) > 5 * ROUNDS
    for folder, head, before in moments.values():
        hospital = make_hospital(plan, 0, folder)
        for number in range(max(0, len(before) - 1), ROUNDS):
            answer = hospital.reply(request(plan, number, head=head))
            if isinstance(answer, Refusal) and answer.reason == Reason.ENDED:  # said once, of the process that ended
                answer = hospital.reply(request(plan, number, head=head))
            assert isinstance(answer, Answer), (folder, number, answer)
            if number < len(before):
                assert answer.update == before[number], (folder, number)
        counts = [event.round for event in read_ledger(hospital.participant.ledger)[-1].releases()]
        assert set(counts) == set(range(ROUNDS))
        assert len(counts) <= ROUNDS + 1


def test_a_head_is_on_disk_before_anybody_is_told_of_it(tmp_path):
    """The note that a message was sent is not synced by itself; reading the head syncs it."""
    root = tmp_path / "root"
    root.mkdir()
    with ForgetfulDisk(root, tmp_path / "attic") as disk, Ledger(root / "run.jsonl") as ledger:
        ledger.start(DECLARATION)
        ledger.record([replace(make_plan().event("node-01", 0))])
        ledger.note_sent(0, 0, "digest")
        left = disk.remains(tmp_path / "before") / "run.jsonl"
        assert read_ledger(left)[-1].sent == {}
        head = ledger.head
        left = disk.remains(tmp_path / "after") / "run.jsonl"
        assert head in read_ledger(left)[-1].heads
