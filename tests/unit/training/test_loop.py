from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional
from training_builder import CLASSES, SIZE, TINY, Held, by_record, of_record, records, train_run

import zetadp.training.progress
from zetadp.account.attempts import read_ledger
from zetadp.accounting.threat import Sums
from zetadp.base.epsilon import Target
from zetadp.base.randomness import Purpose, stream
from zetadp.base.runfolder import RunName
from zetadp.base.tensors import Layout
from zetadp.base.validation import UserError
from zetadp.brain import BrainSequences
from zetadp.nn.models import NetworkSettings, build, taper_factors
from zetadp.training.checkpoint import Checkpoint, RunFiles
from zetadp.training.holders import LocalHolders
from zetadp.training.loop import Trained, train
from zetadp.training.plan import NodeConstants, Plan
from zetadp.training.promise import noise_of_plan
from zetadp.training.records import LabelledItems
from zetadp.training.settings import OptimiserSettings, Performance, TrainingSettings

RUN = RunName("complex", "federated", Target(8), 3)
SETTINGS = TrainingSettings(rounds=5, images_per_patient=4, optimiser=OptimiserSettings(0.02))
OFTEN = Performance(evaluate_every=2, checkpoint_seconds=0, chunk=8)
PLANS = [
    Held("node-01", [[0], [1], [2]], 3, expected=1.5, noise_multiplier=0.7),
    Held("node-02", [[3], [4], [5, 6]], 3, expected=1.5, noise_multiplier=0.7),
]
CONSTANTS = tuple(NodeConstants(plan.name, plan.population, plan.expected) for plan in PLANS)
EVERYBODY = [Held("central", [[i] for i in range(6)], 6, expected=6, noise_multiplier=0.0)]


class KilledError(Exception):
    """Stands for a job that is killed."""


@pytest.fixture
def paths(tmp_path):
    return {"ledger_path": tmp_path / "ledgers/run.jsonl", "checkpoint_path": tmp_path / "run.partial"}


def trained(
    paths, run=RUN, network=TINY, settings=SETTINGS, plans=PLANS, data=None, watched=2, how=OFTEN, **more
) -> Trained:
    data = records(7, images_per_class=2) if data is None else data
    validation = records(watched, seed=99) if watched is not None else None
    return train_run(run, network, settings, plans, data, validation, **paths, performance=how, **more)


def finish(paths) -> None:
    RunFiles(paths["ledger_path"], paths["checkpoint_path"]).finish()


def fresh(tmp_path, name: str) -> dict:
    return {"ledger_path": tmp_path / name / "ledger.jsonl", "checkpoint_path": tmp_path / name / "run.partial"}


def weights(result: Trained) -> torch.Tensor:
    return Layout.of(result.model).flatten(dict(result.model.named_parameters())).detach()


def stop_after(*rounds: int):
    def after_round(done: int, _messages: torch.Tensor) -> None:
        if done in rounds:
            raise KilledError

    return after_round


def plain_step(parameters, scores, optimiser, data: LabelledItems, clip: float | None) -> None:
    """Take a step on everybody without zetadp's gradients, clipping, sums, flat vector, noise or server."""
    total = [torch.zeros_like(p) for p in parameters]
    for images in by_record(data):
        loss = functional.cross_entropy(scores(images), of_record(data, 0)[1])
        gradients = torch.autograd.grad(loss, parameters)
        norm = sum(float(g.abs().square().sum()) for g in gradients) ** 0.5
        factor = 1.0 if clip is None else min(1.0, clip / norm)
        total = [t + factor * g for t, g in zip(total, gradients, strict=True)]
    for parameter, summed in zip(parameters, total, strict=True):
        parameter.grad = summed / len(by_record(data))
    optimiser.step()


@pytest.mark.parametrize(("epsilon", "clip"), [("inf", 0.3), ("unclipped", None)])
def test_without_noise_one_node_of_all_patients_is_clipped_gradient_descent(paths, epsilon, clip):
    data = records(6)
    settings = replace(SETTINGS, clip=0.3)
    found = trained(paths, replace(RUN, target=Target.named(epsilon)), settings=settings, plans=EVERYBODY, data=data)
    start, model = (build(TINY, CLASSES, SIZE, stream(RUN.seed, Purpose.WEIGHTS)) for _ in range(2))
    own = settings.optimiser
    optimiser = torch.optim.NAdam(model.parameters(), lr=own.learning_rate)
    for number in range(settings.rounds):
        if number >= own.drop_after * settings.rounds:
            optimiser.param_groups[0]["lr"] = own.learning_rate / own.drop_factor
        plain_step(list(model.parameters()), model, optimiser, data, clip)
    for mine, other, before in zip(found.model.parameters(), model.parameters(), start.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4)
        assert (other - before).abs().max() > 0.02
    (attempt,) = read_ledger(paths["ledger_path"])
    assert {event.clip for event in attempt.events} == {float("inf") if clip is None else clip}
    assert {event.noise_multiplier for event in attempt.events} == {0}


@pytest.mark.parametrize("last", [[3], [1, 2, 3, 4]])
def test_an_interrupted_training_ends_at_the_same_bits_and_counts_every_round_once(tmp_path, paths, last):
    expected = trained(fresh(tmp_path, "straight"))
    for done in last:
        with pytest.raises(KilledError):
            trained(paths, after_round=stop_after(done))
    found = trained(paths)
    assert torch.equal(weights(found), weights(expected))
    columns = ["round", "learning_rate", "validation_accuracy", "validation_loss"]
    assert found.history[columns].equals(expected.history[columns])
    (attempt,) = read_ledger(paths["ledger_path"])
    counted = sorted((event.round, event.node) for event in attempt.releases())
    assert counted == [(number, plan.name) for number in range(SETTINGS.rounds) for plan in PLANS]


@pytest.mark.parametrize("label", [-1, 4])
def test_a_label_that_is_no_class_is_refused_before_the_ledger_is_begun(paths, label):
    data = records(7, images_per_class=2)
    data.targets[3] = label
    with pytest.raises(UserError, match=rf"Expected labels from 0 to 3, .* found {label}\."):
        trained(paths, data=data)
    assert not paths["ledger_path"].exists()


def test_a_ledger_that_lacks_rounds_of_the_checkpoint_is_refused(paths):
    with pytest.raises(KilledError):
        trained(paths, after_round=stop_after(3))
    ledger = paths["ledger_path"]
    lines = ledger.read_text().splitlines(keepends=True)
    last = max(i for i, line in enumerate(lines) if '"kind": "round"' in line)
    ledger.write_text("".join(lines[:last]))
    with pytest.raises(UserError, match="has lost lines at its end"):
        trained(paths)
    ledger.unlink()
    with pytest.raises(UserError, match="is missing"):
        trained(paths)
    # Everything beside it is gone too, and only the checkpoint knows.
    for name in ("register", "secret"):
        ledger.with_name(name).unlink()
    with pytest.raises(UserError, match=r"ledger .* has lost lines: .* after round 3. .*restore the ledger.*Only if"):
        trained(paths)
    paths["checkpoint_path"].unlink()
    trained(paths)


def test_a_checkpoint_is_not_continued_in_the_attempt_of_other_settings(paths):
    """Or its rounds, released under little noise, would be stated as those of the attempt under much."""
    little = [replace(plan, noise_multiplier=0.1) for plan in PLANS]
    with pytest.raises(KilledError):
        trained(paths, plans=little, after_round=stop_after(3))
    kept = paths["checkpoint_path"].read_bytes()
    with pytest.raises(KilledError):
        trained(paths, after_round=stop_after(4))
    paths["checkpoint_path"].write_bytes(kept)
    trained(paths, plans=little)
    noise = [{event.noise_multiplier for event in attempt.events} for attempt in read_ledger(paths["ledger_path"])]
    assert noise == [{0.1}, {0.7}, {0.1}]
    assert len(read_ledger(paths["ledger_path"])[-1].events) == SETTINGS.rounds * len(PLANS)


def test_seeded_draws_depend_on_no_bit_of_the_data(tmp_path):
    """Last bits differ between processors, and with draws that followed them every figure would."""
    masks = []
    for name, data in (("a", records(7, images_per_class=2)), ("b", records(7, images_per_class=2, seed=5))):
        data.inputs[:] *= 0.0 if name == "b" else 1.0
        noise = [replace(plan, noise_multiplier=1e4) for plan in PLANS]
        trained(fresh(tmp_path, name), plans=noise, data=data, after_round=lambda _, sent: masks.append(sent))
    half = len(masks) // 2
    for mine, other in zip(masks[:half], masks[half:], strict=True):
        assert np.corrcoef(mine.flatten(), other.flatten())[0, 1] > 0.999


OTHER_SETTINGS = {
    "clip": {"settings": replace(SETTINGS, clip=0.5)},
    "noise": {"plans": [replace(plan, noise_multiplier=0.9) for plan in PLANS]},
    "cohort": {"of_plan": {"cohort": "other"}},
    "starting weights": {"start": build(TINY, CLASSES, SIZE, np.random.default_rng(0)).state_dict()},
    "data": {"data": records(7, images_per_class=2, seed=1)},
    "who is where": {"plans": [replace(plan, patients=plan.patients[::-1]) for plan in PLANS]},
}


@pytest.mark.parametrize("what", OTHER_SETTINGS)
def test_the_checkpoint_of_other_settings_is_not_continued(tmp_path, paths, what):
    with pytest.raises(KilledError):
        trained(paths, after_round=stop_after(3))
    rounds = []
    trained(paths, after_round=lambda done, _: rounds.append(done), **OTHER_SETTINGS[what])
    assert rounds[0] == 1
    attempts = read_ledger(paths["ledger_path"])
    assert [len(attempt.releases()) for attempt in attempts] == [6, 2 * rounds[-1]]


def test_how_one_looks_saves_and_fits_into_memory_does_not_stop_a_resume(paths):
    with pytest.raises(KilledError):
        trained(paths, after_round=stop_after(3))
    rounds, how = [], Performance(evaluate_every=1, checkpoint_seconds=1e6, chunk=4)
    trained(paths, how=how, after_round=lambda done, _: rounds.append(done))
    assert rounds == [4, 5]


def test_training_needs_no_validation_patients_and_they_do_not_change_it(tmp_path, paths):
    with pytest.raises(KilledError):
        trained(paths, watched=0, after_round=stop_after(3))
    unwatched = trained(paths, watched=0)
    assert torch.equal(weights(unwatched), weights(trained(fresh(tmp_path, "watched"))))
    assert unwatched.history["round"].tolist() == [2, 4, 5]
    assert unwatched.history[["validation_accuracy", "validation_loss"]].isna().all(axis=None)


def test_a_node_must_hold_what_it_declares(paths):
    with pytest.raises(UserError, match="Expected 4 training patients at node-01, as declared, found 3"):
        trained(paths, plans=[replace(PLANS[0], population=4), PLANS[1]])
    assert not paths["ledger_path"].exists()


EXACT = replace(SETTINGS, noise="os")


def test_nothing_tells_how_many_patients_were_drawn(paths, caplog, monkeypatch):
    """Times, and counts of bad patients, are functions of who was drawn."""
    data = records(7, images_per_class=2)
    data.inputs[:] = torch.nan
    with caplog.at_level("INFO"):
        found = trained(paths, settings=EXACT, data=data)
    assert found.not_finite is None
    assert found.history["seconds"].isna().all()
    # Lines of the log bear times: there are none but by the clock.
    assert not caplog.messages
    monkeypatch.setattr(zetadp.training.progress, "ROUGH_SECONDS", 0.0)
    caplog.clear()
    with caplog.at_level("INFO"):
        trained(paths, settings=replace(EXACT, rounds=30), data=data)
    shares = [int(line.split("about ")[1].split()[0]) for line in caplog.messages if "about" in line]
    assert len(shares) == 29
    assert set(shares) == set(range(0, 100, 5))


def test_a_checkpoint_holds_no_hash_that_the_data_alone_explain(tmp_path, paths):
    """Who knows all patients but one could confirm that one from a plain hash: the same data look different twice."""
    kept = []
    for name in ("a", "b"):
        there = fresh(tmp_path, name)
        with pytest.raises(KilledError):
            trained(there, after_round=stop_after(2))
        kept.append(Checkpoint.load(there["checkpoint_path"], torch.device("cpu")))
    assert kept[0].fingerprint != kept[1].fingerprint
    assert kept[0].secret != kept[1].secret
    assert all(torch.equal(value, kept[1].state[name]) for name, value in kept[0].state.items())


@pytest.mark.parametrize("settings", [SETTINGS, EXACT], ids=["seeded", "os"])
def test_without_its_secret_a_checkpoint_is_refused_and_not_begun_again(paths, settings):
    with pytest.raises(KilledError):
        trained(paths, settings=settings, after_round=stop_after(2))
    secret = paths["ledger_path"].parent / "secret"
    content = secret.read_text()
    secret.unlink()
    before = paths["checkpoint_path"].read_bytes(), paths["ledger_path"].read_bytes()
    with pytest.raises(UserError, match=r"secret is missing"):
        trained(paths, settings=settings)
    assert (paths["checkpoint_path"].read_bytes(), paths["ledger_path"].read_bytes()) == before
    secret.write_text(content)
    trained(paths, settings=settings)
    (attempt,) = read_ledger(paths["ledger_path"])
    assert len({event.round for event in attempt.events}) == settings.rounds


HEAD = NetworkSettings("head", "features", components=3, start="public")
PLAIN = OptimiserSettings(0.5, drop_after=1, name="sgd", averaged=0.6)


@pytest.mark.parametrize("taper", [0.0, 1.5])
def test_a_head_at_full_participation_is_clipped_descent_from_the_public_weights(paths, taper):
    """And its weights are averaged over the last three rounds."""
    factors = (1 + taper**2 * (1 + torch.arange(3) / 4) ** 3) ** -0.5
    data = records(6, images_per_class=2)
    data = replace(data, inputs=data.inputs[:, :, :1].clone())  # images of one row, as features are
    random = torch.Generator().manual_seed(5)
    weight, bias = (torch.randn(shape, dtype=torch.complex64, generator=random) for shape in ((4, 3), (4,)))
    start = {"affine.weight": weight.clone(), "affine.bias": bias.clone()}
    settings = TrainingSettings(rounds=5, images_per_patient=8, optimiser=PLAIN, clip=0.4)
    run, network = replace(RUN, target=Target(math.inf)), replace(HEAD, taper=taper)
    result = trained(paths, run, network, settings, EVERYBODY, data, None, Performance(chunk=20), start=start)
    parameters, passed = [weight.requires_grad_(), bias.requires_grad_()], []
    optimiser = torch.optim.SGD(parameters, lr=0.5)

    def scores(images: torch.Tensor) -> torch.Tensor:
        return (images[:, 0, 0, :3] * factors @ weight.T + factors[0] * bias).real

    for _ in range(5):
        plain_step(parameters, scores, optimiser, data, 0.4)
        passed.append([each.detach().clone() for each in parameters])
    for found, *last in zip(result.model.parameters(), *passed[-3:], strict=True):
        torch.testing.assert_close(found.detach(), torch.stack(last).mean(dim=0), rtol=1e-4, atol=1e-5)


def test_a_taper_follows_from_the_noise_of_the_mean_over_all_rounds():
    settings = TrainingSettings(rounds=4, images_per_patient=8, optimiser=PLAIN, clip=0.4)
    head = replace(HEAD, components=8, taper="noise")
    nodes = (NodeConstants("a", 10, 10.0), NodeConstants("b", 20, 20.0))
    declared = Plan(replace(RUN, target=Target(1)), head, settings, nodes, task={"name": "brain_sequences"})
    tapers = [declared.with_noise(sigma).network.taper for sigma in (0.5, 1, 2)]
    assert declared.network.taper == "noise"  # nobody knows the noise yet
    with pytest.raises(UserError, match="Expected taper as a number"):
        taper_factors(8, declared.network.taper)
    assert tapers == pytest.approx(
        [sigma * math.hypot(0.1, 0.05) / 2 / 2 / BrainSequences.signal for sigma in (0.5, 1, 2)], rel=1e-3
    )
    factors = torch.stack([taper_factors(8, taper) for taper in (0, *tapers)])
    assert (factors[0] == 1).all()
    assert (factors.diff(dim=0) < 0).all()  # the more noise, the less of every component
    assert (factors[1:].diff(dim=1) < 0).all()
    noisy = declared.with_noise(2)
    assert json.loads(json.dumps(noisy.to_json()))["network"]["taper"] == tapers[2]
    assert Plan.from_json(noisy.to_json()) == noisy
    for epsilon in ("inf", "unclipped"):
        without = replace(declared, run=replace(RUN, target=Target.named(epsilon)))
        assert without.network.taper == 0
        assert "taper" not in without.to_json()["network"]


@pytest.mark.parametrize("share", [0, 0.98])
@pytest.mark.parametrize(("epsilon", "more"), [("8", {}), ("1", {}), ("8", {"threat": "masked_sums", "sums": Sums(0)})])
def test_a_plan_with_too_little_noise_for_its_name_is_not_trained(share, epsilon, more, paths):
    whole = Plan(replace(RUN, target=Target.named(epsilon)), TINY, SETTINGS, CONSTANTS, **more)
    bare = whole.with_noise(share * noise_of_plan(whole))
    files = RunFiles(paths["ledger_path"], paths["checkpoint_path"])
    with pytest.raises(UserError, match=f"at most epsilon {epsilon}"):
        train(LocalHolders(bare, records(6), [plan.units(1) for plan in PLANS]), files)
    assert not paths["ledger_path"].exists()


def test_data_holders_that_have_trained_begin_no_other_run(tmp_path):
    """Its ledger would name starting weights that the network no longer has."""
    plan = Plan(RunName("tiny", "central", Target(math.inf), 0), TINY, SETTINGS, (NodeConstants("a", 6, 3),))
    plan = replace(plan, task={"name": "classification", "classes": CLASSES, "balanced": True})
    holders = LocalHolders(plan, records(6), [[[4 * i + j for j in range(4)] for i in range(6)]])
    train(holders, RunFiles(tmp_path / "a/run.jsonl", tmp_path / "a/checkpoint"))
    with pytest.raises(UserError, match=r"have trained before.*LocalHolders"):
        train(holders, RunFiles(tmp_path / "b/run.jsonl", tmp_path / "b/checkpoint"))
    assert not read_ledger(tmp_path / "b/run.jsonl")
