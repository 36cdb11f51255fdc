"""Networks that are trained can be stored and loaded; others are refused before anything is spent on them."""

from __future__ import annotations

import copy
import os

import pytest
import torch
from flat_calls import private
from torch import nn

from zetadp.base.storage import private_files
from zetadp.base.tensors import load_tensors
from zetadp.base.validation import UserError
from zetadp.own.records import Records
from zetadp.own.run import load

PATIENTS, WIDTH = 10, 6
ITEMS = torch.randn(PATIENTS, WIDTH, generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(PATIENTS) % 2


class Plain(nn.Module):
    """A linear network."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 2)

    def forward(self, items):
        return self.layer(items)


class ChannelsLast(Plain):
    """Has a convolution whose weights lie in memory by channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 6, (1, 3)).to(memory_format=torch.channels_last)

    def forward(self, items):
        return self.layer(self.first(items.view(-1, 2, 1, 3)).flatten(1))


class Transposed(Plain):
    """Has a weight and a buffer that are views of transposed ones, and a buffer in half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.layer.weight = nn.Parameter(torch.randn(WIDTH, 2).T)
        self.register_buffer("scale", torch.rand(2, WIDTH).bfloat16().T)

    def forward(self, items):
        return self.layer(items * self.scale.float().mean(1))


def orthogonal() -> nn.Module:
    model = nn.Sequential(nn.Linear(WIDTH, 2))
    nn.utils.parametrizations.orthogonal(model[0])
    return model


STORED = {"channels last": ChannelsLast, "transposed": Transposed, "parametrised": orthogonal}


class ExtraState(Plain):
    """Stores a text next to its weights."""

    def get_extra_state(self):
        return "text"

    def set_extra_state(self, state):
        pass


class Forgetful(Plain):
    """Does not take its weights back."""

    def load_state_dict(self, state_dict, strict=True, assign=False):
        return super().load_state_dict({name: value + 1 for name, value in state_dict.items()}, strict, assign)


class Squeezed(Plain):
    """Loses the axis of items where there is one."""

    def forward(self, items):
        return super().forward(items).squeeze()


def of_hooks() -> nn.Module:
    model = nn.Sequential(nn.utils.spectral_norm(nn.Linear(WIDTH, 2)))
    model(ITEMS)  # its weight is now a result, which copy.deepcopy refuses
    return model


REFUSED = {
    "a text as extra state": (ExtraState, "extra_state"),
    "weights that it does not take back": (Forgetful, "load_state_dict"),
    "no single item": (Squeezed, "a single one"),
    "no copy": (of_hooks, "parametrizations"),
}


def prepared(tmp_path, model=None, **changed):
    given = {"epsilon": 8, "delta": 1e-3, "population": PATIENTS, "per_round": 5, "rounds": 2}
    model = Plain() if model is None else model
    data = Records(ITEMS, LABELS, patients=range(PATIENTS))
    return private(model, data, **{"folder": tmp_path / "runs" / "run"} | given | changed)


@pytest.mark.parametrize("kind", STORED)
def test_weights_in_any_order_of_memory_are_stored_and_loaded(tmp_path, kind):
    model = STORED[kind]()
    trained = prepared(tmp_path, model).train()
    trained.save(tmp_path / "saved")
    loaded = load(tmp_path / "saved", model)
    assert torch.equal(loaded(ITEMS), copy.deepcopy(trained.model).eval()(ITEMS))
    assert not torch.equal(loaded(ITEMS), model(ITEMS))


@pytest.mark.parametrize("kind", REFUSED)
def test_a_network_that_cannot_be_stored_or_evaluated_is_refused_at_the_door(tmp_path, kind):
    make, words = REFUSED[kind]
    with pytest.raises(UserError, match=f"^model: Expected .*{words}"):
        prepared(tmp_path, make())
    assert not (tmp_path / "runs").exists()


def test_a_compiled_network_is_stored_by_the_names_of_its_own(tmp_path):
    model, whole = nn.Sequential(nn.Linear(WIDTH, 4), Plain()), Plain()
    model[1] = torch.compile(nn.Linear(4, 2), backend="eager")
    prepared(tmp_path, torch.compile(whole, backend="eager"), folder=tmp_path / "one").train().save(tmp_path / "whole")
    prepared(tmp_path, model, folder=tmp_path / "two").train().save(tmp_path / "part")
    assert load_tensors(tmp_path / "whole")[0].keys() == whole.state_dict().keys()
    assert load_tensors(tmp_path / "part")[0].keys() == {"0.weight", "0.bias", "1.weight", "1.bias"}
    expected = load(tmp_path / "whole", whole)(ITEMS)
    assert torch.equal(load(tmp_path / "whole", torch.compile(whole, backend="eager"))(ITEMS), expected)
    assert load(tmp_path / "part", model)(ITEMS).shape == (PATIENTS, 2)


@pytest.mark.parametrize("seed", [None, 0])
def test_training_within_autocast_is_refused_with_any_noise(tmp_path, seed):
    run = prepared(tmp_path, seed=seed)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(UserError, match="autocast"):
        run.train()
    assert not run.ledger.exists()
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(UserError, match="autocast"):
        prepared(tmp_path, seed=seed)
    assert run.train().state == "finished"


def changed(model: nn.Module) -> None:
    with torch.no_grad():
        model.layer.bias.add_(1)


def test_weights_that_were_changed_are_neither_saved_nor_trained_under_the_runs_statement(tmp_path):
    run = prepared(tmp_path)
    changed(run.model)
    with pytest.raises(UserError, match=r"train: .*run\.model was changed"):
        run.train()
    assert not run.ledger.exists()
    run = prepared(tmp_path).train()
    changed(run.model)
    with pytest.raises(UserError, match=r"save: .*run\.model was changed"):
        run.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
    prepared(tmp_path).save(tmp_path / "saved")


def test_files_of_a_run_are_their_owners_and_have_one_time(tmp_path):
    before = os.umask(0o022)
    try:
        run = prepared(tmp_path)
        meanwhile = [*(tmp_path / "runs").rglob("*")]
        assert meanwhile
        assert {path.stat().st_mode & 0o077 for path in meanwhile} == {0}
        run.train()
        assert {path.stat().st_mode & 0o077 for path in (tmp_path / "runs").rglob("*")} == {0}
        files = [run.ledger, *run.folder.rglob("*")]
        assert len(files) > 6
        assert len({path.stat().st_mtime for path in files}) == 1
        run.save(tmp_path / "saved")
        assert (tmp_path / "saved").stat().st_mode & 0o077 == 0o044  # what is handed on is the user's choice
    finally:
        os.umask(before)


def test_blocks_of_private_files_end_with_the_mask_from_before():
    before = os.umask(0o022)
    try:
        first, second = private_files(), private_files()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert os.umask(0o077) == 0o077
        second.__exit__(None, None, None)
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
