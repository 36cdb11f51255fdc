"""No ledger under-counts, whatever is lost, spoiled, killed, resumed, given up or begun anew, under either policy."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

import pytest
from hospitals.sites import DirectLine, coordinator, hospitals, make_plan

from zetadp.account.attempts import read_ledger
from zetadp.account.exposure import declared
from zetadp.accounting.events import histories
from zetadp.base.validation import UserError
from zetadp.hospitals.protocol import Answer, Reason, Refusal
from zetadp.training.outbox import Outbox
from zetadp.training.server import Server
from zetadp.training.settings import Patience

QUICKER = Patience(poll_seconds=0.001, round_seconds=0.03, give_up_seconds=0.1, tries=2)
POLICIES = {"wait": QUICKER, "continue": replace(QUICKER, least_nodes=1)}

FAULTS = {"none": 65, "lost": 15, "short": 8, "refused": 8, "killed": 4}


class KilledError(BaseException):
    """The server's process ends here and writes nothing more."""


class Storm:
    """Faults at random, and what left every node in spite of them: by attempt, node and round, the updates."""

    def __init__(self, seed: int, folder, noise: str, policy: str) -> None:
        self.random = random.Random(seed)
        self.folder, self.patience = folder, POLICIES[policy]
        self.plan = make_plan(rounds=4, noise=noise)
        self.left: defaultdict[str, defaultdict[tuple[str, int], set[bytes]]] = defaultdict(lambda: defaultdict(set))
        self.averaged: dict[tuple[str, int], int] = {}

    def run(self, monkeypatch, *, calm: bool) -> bool:
        """Run the server until it ends, is killed, or gives up; tell whether it came to its end."""

        def tamper(request, reply):
            if isinstance(reply, Answer):
                self.left[request.place.training][reply.name, request.place.round].add(reply.update)
            fault = "none" if calm else self.random.choices(list(FAULTS), FAULTS.values())[0]
            if fault == "killed":
                raise KilledError
            if fault == "lost":
                return None
            if fault == "short" and isinstance(reply, Answer):
                return replace(reply, update=reply.update[:-4])
            if fault == "refused":
                return Refusal(reply.name, reply.place, Reason.FAILED)
            return reply

        line = DirectLine(hospitals(self.plan, self.folder, attempts=99), tamper)
        line.away = {name for name in line.hospitals if not calm and self.random.random() < 0.15}
        step, keep = Server.step, Outbox.keep

        def counted(server, messages, number, missing):
            (*_, identity) = self.attempts()
            self.averaged[identity, number] = len(messages)
            step(server, messages, number, missing)

        def lossy(store, *arguments):
            if not calm and self.random.random() < 0.1:
                raise OSError
            keep(store, *arguments)

        with monkeypatch.context() as patched:
            patched.setattr(Server, "step", counted)
            patched.setattr(Outbox, "keep", lossy)
            try:
                coordinator(self.plan, line, self.folder, self.patience).run()
            except (UserError, KilledError):
                return False
        return True

    def attempts(self):
        return {attempt.identity: attempt for attempt in read_ledger(self.folder / "server/ledger.jsonl")}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("noise", ["seeded", "os"])
@pytest.mark.parametrize("seed", range(4))
def test_what_left_a_node_is_counted(seed, noise, policy, tmp_path, monkeypatch):
    storm = Storm(seed, tmp_path, noise, policy)
    rounds, checkpoint = storm.plan.training.rounds, tmp_path / "server/checkpoint.safetensors"
    for number in range(7):
        ended = storm.run(monkeypatch, calm=number == 6)
        if ended or number == 3:  # begin anew: what was released until then stays released
            checkpoint.unlink(missing_ok=True)
    assert ended
    attempts = storm.attempts()
    assert len(attempts) > 1
    own = {
        (name, attempt.declaration.federation): attempt
        for name in ("node-01", "node-02", "node-03")
        for attempt in read_ledger(tmp_path / name / "ledgers" / f"{storm.plan.label}.jsonl")
    }
    for identity, left in storm.left.items():
        entries = attempts[identity].releases()
        counted = histories(entries)
        for name in {name for name, _ in left}:
            gone = sum(len(updates) for (who, _), updates in left.items() if who == name)
            # Neither the node's own ledger nor what is stated from the server's attempt is less.
            assert len(own[name, identity].releases()) >= gone
            assert sum(declared(counted[name], rounds).values()) >= gone
        for number in range(rounds):
            names = [event.node for event in entries if event.round == number]
            if len(names) == len(set(names)) == len(counted) and (identity, number) in storm.averaged:
                # Credited with everybody's noise: then all were in the average, and nothing else of the round got out.
                assert storm.averaged[identity, number] == len(counted)
                assert all(len(left[name, number]) == 1 for name in names)


def test_a_node_stands_in_the_account_before_it_is_first_asked(tmp_path):
    plan = make_plan()
    line = DirectLine(hospitals(plan, tmp_path))

    def asked(request, reply):
        (attempt,) = read_ledger(tmp_path / "server/ledger.jsonl")
        assert plan.event(reply.name, 0) in attempt.releases()
        raise KilledError

    line.tamper = asked
    with pytest.raises(KilledError):
        coordinator(plan, line, tmp_path, QUICKER).run()
