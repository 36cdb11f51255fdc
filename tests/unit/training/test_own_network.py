"""Networks that a user brings, and the example of README."""

from __future__ import annotations

import ast
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from training_builder import SIZE, TINY, Held, records, train_run

from zetadp.base.epsilon import Target
from zetadp.base.runfolder import RunName
from zetadp.base.validation import UserError
from zetadp.nn.settings import NetworkSettings
from zetadp.training.records import LabelledItems
from zetadp.training.settings import OptimiserSettings, TrainingSettings

README = Path(__file__).parents[3] / "README.md"
OWN = NetworkSettings("own")
RUN = RunName("own", "central", Target(math.inf), 0)
SETTINGS = TrainingSettings(rounds=3, images_per_patient=4, clip=0.3, optimiser=OptimiserSettings(0.02))
EVERYBODY = [Held("here", [[i] for i in range(6)], 6, 6.0, 0.0)]


@pytest.fixture
def paths(tmp_path):
    return {"ledger_path": tmp_path / "ledger.jsonl", "checkpoint_path": tmp_path / "run.partial"}


def test_the_example_of_readme_trains_at_its_epsilon_in_ten_lines(tmp_path, monkeypatch, capsys):
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.S)
    assert len(ast.parse(example).body) <= 10
    monkeypatch.chdir(tmp_path)
    given = {"model": nn.Linear(64, 4), "items": torch.randn(1000, 64), "labels": torch.randint(4, (1000,))}
    given["ids"] = [item // 5 for item in range(1000)]
    exec(compile(example, "README.md", "exec"), given)
    assert "(8, 1e-05)-differentially private" in capsys.readouterr().out


def affine(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(SIZE * SIZE, 4), layer)


def test_random_draws_that_are_not_a_patients_own_and_half_precision_are_refused_by_name(paths):
    for model, words in (
        (affine(nn.AlphaDropout(0.5)), r"found AlphaDropout as '2'. Use torch.nn.Dropout"),
        (affine(nn.Tanh()).bfloat16(), r"found torch.bfloat16 as '1.weight'"),
    ):
        with pytest.raises(UserError, match=words):
            train_run(RUN, OWN, SETTINGS, EVERYBODY, records(6), None, **paths, model=model)
    assert not paths["ledger_path"].exists()


class FirstScale(nn.Module):
    """Moduli in units of the largest of the first batch."""

    largest = None

    def forward(self, x):
        if self.largest is None:
            self.largest = float(x.abs().max())
        return x.abs() / self.largest


def test_training_refuses_a_network_that_remembers_before_it_begins(paths):
    model = nn.Sequential(FirstScale(), affine(nn.Identity()))
    with pytest.raises(UserError, match=r"changes '0\.largest'"):
        train_run(RUN, OWN, SETTINGS, EVERYBODY, records(6), None, **paths, model=model)
    assert model[0].largest is None
    assert not paths["ledger_path"].exists()


def test_plan_and_model_must_agree(paths):
    with pytest.raises(UserError, match=r"NetworkSettings\('own'\)"):
        train_run(RUN, TINY, SETTINGS, EVERYBODY, records(6), None, **paths, model=affine(nn.Tanh()))
    with pytest.raises(UserError, match="Pass it to train as model"):
        train_run(RUN, OWN, SETTINGS, EVERYBODY, records(6), None, **paths)


def test_closed_forms_need_shares_of_classes_that_are_public(paths):
    data = LabelledItems(torch.randn(24, 1, 1, 5, dtype=torch.complex64), torch.randint(4, (24,)))
    settings = replace(SETTINGS, rounds=1, estimator="class_means")
    of_plan = {"task": {"name": "classification", "classes": 4}}
    with pytest.raises(UserError, match="equally many items of every class"):
        train_run(RUN, NetworkSettings("head", "features"), settings, EVERYBODY, data, None, **paths, of_plan=of_plan)
