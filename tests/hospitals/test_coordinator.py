from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest
import torch
from hospitals.sites import (
    OFTEN,
    QUICK,
    SIZE,
    DirectLine,
    assembly,
    coordinator,
    hospitals,
    make_hospital,
    make_plan,
    random_records,
)
from ledger_builder import DECLARATION
from training_builder import NETWORKS, backbone, joined

from zetadp.account.attempts import read_ledger
from zetadp.account.book import recorded_runs
from zetadp.account.exposure import Run, seen_by
from zetadp.account.ledger import Ledger
from zetadp.account.statement import run_statement
from zetadp.accounting.composition import compose
from zetadp.accounting.events import histories
from zetadp.base.epsilon import Target
from zetadp.base.runfolder import RunName
from zetadp.base.storage import write_json
from zetadp.base.validation import UserError
from zetadp.hospitals.protocol import Answer, Reason, Refusal, encode
from zetadp.nn.models import NetworkSettings
from zetadp.nn.settings import CLASS_MEANS, DESCENT, MIXED_ROWS
from zetadp.training.checkpoint import Checkpoint, RunFiles
from zetadp.training.holders import LocalHolders
from zetadp.training.loop import train
from zetadp.training.plan import Plan
from zetadp.training.pretrained import starting_weights, with_public
from zetadp.training.records import items_of, single_items
from zetadp.training.settings import MixingSettings, Performance

HEAD = NetworkSettings("head", "features", components=2, start="public")
TUNED = replace(backbone().settings, start="public")


def test_a_coordinator_takes_no_plan_with_too_little_noise_for_its_name(tmp_path):
    plan = make_plan(run=RunName("complex", "federated", Target(8), 0), sigma=0.1)
    with pytest.raises(UserError, match="at most epsilon 8"):
        coordinator(plan, DirectLine([]), tmp_path)
    assert not (tmp_path / "server").exists()


def last_attempt(folder):
    return read_ledger(folder / "server/ledger.jsonl")[-1]


def flat(model) -> torch.Tensor:
    return torch.cat([torch.view_as_real(p).flatten() if p.is_complex() else p.flatten() for p in model.parameters()])


def simulated(plan: Plan, folder, how: Performance = OFTEN, *, start=None, sides=(SIZE, SIZE)):
    """Train by the engine of one process."""
    sizes = [node.population // plan.units_of_a_person for node in plan.nodes]
    parts = [random_records(size, place, sides) for place, size in enumerate(sizes)]
    records = joined(*parts)
    ends = np.cumsum(sizes)
    each = len(records.inputs) // sum(sizes)
    own = [items_of([(i,) for i in range(end - size, end)], each) for size, end in zip(sizes, ends, strict=True)]
    units = [single_items(u, each) if plan.unit == "image" else u for u in own]
    files = RunFiles(folder / "sim/ledger.jsonl", folder / "sim/checkpoint.safetensors")
    watched = random_records(2, 99, sides)
    return train(LocalHolders(plan, records, units, start=start, performance=how), files, validation=watched)


METHODS = {
    "real k-space": {"network": NETWORKS["real k-space"]},
    "linear": {"network": NETWORKS["linear"]},
    "fourier": {"network": NETWORKS["complex fourier"]},
    "dense": {"network": NetworkSettings("dense", "complex", widths=(6, 5), activation="cardioid")},
    "single images": {"unit": "image", "units_of_a_person": 8},
    "head": {"network": HEAD},
    "class means": {"network": HEAD, "estimator": CLASS_MEANS},
    "mixed rows": {"network": HEAD, "estimator": MIXED_ROWS},
    "fine-tuning": {"network": TUNED},
}


@pytest.mark.parametrize("method", METHODS)
def test_both_engines_train_every_method_to_the_same_bits(method, tmp_path):
    changes = dict(METHODS[method])
    estimator = changes.pop("estimator", DESCENT)
    plan = make_plan(rounds=1 if estimator != DESCENT else 3, **changes)
    mixing = MixingSettings(5) if estimator == MIXED_ROWS else None
    plan = replace(plan, training=replace(plan.training, estimator=estimator, mixing=mixing))
    if plan.unit == "image":
        images = [replace(n, population=8 * n.population, expected=8 * n.expected) for n in plan.nodes]
        plan = replace(plan, nodes=tuple(images))
    public = backbone() if plan.network.start == "public" else None
    plan, start = with_public(plan, public), starting_weights(plan.network, public)
    sides = (1, 4) if plan.network.domain == "features" else (SIZE, SIZE)
    # One unit a pass, as exact noise takes them.
    expected = simulated(plan, tmp_path, replace(OFTEN, chunk=plan.together), start=start, sides=sides)
    line = DirectLine(hospitals(plan, tmp_path, sides=sides, start=start, chunk=plan.together))
    watched = random_records(2, 99, sides)
    found = coordinator(plan, line, tmp_path, start=start, watched=watched).run()
    assert torch.equal(flat(found.model), flat(expected.model))
    before = assembly(plan, start, sides).phase.model
    assert not torch.equal(flat(found.model), flat(before))


def test_with_exact_noise_they_sum_the_same_integers(tmp_path, monkeypatch):
    """Noise of the operating system cannot be repeated; without it, and with everybody drawn, all else can."""
    module = "zetadp.mechanism.release"
    monkeypatch.setattr(f"{module}.rounded_normal", lambda count, _, **__: np.zeros(count, np.int64))
    monkeypatch.setattr(f"{module}.bernoulli_mask", lambda _, population: np.ones(population, bool))
    choices = f"{module}.NodeMechanism.item_choices"
    monkeypatch.setattr(choices, lambda self, number: np.random.default_rng([int(self.event.node[-2:]), number]))
    plan = make_plan(nodes=3, rounds=4, noise="os")
    expected = simulated(plan, tmp_path)
    found = coordinator(plan, DirectLine(hospitals(plan, tmp_path)), tmp_path).run()
    assert torch.equal(flat(found.model), flat(expected.model))


def test_answers_carry_nothing_that_depends_on_patients_but_the_update(tmp_path):
    """Two hospitals with other patients send the same answers but for the update and its hash."""
    plan = make_plan()
    answers = []
    for seed in (0, 50):
        hospital = make_hospital(plan, 0, tmp_path / str(seed))
        hospital.records = random_records(plan.nodes[0].population, seed)
        line = DirectLine([hospital, *hospitals(plan, tmp_path / str(seed))[1:]])
        found = []
        line.tamper = lambda _, reply, found=found: found.append(reply) or reply
        coordinator(plan, line, tmp_path / str(seed)).run()
        answers.append(found[0])
    first, second = answers
    assert first.update != second.update
    assert (first.name, first.place.round) == (second.name, second.place.round)
    lines = [[json.loads(line)["entry"] for line in answer.lines] for answer in answers]
    for entries, answer in zip(lines, answers, strict=True):
        assert len(entries[-2].pop("digest")) == 64  # of the update
        assert entries[-1].pop("signature")  # of the line before
        assert entries[0].pop("federation") == answer.place.training
        assert len(entries[0].pop("nonce")) == 32
        assert len(entries[0].pop("register")) == 64  # of lines that the secret beside them keys
    assert lines[0] == lines[1]


def stop_after(number: int):
    """Lose all answers after a round, as a server that stops does."""
    return lambda request, reply: reply if request.place.round <= number else None


@pytest.mark.parametrize("noise", ["seeded", "os"])
@pytest.mark.parametrize("seconds", [0.0, 1e9], ids=["checkpoint every round", "checkpoint at the start"])
def test_a_server_that_stops_goes_on_with_the_messages_that_the_nodes_kept(noise, seconds, tmp_path):
    plan = make_plan(noise=noise)
    how = replace(OFTEN, checkpoint_seconds=seconds)
    with pytest.raises(UserError, match=r"Round 3 .* ended the run: .*node-01.* checkpoint after round"):
        coordinator(plan, DirectLine(hospitals(plan, tmp_path), stop_after(1)), tmp_path, how=how).run()
    coordinator(plan, DirectLine(hospitals(plan, tmp_path)), tmp_path, how=how).run()
    rounds = plan.training.rounds
    assert len(last_attempt(tmp_path).releases()) == 3 * rounds
    for hospital in hospitals(plan, tmp_path):
        (attempt,) = read_ledger(hospital.participant.ledger)
        assert len(attempt.releases()) == rounds


def spoil(name: str, rounds: set[int], change):
    def tamper(request, reply):
        return change(reply) if reply.name == name and request.place.round in rounds else reply

    return tamper


NAN = encode(torch.full((5,), torch.nan))
WRONG = {
    "nan": lambda answer: replace(answer, update=NAN[:4] + answer.update[4:]),
    "short": lambda answer: replace(answer, update=answer.update[:-4]),
    "real": lambda answer: replace(answer, update=answer.update[: len(answer.update) // 2]),
    "long": lambda answer: replace(answer, update=answer.update + b"\0\0\0\0"),
    "refused": lambda answer: Refusal(answer.name, answer.place, Reason.FAILED),
    "lost": lambda _: None,
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_waiting_a_wrong_answer_ends_the_run_and_a_right_one_resumes_it(wrong, tmp_path):
    plan = make_plan()
    with pytest.raises(UserError, match=r"Round 2 .* ended the run: .*node-02"):
        coordinator(plan, DirectLine(hospitals(plan, tmp_path), spoil("node-02", {1}, wrong)), tmp_path).run()
    coordinator(plan, DirectLine(hospitals(plan, tmp_path)), tmp_path).run()
    assert len(last_attempt(tmp_path).releases()) == 3 * plan.training.rounds


GO_ON = replace(QUICK, least_nodes=2)


def test_a_round_needs_no_more_nodes_than_the_plan_has():
    assert (QUICK.least_of(3), GO_ON.least_of(3), GO_ON.least_of(2)) == (3, 2, 2)
    with pytest.raises(UserError, match="Expected least_nodes of at most 1, the number of nodes, found 2"):
        GO_ON.least_of(1)


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_continuing_a_wrong_answer_is_left_out_and_accounted(wrong, tmp_path):
    plan = make_plan()
    line = DirectLine(hospitals(plan, tmp_path), spoil("node-02", {1}, wrong))
    coordinator(plan, line, tmp_path, GO_ON).run()
    found = histories(last_attempt(tmp_path).releases())
    # Every node is seen to have released in every round; the round that one was left out of shields nobody.
    for name, history in found.items():
        assert history.rounds == plan.training.rounds
        assert history.unshielded == (2 if name == "node-02" else 1)
        own = read_ledger(tmp_path / name / "ledgers" / f"{plan.label}.jsonl")[-1]
        assert history.releases >= len(own.releases())


@pytest.mark.parametrize("policy", [QUICK, GO_ON], ids=["wait", "go on"])
def test_a_node_that_dies_at_every_computation_has_failed_after_a_few(policy, tmp_path):
    """Its process ends without an answer, and a service manager starts it again."""
    plan = make_plan()

    def die(request, reply):
        if (reply.name, request.place.round) != ("node-02", 1) or isinstance(reply, Refusal):
            return reply
        write_json(line.hospitals["node-02"].participant.at_work, asdict(request.place))
        return None

    line = DirectLine(hospitals(plan, tmp_path), die)
    run = coordinator(plan, line, tmp_path, replace(policy, round_seconds=60, give_up_seconds=60))
    if policy == QUICK:
        with pytest.raises(UserError, match=r"Round 2 .*; node-02 failed 3 times \(the node's process ended"):
            run.run()
    else:
        run.run()
    asked = [request.place.round for name, request in line.requests if name == "node-02"]
    assert asked.count(1) == 2 * policy.tries  # the next process says once what happened to the one before


def test_a_broken_connection_is_no_failure(tmp_path):
    plan, lost = make_plan(), iter(range(10))

    def lose(request, reply):
        return None if (reply.name, request.place.round) == ("node-02", 1) and next(lost, None) is not None else reply

    line = DirectLine(hospitals(plan, tmp_path), lose)
    coordinator(plan, line, tmp_path, replace(QUICK, round_seconds=60, give_up_seconds=60)).run()


def test_the_mean_is_over_those_present(tmp_path):
    plan = make_plan(rounds=1)
    three = hospitals(plan, tmp_path)
    sent = {}

    def remember(_, reply):
        sent[reply.name] = reply.update
        return None if reply.name == "node-02" else reply

    run = coordinator(plan, DirectLine(three, remember), tmp_path, GO_ON)
    run.run()
    present = [torch.from_numpy(np.frombuffer(sent[name], "<f4").copy()) for name in ("node-01", "node-03")]
    torch.testing.assert_close(run.receiver.weights.grad, torch.stack(present).mean(dim=0))


def test_a_round_with_a_node_missing_is_saved_at_once_and_never_asked_again(tmp_path):
    plan = make_plan()
    how = replace(OFTEN, checkpoint_seconds=1e9)
    first = spoil("node-02", {0}, WRONG["lost"])

    def until_round_1(request, reply):
        return first(request, reply) if request.place.round < 1 else None

    with pytest.raises(UserError, match="checkpoint after round 1 remains"):
        coordinator(plan, DirectLine(hospitals(plan, tmp_path), until_round_1), tmp_path, GO_ON, how).run()
    line = DirectLine(hospitals(plan, tmp_path))
    coordinator(plan, line, tmp_path, GO_ON, how).run()
    assert {request.place.round for _, request in line.requests} == {1, 2, 3}


def test_a_node_that_is_away_for_long_is_not_waited_for_again_and_may_come_back(tmp_path):
    plan = make_plan(rounds=6)
    line = DirectLine(hospitals(plan, tmp_path))
    line.away = {"node-03"}

    def come_back(request, reply):
        if request.place.round == 3:
            line.away = set()
        return reply

    line.tamper = come_back
    coordinator(plan, line, tmp_path, replace(GO_ON, round_seconds=0.3, give_up_seconds=5)).run()
    asked = {request.place.round for name, request in line.requests if name == "node-03"}
    assert asked >= {5}
    assert not asked & {0, 1, 2}
    found = histories(last_attempt(tmp_path).releases())
    assert found["node-01"].rounds == 6
    assert found["node-01"].unshielded == 6 - found["node-03"].rounds


@pytest.mark.parametrize("policy", [QUICK, GO_ON])
def test_nobody_is_asked_for_the_first_round_before_everybody_is_there(policy, tmp_path, monkeypatch):
    plan = make_plan()
    line = DirectLine(hospitals(plan, tmp_path))
    line.away = {"node-03"}
    waited = []

    def sleep(_: float) -> None:
        waited.append(list(line.requests))
        if len(waited) == 5:
            line.away = set()

    monkeypatch.setattr("zetadp.hospitals.coordinator.time.sleep", sleep)
    coordinator(plan, line, tmp_path, replace(policy, give_up_seconds=60, round_seconds=60)).run()
    assert waited[:5] == [[]] * 5
    assert not any(history.unshielded for history in histories(last_attempt(tmp_path).releases()).values())


def test_a_node_that_never_came_is_counted_as_if_it_had(tmp_path):
    plan = make_plan()
    line = DirectLine(hospitals(plan, tmp_path))
    line.away = {"node-03"}
    coordinator(plan, line, tmp_path, GO_ON).run()
    found = histories(last_attempt(tmp_path).releases())
    assert found.keys() == {"node-01", "node-02", "node-03"}
    assert found["node-01"].unshielded == plan.training.rounds
    statement = run_statement(Run("run", found, plan.training.rounds), target_epsilon=8)
    # With a node missing from every round nobody is credited with the noise of others.
    assert statement["audiences"]["reader"]["epsilon"] == pytest.approx(statement["nodes"]["node-01"]["epsilon"])


def test_a_refusal_for_good_ends_the_run_at_once(tmp_path):
    plan = make_plan()
    other = make_plan(sigma=3.0)
    mixed = [*hospitals(plan, tmp_path)[:2], make_hospital(other, 2, tmp_path)]
    with pytest.raises(UserError, match="node-03 refused: the node follows another plan"):
        coordinator(plan, DirectLine(mixed), tmp_path, GO_ON).run()


def forge_lines(change):
    return lambda _, reply: replace(reply, lines=change(list(reply.lines))) if reply.name == "node-01" else reply


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: lines[:-3], "sent an update that its ledger does not hold"),
        (lambda lines: [], "sent an update that its ledger does not hold"),
        (lambda lines: lines[1:], "does not follow from what was seen of it"),
        (
            lambda lines: [line.replace('"noise_multiplier": 1.5', '"noise_multiplier": 9.5') for line in lines],
            "follow",
        ),
    ],
)
def test_an_update_without_its_ledger_is_refused(change, said, tmp_path):
    plan = make_plan()
    line = DirectLine(hospitals(plan, tmp_path), forge_lines(change))
    with pytest.raises(UserError, match=f"node-01 .*{said}|ledger of node-01 .*{said}"):
        coordinator(plan, line, tmp_path).run()


def test_a_checkpoint_of_the_trainer_of_one_process_is_that_of_another_run(tmp_path):
    plan = make_plan()
    server = coordinator(plan, DirectLine(hospitals(plan, tmp_path)), tmp_path)
    with Ledger(server.files.ledger) as ledger:
        ledger.start(DECLARATION)
        saved = Checkpoint(1, "keyed", {}, pd.DataFrame({"round": [1]}), "", secret="of the trainer")
        server.files.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        saved.save(server.files.checkpoint, server.receiver, ledger)
    server.run()
    assert [len(attempt.releases()) for attempt in read_ledger(server.files.ledger)] == [0, 3 * plan.training.rounds]


def test_late_and_doubled_answers_change_nothing(tmp_path):
    plan = make_plan()
    straight = coordinator(plan, DirectLine(hospitals(plan, tmp_path / "a")), tmp_path / "a").run()
    earlier: list[Answer] = []
    line = DirectLine(hospitals(plan, tmp_path / "b"))

    def repeat(_, reply):
        line.replies += [reply, *earlier]  # what is late comes last
        earlier[:] = [*earlier[-4:], reply]

    line.tamper = repeat
    assert torch.equal(flat(coordinator(plan, line, tmp_path / "b").run().model), flat(straight.model))
    assert len(last_attempt(tmp_path / "b").releases()) == 3 * plan.training.rounds


def test_a_node_that_followed_another_plan_all_the_same_is_found_out_by_its_ledger(tmp_path):
    plan, quieter = make_plan(), make_plan(sigma=0.1)
    stray = make_hospital(quieter, 2, tmp_path)
    obedient = stray.reply
    stray.reply = lambda request: obedient(replace(request, plan=quieter.digest))
    with pytest.raises(UserError, match="the ledger of node-03 holds releases of another plan"):
        coordinator(plan, DirectLine([*hospitals(plan, tmp_path)[:2], stray]), tmp_path).run()


def test_an_old_copy_of_all_ledgers_is_found_when_the_next_training_starts(tmp_path, caplog):
    """The next training has another plan and a ledger of its own, so nothing in it depends on the earlier one."""
    first = make_plan(noise="os")
    second = replace(first, run=replace(first.run, seed=1))

    def run(plan, number: int) -> None:
        files = (f"{number}.jsonl", f"{number}.safetensors")
        coordinator(plan, DirectLine(hospitals(plan, tmp_path)), tmp_path, files=files).run()

    state = tmp_path / "node-02/ledgers"
    run(first, 1)
    shutil.copytree(state, tmp_path / "newest")
    lines = (state / f"{first.label}.jsonl").read_text().splitlines(keepends=True)
    (state / f"{first.label}.jsonl").write_text("".join(lines[:-2]))
    (state / "register").unlink()  # an old copy of the folder has an old register, which agrees with it
    with pytest.raises(UserError, match="node-02 refused: the node's ledger lacks lines that the server has seen"):
        run(second, 2)
    assert "an older copy was put back. Restore the newest copy" in caplog.text
    shutil.rmtree(state)
    shutil.copytree(tmp_path / "newest", state)
    run(second, 2)


def test_what_holds_when_a_hospital_leaves_in_the_middle(tmp_path):
    """Its own patients paid for what it released. Against the server nobody else pays more; against others they do."""
    plan = make_plan(noise="os")
    leaver, rounds = "node-03", plan.training.rounds
    line = DirectLine(hospitals(plan, tmp_path))
    line.tamper = lambda request, reply: line.away.add(leaver) or reply if request.place.round == 1 else reply
    coordinator(plan, line, tmp_path, patience=replace(QUICK, least_nodes=1, round_seconds=0.05)).run()
    own = read_ledger(tmp_path / leaver / "ledgers" / f"{plan.label}.jsonl")[-1]
    assert len(own.releases()) == 2
    (run,) = recorded_runs(tmp_path / "server/ledger.jsonl")
    server, reader = (seen_by(run, audience) for audience in ("server", "reader"))
    for node in plan.nodes:
        planned = Counter(plan.mechanisms(node.name))
        assert compose(server[node.name]) == planned  # also for the one who left: to the declared end
    stayed = reader["node-01"]
    alone = sum(count for kind, count in stayed.items() if kind.noise_multiplier == plan.nodes[0].noise_multiplier)
    assert alone == rounds - 2  # in these rounds nobody else's noise is counted on
