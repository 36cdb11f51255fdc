"""Rounds with masked sums: what a server gets, what it can do to hospitals that run the shipped code, and what not."""

from __future__ import annotations

import shutil
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from hospitals.sites import (
    OFTEN,
    QUICK,
    DirectLine,
    assembly,
    coordinator,
    hospitals,
    make_hospital,
    sums_plan,
)
from hospitals.test_coordinator import flat, simulated

from zetadp.account.attempts import read_ledger
from zetadp.base.storage import write_json
from zetadp.base.validation import UserError
from zetadp.hospitals.masks import FreshValue, Place
from zetadp.hospitals.protocol import Answer, Reason, Refusal, Request, decode, encode

PLAN = sums_plan(rounds=2)
EXACT = sums_plan(rounds=2, noise="os")
FOUR = sums_plan(4, missing=1, rounds=2)
SIZE = assembly(PLAN).phase.message
PATIENT = replace(QUICK, give_up_seconds=60.0)
SELDOM = replace(OFTEN, checkpoint_seconds=1e9)
GO_ON = replace(QUICK, least_nodes=1)


def summing(plan, line, folder, patience=PATIENT):
    return coordinator(plan, line, folder, patience, SELDOM)


def releases(hospital) -> list[int]:
    path = hospital.participant.ledger
    return [event.round for attempt in read_ledger(path) for event in attempt.releases()] if path.exists() else []


def ask(hospital, number=0, again=0, *, seed=0, **changes) -> Answer | Refusal:
    """Send a hospital a request as a server might make it up."""
    start = assembly(hospital.plan).phase.weights()
    weights = encode(start + seed * torch.ones_like(start))
    asked = Request(hospital.plan.digest, Place("training", number, again), 0, "", weights)
    return hospital.exchange(replace(asked, **changes))


def values_of(sites, number=0, again=0) -> tuple[FreshValue, ...]:
    return tuple(ask(site, number, again, weights=b"").value for site in sites)


# -- The training ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [3, 5])
def test_both_engines_give_the_same_model_bit_for_bit(nodes, tmp_path):
    plan = sums_plan(nodes, rounds=2)
    expected = simulated(plan, tmp_path)

    def twice(_, reply):
        line.replies.append(reply)  # an answer that comes twice is added once
        return reply

    line = DirectLine(hospitals(plan, tmp_path), twice)
    found = summing(plan, line, tmp_path)
    assert torch.equal(flat(found.run().model), flat(expected.model))
    assert [releases(hospital) for hospital in line.hospitals.values()] == [[0, 1]] * nodes
    assert len(line.requests) == nodes * (2 + 1)  # one exchange a round, after one for the first values


def test_a_node_that_dies_in_a_try_makes_it_void_and_takes_part_in_the_next(tmp_path):
    """Its value is lost, the others draw anew, every release is counted, and the weights stay the same."""

    def die(request, reply):
        if (request.place.round, request.place.number, reply.name) == (1, 0, "node-01"):
            line.hospitals["node-02"] = make_hospital(PLAN, 1, tmp_path)  # a new process on the same state
        return reply

    line = DirectLine(hospitals(PLAN, tmp_path), die)
    summing(PLAN, line, tmp_path).run()
    tries = {(request.place.round, request.place.number) for _, request in line.requests if request.values}
    assert tries == {(0, 0), (1, 0), (1, 1)}
    assert len({request.weights for _, request in line.requests if request.place.round == 1 and request.values}) == 1
    assert [releases(hospital) for hospital in line.hospitals.values()] == [[0, 1, 1], [0, 1], [0, 1, 1]]
    assert len(read_ledger(tmp_path / "server/ledger.jsonl")[-1].releases()) == 3 + 2 + 3


def test_a_node_that_always_dies_in_its_computation_ends_the_training(tmp_path):
    def die(request, reply):
        if (reply.name, request.place.round) != ("node-02", 1) or not request.values:
            return reply
        line.hospitals["node-02"] = make_hospital(PLAN, 1, tmp_path)
        if isinstance(reply, Refusal):
            return reply
        write_json(line.hospitals["node-02"].participant.at_work, asdict(request.place))
        return None

    line = DirectLine(hospitals(PLAN, tmp_path), die)
    with pytest.raises(UserError, match=r"Round 2 .* at least 3 of 3 nodes must answer; node-02 failed 3 times"):
        summing(PLAN, line, tmp_path).run()
    assert len(releases(line.hospitals["node-01"])) <= PLAN.tries


def test_nothing_but_a_whole_try_enters_the_model(tmp_path):
    """With noise that is drawn again, the model of a training with void tries is that of their last sums alone."""
    sums = []

    def spoil(request, reply):
        if isinstance(reply, Answer) and reply.update:
            sums.append(((request.place.round, request.place.number), reply.update))
            if reply.name == "node-03" and request.place.number == 0 and request.place.round == 0:
                return replace(reply, update=reply.update[:-8])
        return reply

    found = summing(PLAN, DirectLine(hospitals(PLAN, tmp_path), spoil), tmp_path)
    model = found.run().model
    of_try = {place: sum(decode(u, SIZE, torch.int64) for p, u in sums if p == place) for place, _ in sums}
    assert sorted(of_try) == [(0, 0), (0, 1), (1, 0)]
    assert not torch.equal(of_try[0, 0], of_try[0, 1])
    parts = assembly(PLAN)
    receiver = parts.receiver()
    for number, place in enumerate([(0, 1), (1, 0)]):
        receiver.step(parts.received(of_try[place][None]), number)
    assert torch.equal(flat(model), flat(parts.phase.model))


def test_without_one_that_may_be_missing_the_training_goes_on_and_without_two_it_stops(tmp_path):
    line = DirectLine(hospitals(FOUR, tmp_path))
    line.away = {"node-02"}
    server, left_out = summing(FOUR, line, tmp_path, GO_ON), []
    step = server.receiver.step
    server.receiver.step = lambda mean, number, missing: (left_out.append(missing), step(mean, number, missing))
    server.run()
    assert left_out == [["node-02"], ["node-02"]]
    assert releases(line.hospitals["node-02"]) == []
    assert releases(line.hospitals["node-01"]) == [0, 1]
    line.away = {"node-02", "node-03"}
    with pytest.raises(UserError, match="no answer from node-02, node-03"):
        summing(FOUR, line, tmp_path / "again", replace(GO_ON, give_up_seconds=0.2)).run()
    assert releases(line.hospitals["node-01"]) == [0, 1]


@pytest.mark.parametrize("plan", [PLAN, EXACT], ids=["seeded", "os"])
def test_a_server_that_dies_asks_the_same_try_again_and_gets_the_same_bytes(plan, tmp_path):
    """The sum is the one of the first time, also where noise cannot be drawn again; nobody releases twice."""
    sites, sent = hospitals(plan, tmp_path), []

    def end(request, reply):
        if reply.update:
            sent.append((reply.name, request.values, reply.update))
            if request.place.round == 1 and len(sent) == 6:
                raise KeyboardInterrupt
        return reply

    with pytest.raises(KeyboardInterrupt):
        summing(plan, DirectLine(sites, end), tmp_path).run()
    again = [make_hospital(plan, place, tmp_path) for place in range(3)]  # nor does it matter that nodes are new
    summing(plan, DirectLine(again, end), tmp_path).run()
    assert sorted(sent[3:6]) == sorted(sent[6:9])
    assert [releases(hospital) for hospital in again] == [[0, 1]] * 3


def test_garbage_is_found_by_its_range_alone_and_makes_the_try_void(tmp_path, caplog):
    def spoil(request, reply):
        if reply.update and reply.name == "node-01" and not request.place.number:
            return replace(reply, update=np.random.default_rng(request.place.round).bytes(len(reply.update)))
        return reply

    line = DirectLine(hospitals(PLAN, tmp_path), spoil)
    summing(PLAN, line, tmp_path).run()
    assert caplog.text.count("did not cancel") == 2
    assert releases(line.hospitals["node-01"]) == [0, 0, 1, 1]


# -- A server that deviates ------------------------------------------------------------------------------------------


def test_a_try_that_is_repeated_gets_the_same_bytes_or_nothing(tmp_path):
    sites = hospitals(EXACT, tmp_path)
    values = values_of(sites)
    first = ask(sites[0], values=values)
    assert ask(sites[0], values=values).update == first.update
    assert ask(make_hospital(EXACT, 0, tmp_path), values=values).update == first.update
    assert releases(sites[0]) == [0]
    # One other value makes it another try, for which the own value is used up.
    other = (values[0], *values_of(sites[1:2]), values[2])
    assert ask(sites[0], values=other).reason == Reason.VALUE
    shutil.rmtree(sites[0].participant.messages)
    assert ask(sites[0], values=values).reason == Reason.ANSWERED
    assert releases(sites[0]) == [0]


def test_other_weights_are_refused_also_after_a_try_that_was_lost_and_stored_messages_are_gone(tmp_path, monkeypatch):
    sites = hospitals(EXACT, tmp_path)
    assert isinstance(ask(sites[0], values=values_of(sites)), Answer)
    with monkeypatch.context() as patched:
        patched.setattr("zetadp.training.outbox.Outbox.keep", lambda *_: 1 / 0)
        assert ask(sites[0], 0, 1, values=values_of(sites, 0, 1)).reason == Reason.FAILED
    assert isinstance(ask(sites[0], 1, checkpointed=1, values=values_of(sites, 1)), Answer)
    for seed in (0, 1):
        assert ask(sites[0], 0, 2, seed=seed, values=values_of(sites, 0, 2)).reason == Reason.ANSWERED
