"""The front door: one call that trains privately, its folder, its account, and what it refuses."""

from __future__ import annotations

import copy
import enum
import json
import math
import os
import re
import shutil
import signal
import sys
import time
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from commanded import ended, said
from flat_calls import private

import zetadp
from zetadp.account.attempts import read_ledger
from zetadp.accounting import composition
from zetadp.base.epsilon import CONSENT, rounded_up
from zetadp.base.logs import PACE_SECONDS
from zetadp.base.runfolder import RunFolder
from zetadp.base.tensors import load_tensors
from zetadp.base.validation import UserError
from zetadp.own import run as door
from zetadp.own.progress import RoundsShown
from zetadp.own.promises import ledger
from zetadp.own.records import Records
from zetadp.own.run import load
from zetadp.training.outbox import Outbox
from zetadp.training.plan import Plan
from zetadp.training.promise import Noise
from zetadp.training.round import Phase
from zetadp.training.settings import TrainingSettings

PATIENTS, EACH, WIDTH = 40, 3, 6
GENERATOR = torch.Generator().manual_seed(0)
LABELS = torch.randint(3, (PATIENTS * EACH,), generator=GENERATOR)
ITEMS = torch.randn(3, WIDTH, dtype=torch.complex64, generator=GENERATOR)[LABELS]
ITEMS = ITEMS + 0.3 * torch.randn(len(LABELS), WIDTH, dtype=torch.complex64, generator=GENERATOR)
IDS = [f"patient {place // EACH}" for place in range(len(LABELS))]


class Network(torch.nn.Module):
    """Complex scores of three classes, as moduli."""

    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, outputs, dtype=torch.complex64)

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        return self.layer(items).abs()


class Pairs(torch.utils.data.Dataset):
    """Items and real targets, one by one."""

    def __len__(self):
        return len(ITEMS)

    def __getitem__(self, place):
        return ITEMS[place], ITEMS[place, :1].abs()


def records(**changed):
    given = {"items": ITEMS, "labels": LABELS, "patients": IDS} | changed
    return Records(given["items"], given["labels"], patients=given["patients"])


def run(tmp_path, name="run", model=None, data=None, **changed):
    model = Network() if model is None else model
    data = records() if data is None else data
    given = {
        "epsilon": 8,
        "delta": 1e-3,
        "population": PATIENTS,
        "per_round": 20,
        "rounds": 6,
        "items_per_patient": EACH,
    }
    return private(model, data, **{"folder": tmp_path / name} | given | changed)


def weights(finished):
    return [parameter.detach().clone() for parameter in finished.model.parameters()]


def test_what_is_promised_is_what_is_stated_and_the_model_handed_in_stays_as_it_is(tmp_path):
    model = Network()
    before = copy.deepcopy(model.state_dict())
    train, test = records().split(test=10)
    prepared = run(tmp_path, model=model, data=train, population=30)
    assert not prepared.ledger.exists() or not read_ledger(prepared.ledger)
    promised, shown = prepared.promise.epsilon, str(prepared.promise)
    prepared.evaluate(test)
    assert prepared.model.training  # a look changes no mode
    assert str(prepared.train().promise) == shown
    content = prepared.statement
    assert (prepared.statement.guarantee, content["epsilon"], content["delta"]) == ("holds", promised, 1e-3)
    assert promised <= 8
    assert prepared.history.columns.tolist() == ["round", "length"]
    assert prepared.history["round"].tolist() == [1, 2, 3, 4, 5, 6]
    assert prepared.history["length"].between(0.2 * prepared.promise.noise[0], 2 * prepared.promise.noise[0] + 1).all()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not all(torch.equal(mine, value) for mine, value in zip(weights(prepared), before.values(), strict=True))


def test_constants_may_be_numbers_of_numpy(tmp_path):
    numbers = {"population": np.int64(PATIENTS), "rounds": np.int32(6), "items_per_patient": np.int64(EACH)}
    numbers |= {"per_round": np.int64(20), "epsilon": np.float32(8), "delta": np.float64(1e-3), "seed": np.int64(1)}
    plain = {"seed": 1}
    assert run(tmp_path, "one", **numbers).plan.training == run(tmp_path, "other", **plain).plan.training


@pytest.mark.parametrize(
    ("key", "value"),
    [("rounds", 2.5), ("rounds", "3"), ("delta", "1e-5"), ("delta", None), ("sampling_probability", 2)],
)
def test_figures_of_wrong_arguments_are_refused(key, value):
    given = {"sampling_probability": 0.1, "rounds": 3, "delta": 1e-5} | {key: value}
    for figure in (partial(zetadp.noise, epsilon=8), partial(zetadp.epsilon, noise_multiplier=1.0)):
        with pytest.raises(UserError, match=key.replace("_", ".")):
            figure(**given)


LIKE_NO_OTHER = {
    "items of another shape": ({"items": ITEMS[:6, :2]}, "items"),
    "items of another type": ({"items": ITEMS[:6].real}, "items"),
    "labels of another type": ({"labels": LABELS[:6].float()}, "labels"),
    "unknown classes": ({"labels": LABELS[:6] + 7}, "labels"),
}


def test_only_records_like_those_of_the_training_are_evaluated(tmp_path):
    given = {"items": ITEMS[:6], "labels": LABELS[:6], "patients": ["x", "y", "z"] * 2}
    prepared = run(tmp_path)
    assert "on 3 held-out patients" in str(prepared.evaluate(records(**given)))
    alone = prepared.evaluate(records(**given | {"patients": ["x"] * 6}))  # whose metric has no interval
    assert re.fullmatch(r"Before training: accuracy [\d.]+ on 1 held-out patients, .*", str(alone))
    for changed, named in LIKE_NO_OTHER.values():
        with pytest.raises(UserError, match=named):
            prepared.evaluate(records(**given | changed))


def test_a_finished_run_is_replayed_and_releases_nothing_more(tmp_path, capsys):
    first = run(tmp_path).train()
    content = first.ledger.read_bytes()
    again = run(tmp_path)  # another network with other random weights, as in a notebook's cell that is run again
    assert again.state == "finished"
    again.train()
    assert "nothing more was released" in capsys.readouterr().err
    assert again.ledger.read_bytes() == content
    assert all(torch.equal(mine, other) for mine, other in zip(weights(first), weights(again), strict=True))
    assert again.history.equals(first.history)


def test_training_gets_its_device(tmp_path, monkeypatch):
    made = run(tmp_path)
    made._device = torch.device("meta")  # as a GPU would be where there is one

    def holders(_, given, *arguments, **options):
        raise KeyboardInterrupt(given.inputs.device, given.targets.device)

    monkeypatch.setattr(door, "LocalHolders", holders)
    with pytest.raises(KeyboardInterrupt) as stopped:
        made.train()
    assert stopped.value.args == (made._device, made._device)


def test_a_rule_on_releases_ends_training_early_and_saves_no_epsilon(tmp_path, capsys):
    seen = []

    def stop(history):
        seen.append(history.columns.tolist())
        return len(history) == 4

    whole = run(tmp_path, "whole", account=tmp_path / "another")
    stopped = run(tmp_path, stop=stop).train()
    assert "all 6 declared rounds" in capsys.readouterr().err
    assert set(map(tuple, seen)) == {("round", "length")}
    assert stopped.history["round"].tolist() == [1, 2, 3, 4]
    (attempt,) = read_ledger(stopped.ledger)
    assert len(attempt.events) == 4
    assert stopped.statement["epsilon"] == whole.promise.epsilon
    assert stopped.state == run(tmp_path).state == "finished"


def test_a_rule_sees_the_rounds_up_to_its_own_also_where_some_are_repeated(tmp_path):
    seen = []

    def stop(history):
        seen.append(history["round"].tolist())
        if len(seen) == 5:
            raise KeyError  # the end of a process, after which rounds since the last checkpoint are repeated
        return False

    with pytest.raises(KeyError):
        run(tmp_path, stop=stop).train()
    run(tmp_path, stop=stop).train()
    assert len(seen) > 6
    assert all(rounds == list(range(1, len(rounds) + 1)) for rounds in seen)
    assert [len(rounds) for rounds in seen[5:]] == list(range(len(seen[5]), 6))


CHANGES = {
    "rounds": ({"rounds": 7}, "rounds 6, found 7"),
    "epsilon": ({"epsilon": 4}, "epsilon"),
    "delta": ({"delta": 1e-4}, r"delta 0\.001, found 0\.0001\. You can"),
    "patients drawn": ({"per_round": 10}, r"per_round 20\.0, found 10\.0\. You can"),
    "loss": ({"loss": torch.nn.CrossEntropyLoss(reduction="none")}, "loss or task .*CrossEntropyLoss"),
    "clip": ({"clip": 2.0}, "clip"),
    "items": ({"items_per_patient": 2}, "items_per_patient"),
    "seed": ({"seed": 0}, 'noise "os", found "seeded"'),
    "records": ({"data": records(items=ITEMS + 1)}, "records"),
    "account": ({"account": "elsewhere"}, "account"),
    "network": ({"model": torch.nn.Sequential(Network())}, "optimiser|model"),
    "classes": ({"model": Network(4)}, "number of classes 3, found 4"),
    "patients": ({"data": records(patients=[*IDS[:-1], IDS[0]])}, "-"),
    "fewer patients": (
        {"data": records().split(test=1)[0], "population": PATIENTS - 1},
        "records as at the start, found others; patients as at the start, found others",
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_another_run_in_the_same_folder_is_refused_by_its_key(tmp_path, what, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the other account is a folder beside the run, not in the repository
    run(tmp_path)
    changed, key = CHANGES[what]
    with pytest.raises(UserError, match=rf"(folder: .*with .*({key}))|(model|records): "):
        run(tmp_path, **changed)


def test_a_run_that_began_goes_on_with_the_same_patients_only(tmp_path):
    """Another id is another patient, whom the account would not know."""
    run(tmp_path)
    run(tmp_path, data=records(patients=[f" {one.upper()}" for one in IDS]))  # only written in another way
    for ids in ([*IDS[:-EACH], *EACH * ["x"]], [*IDS[:-1], IDS[0]]):
        with pytest.raises(UserError, match=r"records: .* found other patients: .*same patients"):
            run(tmp_path, data=records(patients=ids))


def test_a_name_that_the_account_knows_is_refused_with_what_differs(tmp_path):
    account = tmp_path / "ledgers"
    first = run(tmp_path / "a", account=account).train()
    with pytest.raises(UserError, match=r"^folder: .*training\.rounds \(then 6, now 7\)\. Give this run a folder"):
        run(tmp_path / "b", account=account, rounds=7)
    with pytest.raises(
        UserError, match=r"^folder: .*the same settings\. You can do this at no privacy cost: restore its folder"
    ):
        run(tmp_path / "b", account=account)
    assert not (tmp_path / "b").exists()
    assert len(read_ledger(first.ledger)) == 1


def test_another_network_in_the_same_folder_is_named_by_its_layers(tmp_path):
    run(tmp_path)
    with pytest.raises(UserError, match=r"(?s)model: Expected the network.*0\.layer\.weight"):
        run(tmp_path, model=torch.nn.Sequential(Network()))


def test_an_evaluation_says_whether_the_network_was_trained(tmp_path):
    kept, test = records().split(test=10)
    new = run(tmp_path, data=kept, population=30)
    assert str(new.evaluate(test)).startswith("Before training: accuracy")
    assert str(new.train().evaluate(test)).startswith("accuracy")


def test_runs_on_the_same_patients_count_together_whatever_the_folder(tmp_path):
    first = run(tmp_path, "first").train()
    second = run(tmp_path, "second")
    assert first.promise.together is None
    assert second.promise.runs_before == 1
    assert second.promise.epsilon < second.promise.together < 2 * second.promise.epsilon
    assert "seeded" not in str(second.promise)
    run(tmp_path, "simulation", seed=1).train()
    assert "1 of these 3 runs used seeded noise, which protects nobody" in str(second.promise)
    others = records(patients=[f"other {place // EACH}" for place in range(len(LABELS))])
    assert run(tmp_path, "others", data=others).promise.together is None
    assert "patient" not in (second.account / "register").read_text()  # whose lists of patients hold no name
    first.ledger.unlink()
    with pytest.raises(UserError, match=r"first\.jsonl"):
        second.train()


class Ids(enum.StrEnum):
    """Ids of an enumeration, which others than StrEnum would print with its name."""

    __str__ = enum.Enum.__str__
    A, B = "p01", "p02"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["001", "002"], [1, 2]),
        ([1, 2], ["001", "002"]),
        (["001", "002"], ["1.0", "2.0"]),
        (["001", "002"], ["sub-001", "sub-002"]),
        (["p-1", "p-2"], ["p\u20101", "P\u20112"]),
        (["p1", "p2"], ["p1.00", "p2.00"]),
        ([*Ids], ["p1", "p2"]),
    ],
    ids=repr,
)
def test_ids_that_a_program_may_have_changed_are_not_taken_for_new_people(tmp_path, before, after):
    """The second promise would say nothing of what the first run cost the same people."""

    def prepared(name, ids):
        data = Records(ITEMS[: 2 * EACH], LABELS[: 2 * EACH], patients=[one for one in ids for _ in range(EACH)])
        return run(tmp_path, name, data=data, population=2, per_round=2, rounds=1)

    prepared("mistaken", after)  # what never began is no obstacle
    prepared("first", before).train()
    with pytest.raises(UserError, match="the same people, write their ids as in the earlier run"):
        prepared("second", after)
    assert not (tmp_path / "second").exists()
    assert prepared("second", before).promise.runs_before == 1
    assert prepared("others", ["b-1", "b-2"]).promise.runs_before == 0
    # Two ids in one run are two persons, whatever they look like.
    assert prepared("some", [before[0], "another"]).promise.runs_before == 1


@pytest.mark.parametrize("seed", [None, 3])
def test_an_interruption_waits_until_its_round_is_stored_and_costs_nothing(tmp_path, monkeypatch, capsys, seed):
    keep, calls = Outbox.keep, []

    def interrupted(*given):
        calls.append(given)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)  # between the record of a release and its storage
        keep(*given)

    with monkeypatch.context() as patch:
        patch.setattr(Outbox, "keep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, seed=seed).train()
    again = run(tmp_path, seed=seed)
    assert (again.state, again.history["round"].tolist()) == ("interrupted", [1, 2, 3])
    assert "stopped after round 3 of 6; the same call continues" in capsys.readouterr().err
    again.train()
    assert "not released again" in capsys.readouterr().err
    assert again.history["round"].tolist() == [1, 2, 3, 4, 5, 6]
    (attempt,) = read_ledger(again.ledger)
    assert sorted(event.round for event in attempt.events) == list(range(6))
    assert again.statement["epsilon"] == again.promise.epsilon
    assert again.statement.guarantee == ("holds" if seed is None else "simulated")


def test_a_second_interruption_is_immediate():
    with door.between_rounds() as asked:
        os.kill(os.getpid(), signal.SIGINT)
        assert asked
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_lost_checkpoint_is_not_paid_for_without_a_word(tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(door.PrivateRun, "_after", stop)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path).train()
    with pytest.raises(UserError, match="does not continue"):
        run(tmp_path, most_epsilon=0.1).train()
    (tmp_path / "run/checkpoint").unlink()
    with pytest.raises(UserError, match="permit"):
        run(tmp_path).train()
    assert len(read_ledger(run(tmp_path).ledger)) == 1


def test_a_limit_is_asked_before_anything_is_released(tmp_path):
    run(tmp_path, "first").train()
    second = run(tmp_path, "second", most_epsilon=10)
    assert "exceeds the limit most_epsilon, 10," in str(second.promise)
    with pytest.raises(UserError, match="10"):
        second.train()
    assert not any(attempt.events for attempt in read_ledger(second.ledger))
    second = run(tmp_path, "second", most_epsilon=17)
    assert "exceeds" not in str(second.promise)
    second.train()


@pytest.mark.parametrize(("first", "promise"), [(25, "The promise is epsilon 25"), (None, "is not a promise")])
def test_a_limit_is_a_promise_if_it_was_set_before_the_first_run(tmp_path, capsys, first, promise):
    """A total that is printed after results were seen is exceeded by whoever stops when they were bad."""
    run(tmp_path, "first", most_epsilon=first).train()
    second = run(tmp_path, "second", most_epsilon=25)
    assert promise in str(second.promise)
    second.train()
    assert promise in str(ledger(second.account))
    assert promise in said(capsys, "budget", second.folder)


def test_rounds_that_a_restored_folder_repeats_are_not_taken_as_declared(tmp_path):
    """Somebody who does not like a model puts back an older folder, as often as wanted."""
    first = run(tmp_path, stop=lambda history: len(history) == 2 and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        first.train()
    shutil.copytree(first.folder, tmp_path / "older")
    declared = str(run(tmp_path).train().statement)
    assert "is not a promise" not in declared
    shutil.rmtree(first.folder)
    (tmp_path / "older").rename(first.folder)
    again = run(tmp_path).train()
    exposure = composition.compose(read_ledger(again.ledger)[0].events)
    assert exposure.total() > 6
    assert again.statement["epsilon"] == composition.epsilon_any_time(exposure, 1e-3)
    assert again.statement["spent"] == composition.epsilon_rdp(exposure, 1e-3)
    assert "is not a promise" in str(again.statement)


@pytest.mark.parametrize("changed", [{"seed": 1}, {"without_noise": CONSENT}])
def test_no_noise_needs_a_word(tmp_path, changed):
    with pytest.raises(UserError, match="epsilon: "):
        run(tmp_path, epsilon=math.inf)
    trained = run(tmp_path, epsilon=math.inf, **changed).train()
    assert trained.statement.guarantee == "none"
    assert "No guarantee" in str(trained.promise)


class Dropping(Network):
    """A network with dropout."""

    def forward(self, items):
        return self.drop(super().forward(items))

    def __init__(self):
        super().__init__()
        self.drop = torch.nn.Dropout(0.5)


def test_dropout_draws_by_unit_repeats_with_a_seed_and_is_off_in_evaluation(tmp_path):
    train, test = records().split(test=10)
    model = Dropping()
    plain = copy.deepcopy(model)
    plain.drop.p = 0.0
    common = {"data": train, "population": 30, "epsilon": math.inf, "seed": 1, "rounds": 2}
    one, two, without = (
        run(tmp_path / place, model=each, **common).train()
        for place, each in (("one", model), ("two", model), ("without", plain))
    )
    first, again, other = (weights(each) for each in (one, two, without))
    assert all(torch.equal(mine, same) for mine, same in zip(first, again, strict=True))
    assert not all(torch.equal(mine, same) for mine, same in zip(first, other, strict=True))
    assert one.promise.seeded
    # A seed of the noise makes nobody's patients simulated.
    assert not one.plan.simulated
    assert not one.plan.protects_people
    assert one.evaluate(test).value == one.evaluate(test).value
    assert run(tmp_path, "noisy", model=model).train().statement.guarantee == "holds"


def test_frozen_weights_and_batch_normalisation_in_evaluation_mode_stay_as_they_are(tmp_path):
    model = torch.nn.Sequential(Network(4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    with pytest.raises(UserError, match=r"'1\.running_mean'.*eval\(\)"):
        run(tmp_path, "refused", model=model).train()
    model[1].eval()
    model[0].requires_grad_(requires_grad=False)
    before = copy.deepcopy(model)
    trained = run(tmp_path, model=model).train()
    for frozen in ("1.running_mean", "0.layer.weight", "0.layer.bias"):
        assert torch.equal(trained.model.state_dict()[frozen], before.state_dict()[frozen])
    assert not torch.equal(trained.model[1].weight, model[1].weight)


class Halved:
    """A task of the user's own: half the cross-entropy, and the share of losses above a half."""

    metric = "large_losses"

    def losses(self, outputs, targets):
        return 0.5 * torch.nn.functional.cross_entropy(outputs, targets, reduction="none")

    def scores(self, outputs, targets):
        return self.losses(outputs, targets)

    def measure(self, outputs, targets):
        return {"loss": self.losses(outputs, targets).cpu().numpy()}

    def summarise(self, predictions):
        large = float((predictions["loss"] > 0.5).mean())
        return {"metric": self.metric, "patients": predictions["patient"].nunique(), self.metric: large}


LOSSES = {
    "weighted classes": {"loss": torch.nn.CrossEntropyLoss(torch.tensor([1.0, 2, 3]), reduction="none")},
    "complex targets": {
        "loss": lambda outputs, targets: (outputs - targets).abs().square(),
        "data": records(labels=ITEMS[:, :3]),
    },
    "a task": {"task": Halved()},
    "regression on a dataset that is read item by item": {
        "loss": torch.nn.MSELoss(reduction="none"),
        "data": records(items=Pairs(), labels=None),
        "model": Network(1),
    },
}


@pytest.mark.parametrize("what", LOSSES)
def test_a_loss_or_task_of_ones_own_is_what_is_trained_and_measured(tmp_path, what):
    train, test = LOSSES[what].get("data", records()).split(test=10)
    given = {"epsilon": math.inf, "seed": 0, "rounds": 25, "population": 30, "per_round": 30}
    prepared = run(tmp_path, **given | LOSSES[what] | {"data": train})
    before = prepared.evaluate(test)
    assert prepared.train().evaluate(test).value < before.value
    assert str(before).startswith(f"Before training: {'large_losses' if what == 'a task' else 'mean_loss'}")


def of_hospitals(share=20):
    return {
        "north": Records(ITEMS[: share * EACH], LABELS[: share * EACH], patients=IDS[: share * EACH]),
        "south": Records(ITEMS[share * EACH :], LABELS[share * EACH :], patients=IDS[share * EACH :]),
    }


def within_half(outputs, targets):
    """Return whether each output is close to its target."""
    return ((outputs - targets).abs() < 0.5).squeeze(1)


def test_a_metric_of_ones_own_has_its_mean_and_interval(tmp_path):
    train, test = records(items=Pairs(), labels=None).split(test=10)
    given = {"epsilon": math.inf, "seed": 0, "rounds": 1, "population": 30, "per_round": 30}
    prepared = run(tmp_path, data=train, model=Network(1), loss=torch.nn.MSELoss(reduction="none"), **given)
    found = prepared.evaluate(test, metric=within_half)
    rows = [within_half(prepared.model(test.inputs[[place]]), test.targets[[place]]).item() for place in range(30)]
    assert found.value == pytest.approx(sum(rows) / 30)
    assert re.fullmatch(
        r"Before training: within_half [\d.]+ \([\d.]+ to [\d.]+\) on 10 held-out patients, .*", str(found)
    )
    assert found.content["mean_loss"] == prepared.evaluate(test).value
    assert prepared.evaluate(test, metric=torch.nn.MSELoss(reduction="none").forward).content["metric"] == "forward"


WRONG_METRICS = {
    "a mean": lambda outputs, _: outputs.mean(),
    "a class": torch.nn.MSELoss,
    "a failure": lambda outputs, targets: outputs @ targets,
    "no number": lambda outputs, _: outputs[:, 0] / 0 * 0,
}


@pytest.mark.parametrize("what", WRONG_METRICS)
def test_test_patients_and_metric_are_tried_before_anything_is_released(tmp_path, what):
    train, test = records().split(test=10)
    prepared = run(tmp_path, data=train, population=30)
    with pytest.raises(UserError, match=r"^metric: Expected a function"):
        prepared.train(test, metric=WRONG_METRICS[what])
    with pytest.raises(UserError, match=r"^evaluate: .*in both"):
        prepared.train(train)
    assert (prepared.state, prepared.ledger.exists()) == ("new", False)
    assert prepared.train(test).state == "finished"


@pytest.mark.parametrize(
    ("patients", "expected"), [(4, "Expect nothing from this training"), (40, "Expect a small gain"), (4000, "")]
)
def test_a_promise_says_what_its_noise_can_be_expected_to_leave(patients, expected):
    outlook = Noise.of_head(patients).outlook
    assert outlook.startswith(expected)
    assert bool(outlook) == bool(expected)


def test_four_patients_are_told_before_they_spend(tmp_path, capsys):
    data = records(items=ITEMS[:12], labels=LABELS[:12], patients=IDS[:12])
    prepared = run(tmp_path, data=data, population=4, per_round=4, epsilon=1)
    assert "Expect nothing from this training: even over all rounds, the noise is " in str(prepared.promise)
    prepared.train()
    said = capsys.readouterr().err
    assert said.index("Expect nothing") < said.index("round 1 of 6")
    assert "Expect" not in str(run(tmp_path, "clipped", data=data, population=4, per_round=4, epsilon=math.inf, seed=0))


def test_hospitals_each_add_noise_and_draw_at_one_rate(tmp_path):
    sizes = {"north": 10, "south": 30}
    trained = run(tmp_path, data=of_hospitals(10), population=sizes, epsilon=0.2).train()
    # There is little but noise in a message, and the promise says how much.
    assert trained.history["length"].mean() == pytest.approx(trained.promise.noise[0], rel=0.3)
    nodes = {node.name: node for node in trained.plan.nodes}
    assert {name: node.expected / node.population for name, node in nodes.items()} == {"north": 0.5, "south": 0.5}
    assert set(trained.statement["nodes"]) == set(sizes)
    trained.plan.write(str(tmp_path / "plan.json"))
    assert Plan.read(tmp_path / "plan.json") == trained.plan


def test_one_id_at_two_hospitals_is_refused(tmp_path):
    both = of_hospitals()
    both["south"] = Records(ITEMS[:3], LABELS[:3], patients=IDS[:3])
    with pytest.raises(UserError, match=r"records: .* at north and .* at south.*a run of its own"):
        run(tmp_path, data=both, population={"north": 20, "south": 1})
    for name, size in (("north", 20), ("south", 1)):
        own = run(tmp_path, name, data=both[name], population=size, per_round=size)
        assert own.promise.runs_before == (name == "south")  # what the message says: their account adds up
        own.train()


def test_a_saved_model_is_loaded_and_held_out_patients_are_others(tmp_path):
    train, test = records().split(test=10)
    trained = run(tmp_path, data=train, population=30, per_round=30, epsilon=math.inf, seed=0, rounds=30).train()
    with pytest.raises(UserError, match=r"save: .*sealed"):
        trained.save(trained.folder / "model.safetensors")
    trained.save(tmp_path / "model.safetensors")
    assert torch.equal(load(tmp_path / "model.safetensors", Network())(ITEMS), trained.model(ITEMS))
    for wrong in (Network(2), "network"):
        with pytest.raises(UserError, match=r"^model: "):
            load(tmp_path / "model.safetensors", wrong)
    with pytest.raises(UserError, match="found the folder"):
        load(trained.folder, Network())
    beside = load_tensors(tmp_path / "model.safetensors")[1]
    assert (beside["plan"], beside["statement"]) == (trained.plan.to_json(), trained.statement.text)
    found = trained.evaluate(test)
    assert found.value > 0.6
    assert "no guarantee" in str(found)
    with pytest.raises(UserError, match="evaluate: "):
        trained.evaluate(train)
    with pytest.raises(UserError, match=r"evaluate: .*in both"):
        trained.evaluate(records(patients=[one.upper() for one in IDS]))
    for of_path in (partial(load, model=Network()), ledger):
        with pytest.raises(UserError, match=r"^path: "):
            of_path(None)
    for delta in (0, 1e-30, 0.1, "small"):
        with pytest.raises(UserError, match=r"^delta: Expected from 1e-10 to 0.001"):
            ledger(tmp_path / "run", delta)


class Complex(Network):
    """A network that forgot the modulus."""

    def forward(self, items):
        return self.layer(items)


class Recurrent(torch.nn.Module):
    """A network of which torch.vmap cannot map single patients."""

    def __init__(self):
        super().__init__()
        self.cell, self.last = torch.nn.GRU(WIDTH, 4, batch_first=True), torch.nn.Linear(4, 3)

    def forward(self, items):
        return self.last(self.cell(items.abs()[:, None])[0][:, -1])


class Embedding(torch.nn.Module):
    """A network of tokens, which items of the library are not."""

    def __init__(self, index):
        super().__init__()
        self.rows, self.last, self.index = torch.nn.Embedding(9, 4), torch.nn.Linear(4, 3), index

    def forward(self, items):
        return self.last(self.rows(self.index(items)).mean(dim=1))


def tokens():
    return Records(torch.randint(9, (120, 5)), torch.arange(120) % 3, patients=torch.arange(120) // 3)


UNMAPPED = {
    "recurrent": (Recurrent, records),
    "embedding": (lambda: Embedding(lambda items: items.long().clamp(0, 8)), tokens),
}


class Scaled(torch.nn.Module):
    """A network with a weight beside those of its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.gain = Network(), torch.nn.Parameter(torch.ones(3))

    def forward(self, items):
        return self.gain * self.layer(items)


@pytest.mark.parametrize("seed", [None, 0])
def test_weights_beside_those_of_layers_are_trained(tmp_path, seed):
    trained = run(tmp_path, model=Scaled(), seed=seed).train()
    assert (trained.model.gain != 1).all()


@pytest.mark.parametrize("what", UNMAPPED)
def test_a_network_that_cannot_be_mapped_takes_one_patient_after_the_other(tmp_path, what):
    torch.manual_seed(0)
    make, data = UNMAPPED[what]
    model, given = make(), data()
    assert run(tmp_path, model=model, data=given).train().state == "finished"
    units, labels = given.inputs[:6].view(3, 2, -1), torch.tensor([[0, 1], [2, 0], [1, 1]])
    rows = torch.cat(Phase.of(model, 2).contribution.of_units(units, labels, factors=False), dim=1)
    for own, classes, row in zip(units, labels, rows, strict=True):
        loss = torch.nn.functional.cross_entropy(model(own), classes)
        plain = torch.autograd.grad(loss, list(model.parameters()))
        plain = torch.cat([(torch.view_as_real(g) if g.is_complex() else g).flatten() for g in plain])
        torch.testing.assert_close(row, plain)


TOKENS = {"as they are": lambda items: items, "any number": lambda items: items.long()}


@pytest.mark.parametrize("what", TOKENS)
def test_an_embedding_that_cannot_take_any_item_is_refused_with_a_remedy(tmp_path, what):
    with pytest.raises(UserError, match=r"^model: .*items\.long\(\)\.clamp\(0, n - 1\)"):
        run(tmp_path, model=Embedding(TOKENS[what]), data=tokens())


class Tied(torch.nn.Module):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.one, self.two = Network(WIDTH), Network(WIDTH)
        self.two.layer.weight = self.one.layer.weight

    def forward(self, items):
        return self.two(self.one(items) + 0j)


def spoiled() -> Network:
    model = Network()
    model.layer.bias.data[0] = math.nan
    return model


def scripted() -> torch.nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(Network())


def squares(outputs, targets):
    return (outputs - targets).square()


WRONG = {
    "complex scores": ({"model": Complex()}, "model"),
    "wrong width": ({"model": torch.nn.Linear(5, 3, dtype=torch.complex64)}, "model"),
    "lazy": ({"model": torch.nn.LazyLinear(3)}, "model"),
    "scripted": ({"model": scripted()}, "model"),
    "double weights": ({"model": torch.nn.Linear(WIDTH, 3, dtype=torch.complex128)}, "model"),
    "a file for a folder": ({"folder": __file__}, "folder"),
    "a device for a folder": ({"folder": "/dev/null"}, "folder"),
    "a folder in a file": ({"folder": f"{__file__}/run"}, "folder"),
    "an account in a file": ({"account": f"{__file__}/account"}, "account"),
    "a folder's name that is too long": ({"folder": "x" * 300}, "folder"),
    "a zero byte in a path": ({"folder": "a\0b"}, "folder"),
    "no weights": ({"model": torch.nn.Flatten()}, "model"),
    "without numbers": ({"model": Network().to("meta")}, "model"),
    "a device without numbers": ({"device": "meta"}, "device"),
    "frozen": ({"model": Network().requires_grad_(requires_grad=False)}, "model"),
    "tied": ({"model": Tied()}, "model"),
    "no module": ({"model": Network().forward}, "model"),
    "class out of range": ({"data": records(labels=LABELS + 1)}, "labels"),
    "float labels": ({"data": records(labels=LABELS.float())}, "labels"),
    "reduced loss": ({"loss": torch.nn.CrossEntropyLoss()}, "loss"),
    "population": ({"population": 41}, "population"),
    "population of a dict": ({"population": {"north": 40}}, "population"),
    "one number for two hospitals": ({"data": of_hospitals()}, "population"),
    "an optimiser's class": ({"optimiser": torch.optim.SGD}, "optimiser"),
    "batch normalisation": ({"model": torch.nn.Sequential(Network(4), torch.nn.BatchNorm1d(4))}, "model"),
    "labels that a loss would spread": (
        {"model": Network(1), "data": records(labels=ITEMS[:, 0].abs()), "loss": squares},
        "labels",
    ),
    "a loss of the batch": ({"loss": lambda outputs, _: outputs[:, 0] / outputs.max()}, "loss"),
    "nameless hospitals": ({"data": {1: records()}}, "records"),
    "delta": ({"delta": 0.1}, "delta"),
    "per_round": ({"per_round": 41}, "per_round"),
    "per_round of nearly nobody": ({"per_round": 1e-12}, "per_round"),
    "text for a number": ({"epsilon": "8"}, "epsilon"),
    "half a patient": ({"population": 40.5}, "population"),
    "no rounds": ({"rounds": 0}, "rounds"),
    "a loss's name": ({"loss": "mse"}, "loss"),
    "classes one by one": ({"data": records(labels=torch.nn.functional.one_hot(LABELS))}, "labels"),
    "no clip": ({"clip": 0}, "clip"),
    "limit": ({"most_epsilon": "a"}, "most_epsilon"),
    "rule": ({"stop": 3}, "stop"),
    "device": ({"device": "gpu"}, "device"),
    "epsilon": ({"epsilon": 0}, "epsilon"),
    "items_per_patient": ({"items_per_patient": EACH + 1}, "items_per_patient"),
    "a task's name": ({"task": "mine"}, "task"),
    "a loss's class": ({"loss": torch.nn.MSELoss}, "loss"),
    "a loss of nothing": ({"loss": lambda outputs, targets: None}, "loss"),
    "a loss of NaN": ({"loss": lambda outputs, targets: outputs[:, 0] * math.nan}, "loss"),
    "an account that is none": ({"account": 3}, "account"),
    "weights of NaN": ({"model": spoiled()}, "model"),
    "no records": ({"data": 3}, "records"),
    "lone scheduler": ({"scheduler": object()}, "scheduler"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_fit_is_refused_by_name_and_nothing_is_written(tmp_path, what):
    changed, name = WRONG[what]
    with pytest.raises(UserError, match=rf"^{name}: (.|\n)*Expected .*found"):
        run(tmp_path, **changed)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("columns", [1, 3])
def test_the_remedy_for_labels_of_two_axes_gives_the_classes(tmp_path, columns):
    labels = LABELS[:, None] if columns == 1 else torch.nn.functional.one_hot(LABELS)
    with pytest.raises(UserError) as refused:
        run(tmp_path, data=records(labels=labels))
    remedy = re.search(r"Use labels\.(\w+)\(1\)", str(refused.value))[1]
    assert getattr(labels, remedy)(1).equal(LABELS)


@pytest.mark.parametrize("lost", ["account", "ledger"])
def test_a_finished_run_says_what_its_account_lacks(tmp_path, lost):
    first = run(tmp_path).train()
    shutil.rmtree(first.account) if lost == "account" else first.ledger.unlink()
    with pytest.raises(
        UserError, match=r"account: .*found none.*backup" if lost == "account" else r"run\.jsonl is miss"
    ):
        assert run(tmp_path).statement


def test_a_new_run_misses_the_account_that_its_neighbours_name(tmp_path):
    """Their sealed copies, or checkpoints, show that something was released that no ledger has any more."""
    first = run(tmp_path, "first", rounds=1).train()
    shutil.copytree(first.account, tmp_path / "backup")
    shutil.rmtree(first.account)
    with pytest.raises(UserError, match=r"account: .*lacks lines of .*first/ledger\.jsonl.*Restore"):
        run(tmp_path, "second")
    assert not (tmp_path / "second").exists()
    assert not first.account.exists()
    (tmp_path / "backup").rename(first.account)
    assert run(tmp_path, "second").promise.runs_before == 1


def test_a_run_takes_no_folder_of_an_account_or_with_a_foreign_model(tmp_path):
    first = run(tmp_path).train()
    with pytest.raises(UserError, match=r"^folder: .*ledgers"):
        run(tmp_path, "ledgers", account=tmp_path / "others")
    with pytest.raises(UserError, match=r"^folder: .*ledgers"):
        run(tmp_path, "another", account=first.folder)
    with pytest.raises(UserError, match=r"^folder: .*same"):
        run(tmp_path, "same", account=tmp_path / "same")
    (tmp_path / "new").mkdir()
    shutil.copy(first.folder / "model.safetensors", tmp_path / "new")
    with pytest.raises(UserError, match=r"^folder: .*model\.safetensors"):
        run(tmp_path, "new")


def test_commands_take_the_folder_of_a_run_and_read_delta_and_unit_from_it(tmp_path, capsys):
    run(tmp_path, "first", epsilon=2, delta=1e-4).train()
    second = run(tmp_path, epsilon=2, delta=1e-4).train()
    together = rounded_up(second.promise.together)
    assert "wrong" not in said(capsys, "verify", second.folder)
    assert f"epsilon {together} at delta 0.0001, in 2 run" in said(capsys, "budget", second.folder)
    content = json.loads(said(capsys, "ledger", second.folder, "--json"))
    assert content == json.loads(json.dumps(ledger(second.folder)))
    assert (content["delta"], content["unit"], content["guarantee"]) == (1e-4, "patient", "holds")
    said(capsys, "risk", second.folder)
    page = (second.folder / "risk.html").read_text()
    assert "0.0001" in page
    assert "patient" in page


def test_verification_finds_what_was_changed_in_a_run_or_is_missing_in_its_account(tmp_path, capsys):
    first, second = (run(tmp_path, name).train() for name in ("first", "second"))
    (first.folder / "privacy.txt").write_text("epsilon 0")
    assert ended(capsys, "verify", first.folder)[0] == 1
    first.ledger.unlink()
    code, out, _ = ended(capsys, "verify", second.folder)
    assert (code, "first.jsonl" in out) == (1, True)


def test_a_run_that_ended_between_model_and_seal_is_sealed_by_the_next_call(tmp_path, capsys, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_seal", killed)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path).train()
    again = run(tmp_path).train()
    assert len(read_ledger(again.ledger)) == 1
    assert "wrong" not in said(capsys, "verify", again.folder)


def rounds_shown(text: str) -> list[str]:
    """Return the lines that say how many rounds are done."""
    return [line for line in re.split("[\r\n]", text) if ": round " in line]


def test_progress_in_a_file_is_a_few_plain_lines_without_times(tmp_path, capsys):
    run(tmp_path, rounds=60).train()
    said = capsys.readouterr().err
    assert "\r" not in said
    lines = [line.partition(": ")[2] for line in rounds_shown(said)]
    assert lines == [f"round {number} of 60" for number in (1, 12, 24, 36, 48, 60)]


def test_progress_of_a_simulation_has_a_pace_and_the_time_left(monkeypatch, capsys):
    clock = iter(np.arange(0, 10_000, 1.5))
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "time", lambda: now)
    shown = RoundsShown("mine", TrainingSettings(rounds=100, images_per_patient=1, noise="seeded"))
    for number in range(1, 101):
        now = float(next(clock))
        shown.report(number, last=number == 100)
    lines = rounds_shown(capsys.readouterr().err)
    assert 150 / PACE_SECONDS <= len(lines) <= 150 / PACE_SECONDS + 2
    assert lines[0] == "mine: round 1 of 100"
    assert lines[1] == "mine: round 15 of 100, about 2 min left"
    assert lines[-1] == "mine: round 100 of 100"


def test_progress_on_a_terminal_overwrites_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    run(tmp_path, rounds=60).train()
    (line,) = [line for line in capsys.readouterr().err.split("\n") if ": round " in line]
    assert line.count("\r") == 20
