from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hospitals.sites import assembly, make_hospital, make_plan

from zetadp.account.attempts import read_ledger
from zetadp.account.book import Book
from zetadp.account.exposure import total
from zetadp.account.ledger import Ledger
from zetadp.accounting import composition
from zetadp.base.epsilon import Target, rounded_up
from zetadp.base.runfolder import RunName
from zetadp.base.validation import UserError
from zetadp.hospitals.hospital import Hospital
from zetadp.hospitals.kit import invitation
from zetadp.hospitals.masks import Place
from zetadp.hospitals.protocol import Answer, Reason, Refusal, Request, decode, encode
from zetadp.training.outbox import Outbox
from zetadp.training.plan import NodeConstants, Plan
from zetadp.training.progress import seconds_to_tick
from zetadp.training.promise import check_promise
from zetadp.training.promise import make_plan as with_its_noise

SEEDED, EXACT = make_plan(), make_plan(noise="os")


def request(of, number=0, *, seed=0, attempt="attempt", head="", checkpointed=0, **changes):
    start = assembly(of).phase.weights()
    weights = start + seed * torch.ones_like(start)
    asked = Request(of.digest, Place(attempt, number), checkpointed, head, encode(weights))
    return replace(asked, **changes)


def releases(hospital: Hospital) -> list:
    return [len(attempt.releases()) for attempt in read_ledger(hospital.participant.ledger)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"plan": make_plan(sigma=0.1).digest}, Reason.PLAN),
        ({"place": Place("attempt", 4)}, Reason.ROUND),
        ({"place": Place("attempt", -1)}, Reason.ROUND),
        ({"checkpointed": 1}, Reason.ROUND),
        ({"weights": b"123"}, Reason.SHAPE),
        ({"weights": b"\x00\x00\xc0\x7f" + request(SEEDED).weights[4:]}, Reason.SHAPE),  # not a number
        ({"head": "f" * 64}, Reason.LEDGER),
    ],
)
def test_what_the_plan_does_not_allow_is_refused_and_writes_nothing(change, reason, tmp_path, caplog):
    hospital = make_hospital(SEEDED, 0, tmp_path)
    asked = request(SEEDED, **change)
    assert hospital.reply(asked) == Refusal("node-01", asked.place, reason)
    assert f"refused round {asked.place.round + 1}: {reason}" in caplog.text  # counted from 1, as by the server
    assert not hospital.participant.ledger.exists() or hospital.participant.ledger.read_text() == ""


def test_only_so_many_attempts_are_permitted(tmp_path):
    hospital = make_hospital(SEEDED, 0, tmp_path, attempts=2)
    for attempt in ("a", "b"):
        assert isinstance(hospital.reply(request(SEEDED, attempt=attempt)), Answer)
    assert hospital.reply(request(SEEDED, attempt="c")).reason == Reason.ATTEMPTS
    assert hospital.reply(request(SEEDED, attempt="a")).reason == Reason.ATTEMPTS  # nor one that was left
    assert releases(hospital) == [1, 1]


def test_a_round_longer_than_answer_seconds_is_noted_once(tmp_path, caplog):
    hospital = make_hospital(make_plan(noise="os"), 0, tmp_path, simulation=False, answer_seconds=1)
    hospital.check_time(0.9)
    assert not caplog.records
    for _ in range(2):
        hospital.check_time(1.1)
    (record,) = caplog.records
    assert "took longer than answer_seconds (1)" in record.message


def test_the_lines_after_the_servers_head_are_sent_and_no_others(tmp_path):
    hospital = make_hospital(SEEDED, 0, tmp_path)
    first = hospital.reply(request(SEEDED))
    second = hospital.reply(request(SEEDED, 1, head=read_ledger(hospital.participant.ledger)[-1].last))
    assert [*first.lines, *second.lines] == hospital.participant.ledger.read_text().splitlines()


def test_a_release_that_was_never_kept_is_drawn_anew_and_both_count(tmp_path, monkeypatch):
    hospital = make_hospital(EXACT, 0, tmp_path)
    lost = []

    def fail(_self, _round, _weights, messages, *_):
        lost.append(messages)
        raise OSError

    with monkeypatch.context() as patched:
        patched.setattr(Outbox, "keep", fail)
        assert hospital.reply(request(EXACT)).reason == Reason.FAILED
    found = decode(hospital.reply(request(EXACT)).update, lost[0].shape[1])
    assert not torch.equal(found, lost[0][0])
    assert releases(hospital) == [2]


def test_an_error_sends_a_fixed_word_and_none_of_its_text(tmp_path, monkeypatch, caplog):
    hospital = make_hospital(SEEDED, 0, tmp_path)

    def fail(*_, **__):
        msg = "patient Smith has no images"
        raise ValueError(msg)

    monkeypatch.setattr("zetadp.hospitals.hospital.do_round", fail)
    refused = hospital.reply(request(SEEDED))
    assert "Smith" not in repr(refused)
    assert "Smith" in caplog.text
    assert refused.reason == Reason.FAILED


def test_a_node_at_work_says_so(tmp_path):
    hospital = make_hospital(SEEDED, 0, tmp_path)
    with Ledger(hospital.participant.ledger):
        assert hospital.reply(request(SEEDED)).reason == Reason.BUSY


UNPROTECTED = {
    "seeded noise": (SEEDED, "noise from the operating system"),
    "no noise": (make_plan(noise="os", sigma=0.0), "noise from the operating system"),
    "images": (replace(EXACT, unit="image", units_of_a_person=1), "unit image"),
    "another law of noise": (
        replace(SEEDED, training=replace(SEEDED.training, mechanism="von_mises_fisher")),
        "mechanism gaussian",
    ),
}


@pytest.mark.parametrize("what", UNPROTECTED)
def test_a_plan_that_protects_no_patient_is_refused_where_patients_are_real(what, tmp_path):
    plan, words = UNPROTECTED[what]
    with pytest.raises(UserError, match=f"{words}.*node-01|node-01.*{words}"):
        make_hospital(plan, 0, tmp_path, simulation=False)
    make_hospital(EXACT, 0, tmp_path, simulation=False)


def test_a_plan_that_costs_more_than_it_says_is_refused(tmp_path):
    """Its label is a promise to patients: whoever computes it must find no more."""
    honest = replace(EXACT, run=replace(EXACT.run, target=Target(8)))
    assert make_hospital(honest, 0, tmp_path).participant.promise.epsilon <= 8
    quiet = [replace(node, noise_multiplier=0.02) for node in honest.nodes]
    with pytest.raises(UserError, match="at most epsilon 8, as its name says, found"):
        make_hospital(replace(honest, nodes=tuple(quiet)), 0, tmp_path)
    # The name of runs without noise would allow every cost.
    with pytest.raises(UserError, match="names the epsilon of its noise, found the name inf"):
        make_hospital(replace(EXACT, run=replace(EXACT.run, target=Target(math.inf))), 0, tmp_path)
    # The same noise costs more at a smaller delta.
    cost = make_hospital(EXACT, 0, tmp_path).participant.promise.epsilon
    named = replace(EXACT, run=replace(EXACT.run, target=Target.read(rounded_up(cost))))
    make_hospital(named, 0, tmp_path)
    with pytest.raises(UserError, match="at delta 1e-05"):
        make_hospital(replace(named, delta=1e-5), 0, tmp_path)


def test_a_patient_pays_for_every_image(tmp_path):
    found = make_hospital(EXACT, 0, tmp_path).participant.promise.epsilon
    nodes = [replace(node, population=8 * node.population, expected=8 * node.expected) for node in EXACT.nodes]
    images = replace(EXACT, unit="image", units_of_a_person=8, nodes=tuple(nodes))
    promise = make_hospital(images, 0, tmp_path).participant.promise
    assert promise.epsilon == pytest.approx(found)
    assert promise.person > 3 * found
    assert f"for a patient with all 8 images {rounded_up(promise.person)}" in str(promise)
    with pytest.raises(UserError, match="The cap is"):
        make_hospital(images, 0, tmp_path, cap=1.01 * found).participant.check_cap()


def plan_of(rounds: int, name: str = "net", **changes) -> Plan:
    nodes = tuple(NodeConstants(f"node-0{number}", 4, 4, 1.0) for number in (1, 2, 3))
    plan = replace(
        make_plan(noise="os", rounds=rounds), nodes=nodes, run=RunName(name, "federated", Target(8), 0), **changes
    )
    return with_its_noise(plan)


def test_an_attempt_of_another_plan_is_another_attempt_whatever_the_server_calls_it(tmp_path, caplog):
    """Both plans have one name, and so one ledger."""
    first = make_hospital(plan_of(1), 1, tmp_path, cap=8.5)
    other = make_hospital(plan_of(12), 1, tmp_path, cap=8.5, attempts=2)
    assert isinstance(first.reply(request(first.plan)), Answer)
    assert other.reply(request(other.plan)).reason == Reason.CAP
    assert "`cap` in node.yaml" in caplog.text
    assert total(Book.read(tmp_path / "node-02/ledgers").runs(), 1e-3) <= 8.5


@pytest.mark.parametrize(
    ("delta", "population", "expected", "rounds", "sigma"),
    [(0.16, 6, 6, 20, 1e-3), (0.16, 6, 1, 3, 0.05), (5e-3, 200, 1, 1, 0.02), (2.5e-4, 4000, 1, 2, 0.02)],
)
def test_no_delta_of_the_coordinators_makes_a_plan_cheap(delta, population, expected, rounds, sigma):
    nodes = (NodeConstants("node-1", population, expected, sigma),)
    run = RunName("x", "federated", Target(1), 0)
    plan = replace(make_plan(noise="os", rounds=rounds), nodes=nodes, run=run, delta=delta)
    with pytest.raises(UserError, match="node-1"):
        check_promise(plan, "node-1")


def test_a_hospital_judges_at_its_own_delta_whatever_the_plan_says(tmp_path):
    plan = plan_of(2, delta=0.05)  # epsilon 8 at the coordinator's delta, and more at a smaller one
    for own in ({}, {"delta": 0.01}):
        with pytest.raises(UserError, match="node-01"):
            make_hospital(plan, 0, tmp_path, **own)
    for agreed, delta in ((plan, 0.05), (plan_of(2), 1e-3)):
        participant = make_hospital(agreed, 0, tmp_path, delta=0.05, cap=9).participant
        assert participant.promise.delta == participant.cap.delta == delta
    assert "at delta 0.05" not in invitation(plan, "node-01")


def test_another_number_of_patients_than_planned_is_refused(tmp_path):
    hospital = make_hospital(SEEDED, 0, tmp_path)
    with pytest.raises(UserError, match="Expected 3 training patients at node-01, as the plan declares, found 2"):
        Hospital(hospital.participant, hospital.records, hospital.units[:2])


@pytest.mark.parametrize(("passed", "tick", "left"), [(1, 10, 9), (12, 10, 8), (10, 10, 0), (5, 0, 0)])
def test_answers_leave_at_whole_ticks(passed, tick, left, monkeypatch):
    monkeypatch.setattr("zetadp.training.progress.time.monotonic", lambda: 100.0 + passed)
    assert seconds_to_tick(100.0, tick) == left


def test_a_hospitals_cap_holds_over_plans_restarts_and_rounds_that_are_drawn_anew(tmp_path, monkeypatch):
    cost = make_hospital(EXACT, 0, tmp_path).participant.promise.epsilon
    rounds = EXACT.training.rounds
    # Room for one round that is drawn anew. Nobody declared it, so a filter sums it.
    cap = 1.0001 * composition.epsilon_rdp({EXACT.event("node-01", 0).kind: rounds + 1}, EXACT.delta)
    other = replace(EXACT, run=replace(EXACT.run, seed=7))

    def at(plan):
        return make_hospital(plan, 0, tmp_path, cap=cap)

    assert isinstance(at(EXACT).reply(request(EXACT)), Answer)
    assert at(other).reply(request(other)).reason == Reason.CAP
    with pytest.raises(UserError, match="The cap is"):
        at(other).participant.check_cap()
    at(EXACT).participant.check_cap()  # it has begun, and may go on
    lower = make_hospital(EXACT, 0, tmp_path, cap=0.999 * cost)
    with pytest.raises(UserError, match="The run does not continue"):
        lower.participant.check_cap()
    for number in (1, 2):  # each dies after it was recorded; there is room for drawing one of them again
        with monkeypatch.context() as patched:
            patched.setattr(Outbox, "keep", lambda *_: 1 / 0)
            assert at(EXACT).reply(request(EXACT, number)).reason == Reason.FAILED
        again = at(EXACT).reply(request(EXACT, number))
        assert isinstance(again, Answer) if number == 1 else again.reason == Reason.CAP
    assert releases(at(EXACT)) == [4]
    assert cost < total(Book.read(tmp_path / "node-01/ledgers").runs(), EXACT.delta) <= cap
