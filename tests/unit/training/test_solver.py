"""Whole trainings in closed form: one round, counted and repeated like any other."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from training_builder import CLASSES, Held, by_record, plan_for, train_run

from zetadp.accounting.threat import Sums
from zetadp.base.epsilon import Target
from zetadp.base.runfolder import RunName
from zetadp.base.validation import UserError
from zetadp.nn.class_means import ClassMeans
from zetadp.nn.models import NetworkSettings
from zetadp.nn.settings import CLASS_MEANS
from zetadp.training.assembly import Assembly
from zetadp.training.loop import Trained
from zetadp.training.records import LabelledItems
from zetadp.training.settings import Performance, TrainingSettings

COMPONENTS, PATIENTS = 3, 5
HEAD = NetworkSettings("head", "features", components=COMPONENTS)
LABELS = torch.arange(CLASSES).repeat_interleave(2)
RUN = RunName("own", "federated", Target(8), 0)
PLANS = [
    Held("node-01", [[0], [1]], 2, expected=2, noise_multiplier=0.8),
    Held("node-02", [[2], [3], [4]], 3, expected=3, noise_multiplier=0.8),
]


def settings(**more) -> TrainingSettings:
    options = {"rounds": 1, "images_per_patient": len(LABELS), "clip": 0.5}
    return TrainingSettings(estimator=CLASS_MEANS, **(options | more))


def data(components: int = COMPONENTS + 2) -> LabelledItems:
    values = np.random.default_rng(0).standard_normal((2, PATIENTS, len(LABELS), 1, components))
    return LabelledItems.stacked(torch.complex(*torch.from_numpy(values).float()).unsqueeze(2), LABELS)


def public(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(CLASSES, COMPONENTS, dtype=torch.complex64, generator=generator)
    return {"affine.weight": weight, "affine.bias": torch.zeros(CLASSES, dtype=torch.complex64)}


def trained(folder, *, plans=PLANS, run=RUN, network=HEAD, noise="seeded", items=None, **more) -> Trained:
    places = {"ledger_path": folder / "ledger.jsonl", "checkpoint_path": folder / "run.partial"}
    how = Performance(checkpoint_seconds=0)
    return train_run(
        run, network, settings(noise=noise), plans, items or data(), None, **places, performance=how, **more
    )


def test_units_that_lack_a_class_are_refused_before_the_ledger(tmp_path):
    items = data()
    with pytest.raises(UserError, match="every class of every patient for estimator class_means"):
        trained(tmp_path, items=replace(items, present=items.strata != 1))
    assert not (tmp_path / "ledger.jsonl").exists()


def head(result: Trained) -> tuple[torch.Tensor, torch.Tensor]:
    found = {name: value.detach().clone() for name, value in result.model.named_parameters()}
    return found["affine.weight"], found["affine.bias"]


def without_noise() -> list[Held]:
    return [replace(plan, noise_multiplier=0.0) for plan in PLANS]


@pytest.mark.parametrize("start", [None, public()])
def test_the_head_is_that_of_the_mean_over_nodes_of_the_mean_over_patients(tmp_path, start):
    result = trained(tmp_path, plans=without_noise(), run=replace(RUN, target=Target(math.inf)), start=start)
    statistic = ClassMeans(COMPONENTS, (0.25,) * CLASSES, norm=0.8, bound=0.5)
    contributions = statistic(by_record(data()), LABELS.expand(PATIENTS, -1))
    mean = (contributions[:2].mean(dim=0) + contributions[2:].mean(dim=0)) / 2
    wanted = statistic.head(mean, 0.0, None if start is None else start["affine.weight"])
    for found, expected in zip(head(result), wanted, strict=True):
        torch.testing.assert_close(found, expected.to(found.dtype), rtol=1e-3, atol=1e-4)
    assert len(result.history) == 1
    assert math.isnan(result.history["learning_rate"][0])


def test_the_server_knows_the_noise_of_the_mean_message_of_the_nodes_that_are_there(monkeypatch):
    """By it the strength of the pull to the public classes is set."""
    seen, original = [], ClassMeans.head
    monkeypatch.setattr(
        ClassMeans, "head", lambda self, mean, noise, public: seen.append(noise) or original(self, mean, noise, public)
    )
    held = [*PLANS, replace(PLANS[1], name="node-03")]
    plan = plan_for(RUN, HEAD, settings(), held, threat="masked_sums", sums=Sums(colluding=0, missing=1))
    parts, alone = Assembly.of(plan, data()), {"threat": "local", "sums": None}
    for changes, missing, wanted in (
        ({}, [], 0.8 * 3**0.5 / 8),
        ({}, ["node-02"], 0.8 * 2**0.5 / 5),
        (alone, [], 0.8 * math.hypot(1 / 2, 1 / 3, 1 / 3) / 3),
        (alone, ["node-02"], 0.8 * math.hypot(1 / 2, 1 / 3) / 2),
    ):
        changed = replace(parts, plan=replace(plan, **changes))
        changed.receiver().step(torch.zeros(1, parts.phase.message), 0, missing)
        assert seen.pop() == pytest.approx(0.5 * wanted)


def test_a_head_in_closed_form_has_one_round():
    with pytest.raises(UserError, match="Expected one round"):
        settings(rounds=2)
