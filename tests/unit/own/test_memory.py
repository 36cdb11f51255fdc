"""Networks, losses and data sets that remember what they saw are refused before they see anybody's items."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch
from flat_calls import private
from torch import nn

from zetadp.base.tensors import load_tensors
from zetadp.base.validation import UserError
from zetadp.own.records import Records
from zetadp.training.stateless import check_stateless, public_batches

PATIENTS, WIDTH = 12, 6
ITEMS = torch.randn(2 * PATIENTS, WIDTH, generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(2 * PATIENTS) % 2
IDS = [place // 2 for place in range(2 * PATIENTS)]
SHARED: dict[str, float] = {}


class Plain(nn.Module):
    """A linear network, with a step before it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 2)

    def forward(self, items):
        return self.layer(self.prepared(items))

    def prepared(self, items):
        return items


class FirstBatch(Plain):
    """Sets its shift and scale from its first batch, as Glow's ActNorm does."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.scale = nn.Parameter(torch.zeros(WIDTH)), nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("ready", torch.tensor(False))

    def prepared(self, items):
        if not self.ready:
            with torch.no_grad():
                self.shift.copy_(-items.mean(0))
                self.scale.copy_(1 / items.std(0))
                self.ready.fill_(True)
        return (items + self.shift) * self.scale


class Attribute(Plain):
    """Keeps a scale in an attribute of a plain object."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = {"scale": None}

    def prepared(self, items):
        if self.cache["scale"] is None:
            self.cache["scale"] = float(items.abs().max())
        return items / self.cache["scale"]


class OnceLarge(Plain):
    """Keeps the mean of its first batch of more than two items, such as a patient's four."""

    def __init__(self) -> None:
        super().__init__()
        self.middle = None

    def prepared(self, items):
        if self.middle is None and len(items) > 2:
            self.middle = items.mean().item()
        return items if self.middle is None else items - self.middle


class OfItsClass(Plain):
    """Keeps a scale in an attribute of the class."""

    largest = 0.0

    def prepared(self, items):
        OfItsClass.largest = OfItsClass.largest or float(items.abs().max())
        return items / OfItsClass.largest


class Global(Plain):
    """Keeps a scale in a global variable."""

    def prepared(self, items):
        return items / SHARED.setdefault("scale", float(items.abs().max()))


class Codebook(Plain):
    """Keeps its first items as codes in a buffer that does not exist before."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", None)

    def prepared(self, items):
        if self.codes is None:
            self.codes = items.detach().clone()
        return items - torch.cdist(items, self.codes).argmin(1, keepdim=True)


class Unusual(Plain):
    """Remembers items with large numbers only."""

    def __init__(self) -> None:
        super().__init__()
        self.outlier = torch.zeros(WIDTH)

    def prepared(self, items):
        if items.abs().max() > 10:
            self.outlier = items.detach().mean(0)
        return items + self.outlier


class InTheGradient(Plain):
    """Remembers the first gradient, by a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.first = nn.Linear(WIDTH, WIDTH), []
        self.layer.register_full_backward_hook(lambda _, __, of_output: self.first.append(float(of_output[0].norm())))

    def prepared(self, items):
        return self.before(items)


def hooked() -> nn.Module:
    model, seen = Plain(), []
    model.layer.register_forward_pre_hook(lambda _, given: seen.append(float(given[0].mean())))
    return model


class SharedCopy(Attribute):
    """Is its own copy."""

    def __deepcopy__(self, memo):
        return self


NETWORKS = {
    "weights": (FirstBatch, "'shift'"),
    "attribute": (Attribute, "cache"),
    "class": (OfItsClass, "OfItsClass.largest"),
    "global": (Global, "SHARED"),
    "new buffer": (Codebook, "'codes'"),
    "unusual": (Unusual, "'outlier'"),
    "hook": (hooked, "seen"),
    "gradient": (InTheGradient, "first"),
    "its own copy": (SharedCopy, "copy.deepcopy"),
}


def cross_entropy(outputs, labels):
    return nn.functional.cross_entropy(outputs, labels, reduction="none")


class OverFirst:
    """A loss in units of its first value."""

    def __init__(self) -> None:
        self.first = None

    def __call__(self, outputs, labels):
        losses = cross_entropy(outputs, labels)
        self.first = losses.detach().mean() if self.first is None else self.first
        return losses / self.first


def over_first():
    first = None

    def loss(outputs, labels):
        nonlocal first
        losses = cross_entropy(outputs, labels)
        first = losses.detach().mean() if first is None else first
        return losses / first

    return loss


def prepared(tmp_path, model=None, **changed):
    given = {"epsilon": 8, "delta": 1e-3, "population": PATIENTS, "per_round": 6, "rounds": 2, "items_per_patient": 2}
    items, labels = changed.pop("items", ITEMS), changed.pop("labels", LABELS)
    data = Records(items, labels, patients=IDS)
    model = Plain() if model is None else model
    return private(model, data, folder=tmp_path / "run", **given | changed)


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_network_that_remembers_is_refused_untouched(tmp_path, kind):
    SHARED.clear()
    OfItsClass.largest = 0.0
    make, words = NETWORKS[kind]
    model = make()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(UserError, match=words):
        prepared(tmp_path, model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("seed", [None, 0])
def test_a_network_that_remembers_larger_batches_alone_is_refused(tmp_path, seed):
    items, labels = ITEMS.repeat(2, 1), LABELS.repeat(2)
    data = Records(items, labels, patients=[*IDS, *IDS])  # four items a patient
    public = {"population": PATIENTS, "per_round": 6, "rounds": 2, "items_per_patient": 4}
    with pytest.raises(UserError, match="'middle'"):
        private(OnceLarge(), data, folder=tmp_path / "run", epsilon=8, delta=1e-3, seed=seed, **public)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("make", [OverFirst, over_first])
def test_a_loss_that_remembers_its_first_value_is_refused(tmp_path, make):
    with pytest.raises(UserError, match=r"loss: .*'loss\.first'"):
        prepared(tmp_path, loss=make())
    assert not (tmp_path / "run").exists()


class Keeps(Plain):
    """Keeps its last output to be looked at, and a table for each size of batch, neither of which it uses."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[int, torch.Tensor] = {}

    def prepared(self, items):
        self.shown = items.detach()
        return items + self.tables.setdefault(len(items), torch.zeros(len(items), 1))


def test_what_a_network_keeps_of_its_last_items_leaves_with_no_model(tmp_path):
    run = prepared(tmp_path, Keeps()).train()
    assert not hasattr(run.model, "shown")
    assert run.model.tables == {}


class Positive(Plain):
    """Takes positive numbers only, as amplitudes are."""

    def prepared(self, items):
        assert (items >= 0).all()
        return items.log1p()


class Tokens(Plain):
    """Takes whole numbers below ten."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 3)
        self.layer = nn.Linear(3 * WIDTH, 2)

    def prepared(self, items):
        return self.table(items.long()).flatten(1)


@pytest.mark.parametrize(("make", "most"), [(Positive, None), (Tokens, 10)])
def test_a_network_need_not_take_every_number(make, most):
    series = public_batches([ITEMS], (2,), [most])
    first, _ = check_stateless(make(), lambda model, batch: [model(batch[0])], series, name="model")
    assert first[0].shape == (2, WIDTH)
    assert first[0].any()


def test_the_stored_start_is_the_network_that_was_handed_in(tmp_path):
    model = Plain()
    run = prepared(tmp_path, model)
    stored, _ = load_tensors(tmp_path / "run" / "start.safetensors")
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in stored.items())
    assert stored.keys() == model.state_dict().keys() == run.model.state_dict().keys()


class Items(torch.utils.data.Dataset):
    """Items one by one, each after a change."""

    def __init__(self) -> None:
        self.seen = 0

    def __len__(self):
        return len(ITEMS)

    def __getitem__(self, place):
        self.seen += 1
        return self.changed(ITEMS[place]), LABELS[place]

    def changed(self, item):
        return item


class Standardised(Items):
    """Subtracts the mean of the items so far."""

    mean = torch.zeros(WIDTH)

    def changed(self, item):
        self.mean = self.mean + (item - self.mean) / self.seen
        return item - self.mean


def changing(change) -> type[Items]:
    return type("Changing", (Items,), {"changed": lambda self, item: change(self, item)})


CHANGING = {
    "PyTorch's random numbers": changing(lambda _, item: item + torch.randn(WIDTH)),
    "NumPy's random numbers": changing(lambda _, item: item + float(np.random.rand())),  # noqa: NPY002
    "Python's random numbers": changing(lambda _, item: item * random.choice((-1, 1))),
    "a running mean": Standardised,
    "a counter": changing(lambda self, item: item + self.seen // (2 * len(ITEMS))),
}


@pytest.mark.parametrize("kind", CHANGING)
def test_items_that_differ_at_the_second_look_are_refused(kind):
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
    with pytest.raises(UserError, match="without random augmentation"):
        Records(CHANGING[kind](), patients=IDS)


def test_a_second_look_at_items_moves_no_random_numbers_and_is_short(monkeypatch):
    monkeypatch.setattr("zetadp.own.records.LOOKED_UP_TWICE", 5)
    data = Items()
    torch.manual_seed(0)
    Records(data, LABELS, patients=IDS)
    drawn = torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(drawn, torch.rand(1))
    assert data.seen <= len(ITEMS) + 5 + 1  # and one for the shape


def test_a_run_on_looked_up_items_is_opened_by_the_same_call_and_no_other(tmp_path):
    given = {"items": Items(), "labels": None}
    prepared(tmp_path, **given).train()
    assert prepared(tmp_path, **given | {"items": Items()}).state == "finished"
    with pytest.raises(UserError, match=r"records: .* found other items or labels.* zetadp\.load opens"):
        prepared(tmp_path, **given | {"items": ITEMS + 1, "labels": LABELS})
