from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from federation.sites import assembly, make_hospital, make_plan, write_hospital_folder

from zetadp.base.epsilon import rounded_up
from zetadp.base.validation import UserError
from zetadp.core.messages import MessageStore
from zetadp.federation.flower.approval import approve
from zetadp.federation.flower.certificates import make_node_key
from zetadp.federation.flower.hospital import Hospital
from zetadp.federation.flower.protocol import Answer, Reason, Refusal, Request, decode, encode
from zetadp.federation.flower.settings import HospitalSettings, check_cap
from zetadp.privacy.budget import Cap, spent
from zetadp.privacy.ledger import Ledger, read_ledger

SEEDED, EXACT = make_plan(), make_plan(noise="os")
PLANS = pytest.mark.parametrize("plan", [SEEDED, EXACT], ids=["seeded", "os"])


def request(of, number=0, *, seed=0, attempt="attempt", head="", checkpointed=0, **changes):
    start = assembly(of).phase.weights()
    weights = start + seed * torch.ones_like(start)
    asked = Request(of.digest, attempt, number, checkpointed, head, encode(weights))
    return replace(asked, **changes)


def releases(hospital: Hospital) -> list:
    return [len(attempt.releases()) for attempt in read_ledger(hospital.ledger_path)]


@PLANS
def test_an_answer_is_finite_whole_and_in_the_ledger(plan, tmp_path):
    hospital = make_hospital(plan, 1, tmp_path)
    answer = hospital.reply(request(plan))
    assert isinstance(answer, Answer)
    decode(answer.update, assembly(plan).phase.dimension)
    assert list(answer.lines) == hospital.ledger_path.read_text().splitlines()
    assert read_ledger(hospital.ledger_path)[-1].releases() == [plan.event("node-02", 0)]


@PLANS
def test_a_repeated_request_gets_the_same_bytes_also_from_a_node_begun_anew(plan, tmp_path):
    first = make_hospital(plan, 0, tmp_path).reply(request(plan))
    again = make_hospital(plan, 0, tmp_path).reply(request(plan))
    assert again.update == first.update
    assert releases(make_hospital(plan, 0, tmp_path)) == [1]


@PLANS
def test_a_second_request_with_other_weights_is_refused_and_releases_nothing(plan, tmp_path):
    hospital = make_hospital(plan, 0, tmp_path)
    hospital.reply(request(plan))
    refused = hospital.reply(request(plan, seed=1))
    assert refused == Refusal("node-01", "attempt", 0, Reason.ANSWERED)
    assert releases(hospital) == [1]


@PLANS
def test_a_round_whose_message_was_discarded_is_never_answered_again(plan, tmp_path):
    hospital = make_hospital(plan, 0, tmp_path)
    for number in range(3):
        assert isinstance(hospital.reply(request(plan, number, checkpointed=max(0, number - 1))), Answer)
    assert len(list(hospital.message_folder.iterdir())) == 2
    assert isinstance(hospital.reply(request(plan, 1)), Answer)
    for seed in (0, 1):
        assert hospital.reply(request(plan, 0, seed=seed)).reason == Reason.ANSWERED
    assert releases(hospital) == [3]


@PLANS
def test_rounds_differ_in_their_noise(plan, tmp_path):
    hospital = make_hospital(make_plan(sigma=1000.0, noise=plan.training.noise), 0, tmp_path)
    dimension = assembly(plan).phase.dimension
    updates = [decode(hospital.reply(request(hospital.plan, number)).update, dimension).double() for number in range(4)]
    correlations = torch.corrcoef(torch.stack(updates)) - torch.eye(4)
    assert correlations.abs().max() < 5 / dimension**0.5
    assert torch.stack(updates).std() == pytest.approx(1000.0, rel=0.2)  # sigma B / R


def test_nodes_differ_in_their_noise_under_one_seed(tmp_path):
    plan = make_plan(sigma=1000.0)
    dimension = assembly(plan).phase.dimension
    updates = [
        decode(make_hospital(plan, place, tmp_path).reply(request(plan)).update, dimension) for place in range(3)
    ]
    correlations = torch.corrcoef(torch.stack(updates)) - torch.eye(3)
    assert correlations.abs().max() < 5 / dimension**0.5


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"plan": make_plan(sigma=0.1).digest}, Reason.PLAN),
        ({"round": 4}, Reason.ROUND),
        ({"round": -1}, Reason.ROUND),
        ({"checkpointed": 1}, Reason.ROUND),
        ({"weights": b"123"}, Reason.SHAPE),
        ({"head": "f" * 64}, Reason.LEDGER),
    ],
)
def test_what_the_plan_does_not_allow_is_refused_and_writes_nothing(change, reason, tmp_path, caplog):
    hospital = make_hospital(SEEDED, 0, tmp_path)
    assert hospital.reply(request(SEEDED, **change)) == Refusal("node-01", "attempt", change.get("round", 0), reason)
    assert f"refused round {change.get('round', 0) + 1}: {reason}" in caplog.text  # counted from 1, as by the server
    assert not hospital.ledger_path.exists() or hospital.ledger_path.read_text() == ""


def test_weights_that_are_not_finite_are_refused(tmp_path):
    weights = bytearray(request(SEEDED).weights)
    weights[:4] = b"\x00\x00\xc0\x7f"
    assert make_hospital(SEEDED, 0, tmp_path).reply(request(SEEDED, weights=bytes(weights))).reason == Reason.SHAPE


def test_only_so_many_attempts_are_permitted(tmp_path):
    hospital = make_hospital(SEEDED, 0, tmp_path, attempts=2)
    for attempt in ("a", "b"):
        assert isinstance(hospital.reply(request(SEEDED, attempt=attempt)), Answer)
    assert hospital.reply(request(SEEDED, attempt="c")).reason == Reason.ATTEMPTS
    assert hospital.reply(request(SEEDED, attempt="a")).reason == Reason.ATTEMPTS  # nor one that was left
    assert releases(hospital) == [1, 1]


def test_the_lines_after_the_servers_head_are_sent_and_no_others(tmp_path):
    hospital = make_hospital(SEEDED, 0, tmp_path)
    first = hospital.reply(request(SEEDED))
    head = read_ledger(hospital.ledger_path)[-1]
    known = hospital.ledger_path.read_text().splitlines()[-1].split('"')[3]
    second = hospital.reply(request(SEEDED, 1, head=known))
    assert [*first.lines, *second.lines] == hospital.ledger_path.read_text().splitlines()
    assert known in head.heads


def test_a_ledger_put_back_to_an_earlier_day_ends_the_nodes_part(tmp_path):
    hospital = make_hospital(SEEDED, 0, tmp_path)
    hospital.reply(request(SEEDED))
    backup = hospital.ledger_path.read_text()
    hospital.reply(request(SEEDED, 1))
    known = hospital.ledger_path.read_text().splitlines()[-1].split('"')[3]
    hospital.ledger_path.write_text(backup)
    assert hospital.reply(request(SEEDED, 2, head=known)).reason == Reason.LEDGER


def test_a_release_that_was_never_kept_is_drawn_anew_and_both_count(tmp_path, monkeypatch):
    hospital = make_hospital(EXACT, 0, tmp_path)
    lost = []

    def fail(_self, _round, _weights, messages, *_):
        lost.append(messages)
        raise OSError

    with monkeypatch.context() as patched:
        patched.setattr(MessageStore, "keep", fail)
        assert hospital.reply(request(EXACT)).reason == Reason.FAILED
    found = decode(hospital.reply(request(EXACT)).update, lost[0].shape[1])
    assert not torch.equal(found, lost[0][0])
    assert releases(hospital) == [2]


def test_an_error_sends_a_fixed_word_and_none_of_its_text(tmp_path, monkeypatch, caplog):
    hospital = make_hospital(SEEDED, 0, tmp_path)

    def fail(*_, **__):
        msg = "patient Smith has no images"
        raise ValueError(msg)

    monkeypatch.setattr("zetadp.federation.flower.hospital.do_round", fail)
    refused = hospital.reply(request(SEEDED))
    assert "Smith" not in repr(refused)
    assert "Smith" in caplog.text
    assert refused.reason == Reason.FAILED


def test_a_hospital_says_what_each_round_has_cost_and_whom_the_server_misses(tmp_path, caplog):
    caplog.set_level("INFO")
    plan = make_plan(rounds=2, noise="os")
    hospital = make_hospital(plan, 0, tmp_path)
    for number in range(2):
        hospital.reply(request(plan, number))
        hospital.report(number)
    spent = rounded_up(hospital.promise.epsilon)
    said = [message for message in caplog.messages if "is recorded" in message]
    assert [message.split()[1] for message in said] == ["1", "2"]
    assert float(said[0].split()[10]) < float(said[1].split()[10]) == float(spent)
    assert any("finished" in message for message in caplog.messages)
    caplog.clear()
    hospital.notice(["node-03", "\x1b[2J", "node-01\nall is well"])
    hospital.notice([])
    assert len(caplog.messages) == 2
    assert "node-03" in caplog.messages[0]
    assert all(message.isprintable() for message in caplog.messages)


def test_a_node_at_work_says_so(tmp_path):
    hospital = make_hospital(SEEDED, 0, tmp_path)
    with Ledger(hospital.ledger_path):
        assert hospital.reply(request(SEEDED)).reason == Reason.BUSY


@pytest.mark.parametrize("changes", [{"noise": "seeded"}, {"noise": "os", "sigma": 0.0}])
def test_a_plan_that_protects_nobody_is_refused_where_patients_are_real(changes, tmp_path):
    plan = make_plan(**changes)
    with pytest.raises(UserError, match="Expected a plan with noise from the operating system at node-01"):
        make_hospital(plan, 0, tmp_path, simulation=False)
    make_hospital(EXACT, 0, tmp_path, simulation=False)


def test_a_plan_of_directions_is_refused(tmp_path):
    directed = replace(SEEDED, training=replace(SEEDED.training, release="von_mises_fisher"))
    with pytest.raises(UserError, match="release gaussian at node-01, found von_mises_fisher: no exact sampler"):
        make_hospital(directed, 0, tmp_path)


def test_a_plan_that_costs_more_than_it_says_is_refused(tmp_path):
    """Its label is a promise to patients: whoever computes it must find no more."""
    honest = replace(EXACT, run=replace(EXACT.run, epsilon="8"))
    assert make_hospital(honest, 0, tmp_path).promise.epsilon <= 8
    quiet = [replace(node, noise_multiplier=0.02) for node in honest.nodes]
    with pytest.raises(UserError, match="at most epsilon 8, as its name says, found"):
        make_hospital(replace(honest, nodes=tuple(quiet)), 0, tmp_path)
    # The name of runs without noise would allow every cost.
    with pytest.raises(UserError, match="names the epsilon of its noise, found the name inf"):
        make_hospital(replace(EXACT, run=replace(EXACT.run, epsilon="inf")), 0, tmp_path)
    # The same noise costs more at a smaller delta.
    named = replace(
        EXACT, run=replace(EXACT.run, epsilon=rounded_up(make_hospital(EXACT, 0, tmp_path).promise.epsilon))
    )
    make_hospital(named, 0, tmp_path)
    with pytest.raises(UserError, match="at delta 1e-05"):
        make_hospital(replace(named, delta=1e-5), 0, tmp_path)


def test_a_hospitals_own_limit_counts_every_attempt_and_every_image(tmp_path):
    found = make_hospital(EXACT, 0, tmp_path).promise.epsilon
    make_hospital(EXACT, 0, tmp_path, most_epsilon=1.01 * found)
    with pytest.raises(UserError, match=r"at most epsilon .* in 2 trainings, as most_epsilon says, found"):
        make_hospital(EXACT, 0, tmp_path, most_epsilon=1.01 * found, attempts=2)
    nodes = [replace(node, population=8 * node.population, expected=8 * node.expected) for node in EXACT.nodes]
    images = replace(EXACT, unit="image", units_of_a_person=8, nodes=tuple(nodes))
    promise = make_hospital(images, 0, tmp_path).promise
    assert promise.epsilon == pytest.approx(found)
    assert promise.person > 3 * found
    assert f"for a patient with all 8 images {rounded_up(promise.person)}" in str(promise)
    with pytest.raises(UserError, match="in one training"):
        make_hospital(images, 0, tmp_path, most_epsilon=1.01 * found)


def test_attempts_share_no_draw(tmp_path):
    """Two sums under one noise would show their difference bare, and two attempts would not compose."""
    hospital = make_hospital(make_plan(sigma=1000.0), 0, tmp_path, attempts=3)
    dimension = assembly(hospital.plan).phase.dimension
    updates = [
        decode(hospital.reply(request(hospital.plan, attempt=attempt)).update, dimension) for attempt in ("a", "b", "c")
    ]
    correlations = torch.corrcoef(torch.stack(updates)) - torch.eye(3)
    assert correlations.abs().max() < 5 / dimension**0.5


def test_plans_share_no_draw(tmp_path):
    plans = [make_plan(sigma=1000.0), make_plan(sigma=1000.0, cohort="another")]
    plans.append(replace(plans[0], training=replace(plans[0].training, clip=2.5)))
    updates = []
    for number, plan in enumerate(plans):
        hospital = make_hospital(plan, 0, tmp_path / str(number))
        updates.append(decode(hospital.reply(request(plan)).update, assembly(plan).phase.dimension))
    correlations = torch.corrcoef(torch.stack(updates)) - torch.eye(3)
    assert correlations.abs().max() < 5 / len(updates[0]) ** 0.5


def test_real_patients_need_a_fixed_time_of_answer(tmp_path):
    settings = {"name": "a", "plan": tmp_path, "images": tmp_path, "state": tmp_path, "answer_seconds": 0.0}
    with pytest.raises(UserError, match="answer_seconds above zero"):
        HospitalSettings(**settings)
    HospitalSettings(**settings, simulation=True)


def test_another_number_of_patients_than_planned_is_refused(tmp_path):
    hospital = make_hospital(SEEDED, 0, tmp_path)
    with pytest.raises(UserError, match="Expected 3 training patients at node-01, as the plan declares, found 2"):
        Hospital(hospital.settings, SEEDED, hospital.records, hospital.units[:2])


@pytest.mark.parametrize(("work", "tick", "least"), [(0.05, 0.3, 0.3), (0.35, 0.3, 0.6), (0.0, 0.0, 0.0)])
def test_answers_leave_at_whole_ticks(work, tick, least):
    from zetadp.core.progress import wait_for_tick

    begun = time.monotonic()
    time.sleep(work)
    wait_for_tick(begun, tick)
    passed = time.monotonic() - begun
    assert passed >= least
    assert tick == 0 or passed % tick < 0.25 * tick


def test_a_hospitals_cap_holds_over_plans_restarts_and_rounds_that_are_drawn_anew(tmp_path, monkeypatch):
    cost = make_hospital(EXACT, 0, tmp_path).promise.epsilon
    rounds = EXACT.training.rounds
    more = make_plan(noise="os", rounds=rounds + 1)
    room = make_hospital(more, 0, tmp_path).promise.epsilon  # for one round that is drawn anew
    cap = Cap(1.0001 * room, EXACT.delta)
    other = replace(EXACT, run=replace(EXACT.run, seed=7))

    def at(plan):
        return make_hospital(plan, 0, tmp_path, cap=cap)

    assert isinstance(at(EXACT).reply(request(EXACT)), Answer)
    assert at(other).reply(request(other)).reason == Reason.CAP
    with pytest.raises(UserError, match="The cap is"):
        check_cap(at(other).settings, other)
    check_cap(at(EXACT).settings, EXACT)  # it has begun, and may go on
    lower = replace(at(EXACT).settings, cap=Cap(0.999 * cost, EXACT.delta))
    with pytest.raises(UserError, match="The run does not continue"):
        check_cap(lower, EXACT)
    for number in (1, 2):  # each dies after it was recorded; there is room for drawing one of them again
        with monkeypatch.context() as patched:
            patched.setattr(MessageStore, "keep", lambda *_: 1 / 0)
            assert at(EXACT).reply(request(EXACT, number)).reason == Reason.FAILED
        again = at(EXACT).reply(request(EXACT, number))
        assert isinstance(again, Answer) if number == 1 else again.reason == Reason.CAP
    assert releases(at(EXACT)) == [4]
    assert cost < spent(tmp_path / "node-01/ledgers", EXACT.delta) <= cap.epsilon


FORKED = """
import sys
from pathlib import Path
import torch
from federation.sites import assembly
from zetadp.core.plan import Plan
from zetadp.federation.flower import hospital as module
from zetadp.federation.flower.programs import computed
from zetadp.federation.flower.protocol import Request, encode

work = Path(sys.argv[1])
many = lambda: torch.ones(4_000_000).exp().sum()
of, reply = module.site_task_of, module.Hospital.reply
module.site_task_of = lambda task: many() and of(task)
module.Hospital.reply = lambda self, request: many() and reply(self, request)
hospital = module.load_hospital(work / "node.yaml", work / "node.key")
plan = Plan.read(work / "plan.json")
weights = encode(assembly(plan).phase.weights())
print(type(computed(hospital, Request(plan.digest, "attempt", 0, 0, "", weights))).__name__)
"""


@pytest.mark.slow
@pytest.mark.parametrize("threads", ["", "threads: 2\n"])
def test_a_round_is_computed_whatever_the_preparation_of_the_patients_did_with_threads(threads, tmp_path):
    """As it does where features are computed: a fork that expects its parent's threads would wait for ever."""
    EXACT.write(tmp_path / "plan.json")
    write_hospital_folder(tmp_path / "images", EXACT.nodes[0].population)
    text = "name: node-01\nplan: plan.json\nimages: images\nstate: state\nlimit_seconds: 20\n"
    (tmp_path / "node.yaml").write_text(text + threads)
    make_node_key(tmp_path / "node.pub.pem", tmp_path / "node.key")
    approve(HospitalSettings.read(tmp_path / "node.yaml"), tmp_path / "node.key", "a test")
    here = str(Path(__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([here, *sys.path]), "OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-c", FORKED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100, env=environment)
    assert done.stdout == "Answer\n", done.stderr[-2000:]
