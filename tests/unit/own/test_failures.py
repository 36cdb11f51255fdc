"""Errors of the user's own code in the middle of a run: named, with nothing lost, and the run continues."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flat_calls import private
from torch.nn import functional

from zetadp.account.book import recorded_runs
from zetadp.base.usercode import UserCodeError
from zetadp.base.validation import UserError
from zetadp.own.records import Records

PATIENTS, ROUNDS = 8, 4


class OwnError(Exception):
    """An error that no library knows."""


class Network(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x)


class Loss(torch.nn.Module):
    def forward(self, outputs, labels):
        return functional.cross_entropy(outputs, labels, reduction="none")


class Items(torch.utils.data.Dataset):
    values = torch.randn(PATIENTS, 5, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return PATIENTS

    def __getitem__(self, index):
        return self.values[index]


class Stop:
    def __init__(self, action):
        self.action = action

    def __call__(self, history):
        self.action(history)
        return False


def broken(*_):
    raise OwnError("broken")


PARTS = {"model": (Network, "forward"), "loss": (Loss, "forward"), "items": (Items, "__getitem__")}


def prepared(folder, action=lambda _: None, seed=0):
    torch.manual_seed(0)
    data = Records(Items(), torch.arange(PATIENTS) % 3, patients=range(PATIENTS))
    declared = {"population": PATIENTS, "per_round": PATIENTS, "rounds": ROUNDS, "epsilon": 8, "delta": 0.1}
    return private(Network(5, 3), data, loss=Loss(), folder=folder, stop=Stop(action), seed=seed, **declared)


@pytest.mark.parametrize("seed", [0, None])
@pytest.mark.parametrize("part", PARTS)
def test_an_error_in_a_round_names_part_line_and_round_and_the_run_continues(part, seed, tmp_path, monkeypatch):
    def action(history):
        if len(history) == 2:
            patches.setattr(*PARTS[part], broken)

    with monkeypatch.context() as patches, pytest.raises(UserError) as raised:
        prepared(tmp_path / "run", action, seed).train()
    message = str(raised.value)
    assert message.startswith(f"{part}: Expected ")
    assert "OwnError: broken (line" in message
    assert 'in broken: raise OwnError("broken"))' in message
    assert f"in round 3 of {ROUNDS}" in message
    assert isinstance(raised.value.__cause__, OwnError)
    again = prepared(tmp_path / "run", seed=seed)
    assert again.state == "interrupted"
    again.train()
    (run,) = recorded_runs(again.ledger)
    assert [node.releases for node in run.nodes.values()] == [ROUNDS]
    if seed is not None:
        whole = prepared(tmp_path / "other/run").train()
        assert torch.equal(again.model.weight, whole.model.weight)


def test_an_error_of_the_rule_that_stops_passes_as_it_is_and_the_run_continues(tmp_path):
    with pytest.raises(OwnError, match="broken"):
        prepared(tmp_path / "run", broken).train()
    again = prepared(tmp_path / "run")
    assert again.state == "interrupted"
    assert again.train().state == "finished"


@pytest.mark.parametrize("part", PARTS)
def test_an_error_before_the_first_round_leaves_nothing(part, tmp_path, monkeypatch):
    monkeypatch.setattr(*PARTS[part], broken)
    with pytest.raises(UserCodeError, match=rf"^{part}: Expected .*OwnError: broken \(line"):
        prepared(tmp_path / "run")
    assert [*tmp_path.iterdir()] == []


def test_an_error_of_a_metric_costs_nothing(tmp_path):
    run = prepared(tmp_path / "run")
    others = Records(Items.values, torch.arange(PATIENTS) % 3, patients=np.arange(PATIENTS) + 100)
    for call in (run.evaluate, run.train):
        with pytest.raises(UserCodeError, match=r"^metric: .*OwnError: broken \(line"):
            call(others, metric=broken)
    assert run.state == "new"
    assert not run.ledger.exists()
