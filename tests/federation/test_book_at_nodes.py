"""A hospital counts what was really recorded about its patients, at its own delta (kinds A and B)."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from federation.sites import assembly, make_hospital, make_plan

from zetadp.base.validation import UserError
from zetadp.core.plan import NodeConstants, Plan, RunName
from zetadp.core.promise import check_promise, noise_of_plan
from zetadp.federation.certificates import make_credentials
from zetadp.federation.hospital import Hospital
from zetadp.federation.kit import invitation, write_kits
from zetadp.federation.participant import Participant
from zetadp.federation.protocol import Answer, Request, encode
from zetadp.federation.settings import HospitalSettings
from zetadp.privacy.book import Book
from zetadp.privacy.budget import Cap
from zetadp.privacy.exposure import total

DELTA = 1e-3
REAL = {"simulation": False, "answer_seconds": 1}
NODES = tuple(NodeConstants(f"node-0{number}", 4, 4, 1.0) for number in (1, 2, 3))


def plan_of(rounds: int, name: str = "net", more: float = 1.0) -> Plan:
    plan = replace(make_plan(noise="os", rounds=rounds), nodes=NODES, run=RunName(name, "federated", "8", 0))
    return plan.with_noise(more * noise_of_plan(plan))


def ask(hospital: Hospital, number: int, attempt: str) -> bool:
    """Return whether a hospital releases a round."""
    weights = encode(assembly(hospital.plan).phase.weights())
    return isinstance(hospital.reply(Request(hospital.plan.digest, attempt, number, 0, "", weights)), Answer)


def spent_at(hospital: Hospital) -> float:
    return total(Book.read(hospital.settings.state / "ledgers").runs(), DELTA)


# Point 6: what an attempt is, and what limits are asked of


@pytest.mark.parametrize("limit", [{"cap": Cap(8.5, DELTA)}, {"most_epsilon": 8.5}])
def test_an_attempt_of_another_plan_is_another_attempt_whatever_the_server_calls_it(tmp_path, limit):
    hospital = make_hospital(plan_of(1), 1, tmp_path, **REAL, **limit)
    assert ask(hospital, 0, "x")
    other = plan_of(12)
    try:
        hospital = make_hospital(other, 1, tmp_path, **REAL, **limit)
    except UserError:
        return
    assert not any(ask(hospital, number, "x") for number in range(12))
    assert spent_at(hospital) <= 8.5


def test_most_epsilon_counts_what_earlier_plans_really_cost(tmp_path):
    first = make_hospital(plan_of(4), 1, tmp_path, **REAL, most_epsilon=8.1)
    assert all(ask(first, number, "x") for number in range(4))
    try:
        second = make_hospital(plan_of(4, more=1.42), 1, tmp_path, **REAL, attempts=2, most_epsilon=8.1)
    except UserError:
        return
    assert not any(ask(second, number, "y") for number in range(4))


def test_most_epsilon_is_asked_before_a_round_is_released_again(tmp_path):
    hospital = make_hospital(plan_of(4), 1, tmp_path, **REAL, most_epsilon=8.1)
    assert ask(hospital, 0, "x")
    for stored in hospital.participant.messages.iterdir():
        stored.unlink()
    text = hospital.participant.ledger.read_text().splitlines(keepends=True)
    hospital.participant.ledger.write_text("".join(text[:-1]))  # killed before the note that the message was sent
    again = [ask(hospital, number, "x") for number in (0, 1, 2, 3)]
    assert not all(again)


def test_a_hospital_may_set_both_limits(tmp_path):
    """They share one lock: asked for twice, it would never be given."""
    hospital = make_hospital(plan_of(2), 1, tmp_path, **REAL, most_epsilon=8.1, cap=Cap(8.1, DELTA))
    signal.alarm(60)  # ends the tests' process: a node that waits for itself is a failure
    assert ask(hospital, 0, "x")
    signal.alarm(0)


# Point 7: the account belongs to patients


def test_a_second_kit_counts_what_the_first_one_spent(tmp_path):
    keys = make_credentials(tmp_path / "keys", [], ["server.example"])
    spent_by = []
    for name in ("first", "second"):
        plan = plan_of(2, name)
        plan.write(tmp_path / f"{name}.json")
        kits = tmp_path / f"kits-{name}"
        write_kits(plan, tmp_path / f"{name}.json", kits, server="server.example:9443", authority=keys.authority)
        settings = HospitalSettings.read(kits / "node-02/node.yaml")
        spent_by.append(settings.state)
    assert spent_by[0] == spent_by[1]


# Point 11: a hospital judges at its own delta


@pytest.mark.parametrize(
    ("delta", "population", "expected", "rounds", "sigma"),
    [(0.99, 6, 6, 20, 1e-3), (0.5, 6, 1, 3, 0.05), (1e-2, 200, 1, 1, 0.02), (1e-3, 4000, 1, 2, 0.02)],
)
def test_no_delta_of_the_coordinators_makes_a_plan_cheap(delta, population, expected, rounds, sigma):
    plan = replace(
        make_plan(noise="os", rounds=rounds),
        nodes=(NodeConstants("node-1", population, expected, sigma),),
        run=RunName("x", "federated", "1", 0),
        delta=delta,
    )
    with pytest.raises(UserError, match="node-1"):
        check_promise(plan, "node-1", most_epsilon=1.0)


def node_settings(folder, **changes) -> HospitalSettings:
    lines = {"name": "node-01", "plan": "plan.json", "images": "images", "state": "state", **changes}
    (folder / "node.yaml").write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
    return HospitalSettings.read(folder / "node.yaml")


def test_a_hospital_judges_at_its_own_delta_whatever_its_cap_and_the_plan_say(tmp_path):
    plan = replace(plan_of(2), delta=0.05)
    plan = plan.with_noise(noise_of_plan(plan))  # epsilon 8 at the coordinator's delta, and more at a smaller one
    for own in ({}, {"cap": "{epsilon: 100, delta: 0.05}"}, {"delta": 0.01}):
        with pytest.raises(UserError, match="node-01"):
            Participant(node_settings(tmp_path, **own), plan)
    generous = node_settings(tmp_path, delta=0.05, most_epsilon=9)
    for agreed, delta in ((plan, 0.05), (plan_of(2), DELTA)):
        participant = Participant(generous, agreed)
        assert participant.promise.delta == participant.limits[0].delta == delta
    assert "at delta 0.05" not in invitation(plan, "node-01")


@pytest.mark.parametrize(
    "own",
    [
        {"delta": 0},
        {"delta": 1},
        {"delta": ".nan"},
        {"delta": "true"},
        {"cap": "{epsilon: 10, delta: 1}"},
        {"cap": "{epsilon: 10, delta: 0}"},
        {"cap": "{epsilon: .inf, delta: 0.001}"},
        {"cap": "{epsilon: 10, delta: 0.001, alone: true}"},
    ],
)
def test_a_limit_that_limits_nothing_is_no_setting(tmp_path, own):
    with pytest.raises(UserError, match=next(iter(own))):
        node_settings(tmp_path, **own)
