"""Opacus behind the bridge: right for complex networks and for patients."""

# Imports follow the checks on whether, and which, Opacus is installed.
# ruff: noqa: E402

from __future__ import annotations

import copy
import json
import re
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import (
    BatchSampler,
    ChainDataset,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler
from training_builder import NETWORKS, network

from zetadp.accounting import composition
from zetadp.accounting.kinds import NoisySum
from zetadp.base.validation import UserError
from zetadp.cli import main
from zetadp.opacus.optimizer import check_network

opacus = pytest.importorskip("opacus", reason="the bridge needs Opacus, an extra")
if not version("opacus").startswith("1.6."):
    pytest.skip("the bridge, and what is said about Opacus, hold for 1.6.*", allow_module_level=True)

from opacus.utils.batch_memory_manager import BatchMemoryManager

import zetadp.opacus
from zetadp.opacus.engine import PrivacyEngine
from zetadp.opacus.gradients import ComplexGradSampleModule

DOCUMENT = Path(__file__).parents[2] / "docs" / "opacus.md"
P = 24 / 44
CLASSES = 3


class Native(nn.Module):
    """A complex network of PyTorch's own layers."""

    def __init__(self, dtype: torch.dtype = torch.complex64) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 3, 3, padding=1, dtype=dtype)
        self.second = nn.Conv2d(3, 4, 3, stride=2, dtype=dtype)
        self.last = nn.Linear(36, CLASSES, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = self.second(x * torch.sigmoid(x.abs()))
        return self.last((x * torch.sigmoid(x.abs())).flatten(1)).abs()


class Sequence(nn.Module):
    """Convolutions of one and three axes, and a linear layer over a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv1d(8, 4, 3, padding="same", dilation=2, groups=2, dtype=torch.complex128)
        self.three = nn.Conv3d(1, 2, (1, 2, 3), stride=(1, 2, 1), padding=(0, 1, 1), dtype=torch.complex128)
        self.over = nn.Linear(8, CLASSES, bias=False, dtype=torch.complex128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.one(x[:, 0])
        x = self.three(x[:, None, None])
        return self.over(x.flatten(1, 3)).mean(dim=1).abs()


def native(dtype: torch.dtype = torch.complex128) -> nn.Module:
    torch.manual_seed(0)
    return Native(dtype)


def padded(mode: str, dtype: torch.dtype) -> nn.Module:
    layers = (nn.Conv2d(1, 2, 3, padding=1, padding_mode=mode, dtype=dtype), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(128, CLASSES, dtype=dtype), Modulus())


class Modulus(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.abs()


NETS = {
    "native": (native, torch.complex128),
    "sequence": (Sequence, torch.complex128),
    "of zetadp": (lambda: network(NETWORKS["complex hidden"], dtype=torch.float64), torch.complex128),
    **{
        f"{mode} {dtype}": (lambda mode=mode, dtype=dtype: padded(mode, dtype), dtype)
        for mode, dtype in (("circular", torch.complex128), ("reflect", torch.float64))
    },
}
REAL = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Mish(), nn.Flatten(), nn.Linear(144, CLASSES))


def samples(count: int, dtype: torch.dtype = torch.complex128, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 1, 8, 8, dtype=dtype, generator=generator)
    return x, torch.randint(0, CLASSES, (count,), generator=generator)


def flat(gradients: tuple[torch.Tensor, ...] | list[torch.Tensor]) -> torch.Tensor:
    parts = [torch.view_as_real(g.resolve_conj()) if g.is_complex() else g for g in gradients]
    return torch.cat([p.flatten() for p in parts])


def plain_gradient(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return flat(torch.autograd.grad(functional.cross_entropy(model(x), y), list(model.parameters())))


def loop(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return per-sample gradients by name, one sample at a time: the truth."""
    names, own = zip(*model.named_parameters(), strict=True)
    rows = [
        torch.autograd.grad(functional.cross_entropy(model(a[None]), b[None]), own) for a, b in zip(x, y, strict=True)
    ]
    return {name: torch.stack(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def private(model: nn.Module, dataset, engine: PrivacyEngine | None = None, **changes):
    """Return private model, optimizer and loader; all patients in every round and no noise unless said."""
    settings = {"sampling_probability": 1.0, "noise_multiplier": 0.0, "max_grad_norm": 1.0, **changes}
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    return (engine or PrivacyEngine()).make_private(module=model, optimizer=sgd, data_loader=dataset, **settings)


def step(model: nn.Module, optimizer, loader) -> torch.Tensor:
    """Take one step on the next batch; return what the optimizer saw as gradient."""
    x, y = next(iter(loader))
    optimizer.zero_grad()
    functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    return flat([p.grad for p in optimizer.params])


# Gradients


@pytest.mark.parametrize("name", NETS)
def test_gradients_of_samples_are_those_of_a_loop(name):
    torch.manual_seed(3)
    make, dtype = NETS[name]
    model, (x, y) = make(), samples(5, dtype)
    truth = loop(model, x, y)
    wrapped = ComplexGradSampleModule(model)
    functional.cross_entropy(wrapped(x), y).backward()
    found = {name.removeprefix("_module."): p.grad_sample for name, p in wrapped.named_parameters()}
    assert max(float((found[key] - truth[key]).norm() / truth[key].norm()) for key in truth) < 1e-10


class Functional(nn.Module):
    """Uses the weight of a layer without the layer, which no hook sees."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64, dtype=torch.complex128)
        self.last = nn.Linear(64, CLASSES, dtype=torch.complex128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x.flatten(1))
        return self.last(functional.linear(x * x.abs(), self.first.weight)).abs()


def test_gradients_that_do_not_sum_to_the_whole_gradient_are_refused():
    with pytest.raises(UserError, match=r"first\.weight"):
        step(*private(Functional(), TensorDataset(*samples(4))))


# Independence


class Largest(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / x.abs().max()


class Crowd(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0) if self.training and len(x) > 6 else x


class Remembers(nn.Module):
    """Writes a statistic of the samples of training into a buffer, which would be released without noise."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8, dtype=torch.complex128))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean += x.detach().mean(0)
        return x


def put_into_training(model: ComplexGradSampleModule) -> None:
    model.train()


def put_layers_into_training(model: ComplexGradSampleModule) -> None:
    network = model.eval().get_submodule("_module")
    network.train()
    network.training = False


def replace(model: ComplexGradSampleModule) -> None:
    model.get_submodule("_module")[2] = Largest()


def thaw(model: ComplexGradSampleModule) -> None:
    model.get_submodule("_module.1").requires_grad_(requires_grad=True)


@pytest.mark.parametrize(
    ("layer", "change", "message"),
    [
        (Crowd, put_into_training, "mixes"),
        (Crowd, put_layers_into_training, "mixes"),
        (Remembers, put_into_training, "changes '2.mean'"),
        (nn.Identity, replace, "make_private was given"),
        (nn.Identity, thaw, "make_private was given"),
    ],
)
def test_a_network_that_mixes_patients_or_changes_after_it_was_made_private_is_seen(layer, change, message):
    first, last = (nn.Linear(*sides, dtype=torch.complex128) for sides in ((64, 8), (8, CLASSES)))
    model = nn.Sequential(nn.Flatten(), first.requires_grad_(requires_grad=False), layer().eval(), last, Modulus())
    parts = private(model, TensorDataset(*samples(16)), patients=[i // 2 for i in range(16)])
    step(*parts)
    change(parts[0])
    with pytest.raises(UserError, match=message):
        step(*parts)


def test_a_loss_that_is_shown_to_the_engine_may_not_mix_patients():
    def balanced(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        counts = torch.bincount(targets, minlength=CLASSES)
        return (functional.cross_entropy(outputs, targets, reduction="none") / counts[targets]).mean()

    with pytest.raises(UserError, match="loss"):
        step(*private(native(), TensorDataset(*samples(8)), criterion=balanced))
    step(*private(native(), TensorDataset(*samples(8)), criterion=functional.cross_entropy))


def test_a_loss_that_is_not_a_mean_is_refused():
    """A sum, also one that is divided by a fixed size, and losses of single samples."""

    def scaled(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(outputs, targets, reduction="sum") / 8

    for criterion in (nn.CrossEntropyLoss(reduction="sum"), scaled):
        with pytest.raises(UserError, match="mean over samples"):
            step(*private(native(), TensorDataset(*samples(8)), criterion=criterion))
    with pytest.raises(UserError, match=r"one number for a batch, found shape \(2,\)"):
        step(*private(native(), TensorDataset(*samples(8)), criterion=nn.CrossEntropyLoss(reduction="none")))


@pytest.mark.parametrize(
    "criterion",
    [
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1.0, 9.0], dtype=torch.float64)),
        nn.CrossEntropyLoss(ignore_index=2),
    ],
)
def test_a_loss_that_weighs_a_rare_class_is_refused_when_the_class_occurs(criterion, monkeypatch):
    """The first batch has none of the rare class, and the second is not larger."""
    data = TensorDataset(samples(12)[0], torch.tensor([0, 1, 0, 1, 0, 1, 0, 1, 2, 1, 0, 1]))
    parts = private(native(), data, criterion=criterion, sampling_probability=0.5, rounds=2)
    drawn = iter([[0.0] * 6 + [1.0] * 6, [1.0] * 6 + [0.0] * 6])
    rand = torch.rand
    monkeypatch.setattr(
        torch, "rand", lambda size, **how: torch.tensor(next(drawn)) if size == 12 else rand(size, **how)
    )
    batches = iter(parts[2])

    def one() -> None:
        inputs, targets = next(batches)
        functional.cross_entropy(parts[0](inputs), targets).backward()
        parts[1].step()
        parts[1].zero_grad()

    one()
    with pytest.raises(UserError, match="mixes the samples"):
        one()


class SetsItself(nn.Module):
    """Scales by the first batch, and looks constant afterwards."""

    scale = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.scale is None:
            self.scale = float(1 / x.detach().abs().max())
        return x * self.scale


def test_networks_and_losses_that_remember_their_first_batch_are_refused():
    model = nn.Sequential(SetsItself(), native())
    with pytest.raises(UserError, match=r"changes '0\.scale'"):
        step(*private(model, TensorDataset(*samples(8))))
    assert model[0].scale is None
    first: list[float] = []

    def relative(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = functional.cross_entropy(outputs, targets)
        first.extend([] if first else [float(loss.detach())])
        return loss / first[0]

    with pytest.raises(UserError, match="changes 'first"):
        step(*private(native(), TensorDataset(*samples(8)), criterion=relative))


# One patient, one clip


def test_the_gradient_is_the_mean_of_clipped_gradients_of_patients():
    """Patients with 1, 2 and 4 samples, mixed up in the dataset, some clipped and some not."""
    labels = ["b", "c", "a", "c", "b", "c", "c"]
    model = native()
    x, y = samples(len(labels))
    rows = [[i for i, owner in enumerate(labels) if owner == label] for label in "abc"]
    gradients = [plain_gradient(model, x[mine], y[mine]) for mine in rows]
    norms = torch.stack([g.norm() for g in gradients]).sort().values
    bound = float(norms[:2].mean())
    expected = sum(g * min(1.0, bound / float(g.norm())) for g in gradients) / 3
    found = step(*private(model, TensorDataset(x, y), patients=labels, max_grad_norm=bound))
    assert float((found - expected).norm() / expected.norm()) < 3e-6
    assert norms[0] < bound < norms[-1]


def test_a_patient_without_a_finite_gradient_contributes_zero():
    model = native()
    x, y = samples(6)
    without = step(*private(copy.deepcopy(model), TensorDataset(x[2:], y[2:]), patients=[1, 1, 2, 2], population=3))
    x[1] = torch.inf
    found = step(*private(model, TensorDataset(x, y), patients=[0, 0, 1, 1, 2, 2]))
    torch.testing.assert_close(found, without, rtol=1e-10, atol=1e-12)


# Data loaders

DATA = TensorDataset(torch.arange(12.0)[:, None], torch.arange(12) % CLASSES)


class Reversed(DataLoader):
    def __iter__(self):
        return reversed(list(super().__iter__()))


def sorted_by_class(items):
    return tuple(map(torch.stack, zip(*sorted(items, key=lambda item: -int(item[1])), strict=True)))


def without_the_last_class(items):
    return tuple(map(torch.stack, zip(*(item for item in items if item[1] < 2 or len(items) == 1), strict=True)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sampler": SubsetRandomSampler(range(8))}, "SubsetRandomSampler"),
        ({"sampler": WeightedRandomSampler([1.0] * 8 + [0.0] * 4, 12)}, "WeightedRandomSampler"),
        ({"sampler": DistributedSampler(DATA, num_replicas=2, rank=0)}, "DistributedSampler"),
        ({"sampler": list(range(8))}, "list"),
        ({"sampler": SequentialSampler(range(8))}, "one of 8"),
        ({"sampler": RandomSampler(DATA, replacement=True)}, "with replacement"),
        ({"sampler": RandomSampler(DATA, num_samples=8)}, "one of 8"),
        ({"batch_sampler": BatchSampler(SubsetRandomSampler(range(8)), 4, drop_last=False)}, "SubsetRandomSampler"),
        ({"batch_sampler": [[0, 1], [2, 3]]}, "batch_sampler, found list"),
        ({"batch_size": 5, "drop_last": True}, "drops the last 2"),
        ({"batch_size": None}, "batch_size=None"),
        ({"num_workers": 1, "worker_init_fn": print}, "worker_init_fn"),
    ],
)
def test_a_loader_whose_choice_of_items_would_be_lost_is_refused(settings, message):
    with pytest.raises(UserError, match=f"data_loader: .*{message}"):
        private(nn.Linear(1, CLASSES), DataLoader(DATA, **settings))


@pytest.mark.parametrize("loader", [Reversed(DATA), iter(DATA), "loader of make_private"])
def test_other_ways_to_make_batches_are_refused(loader):
    if isinstance(loader, str):
        *_, loader = private(nn.Linear(1, CLASSES), DATA)
    with pytest.raises(UserError, match="data_loader: Expected a"):
        private(nn.Linear(1, CLASSES), loader)


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 4, "shuffle": True, "generator": torch.Generator().manual_seed(3)},
        {"batch_size": 5, "shuffle": True, "drop_last": True},
        {"batch_size": 4, "drop_last": True, "num_workers": 2},
        {"sampler": RandomSampler(DATA, generator=torch.Generator().manual_seed(3))},
    ],
)
def test_a_loader_of_all_items_is_taken_with_its_generator(settings):
    given = DataLoader(DATA, **settings)
    *_, loader = private(nn.Linear(1, CLASSES), given)
    assert loader.population == len(DATA)
    assert loader.generator is getattr(given.sampler, "generator", None)
    *_, loader = private(nn.Linear(1, CLASSES), DataLoader(Subset(DATA, range(8)), **{**settings, "sampler": None}))
    assert {int(x) for x, _ in loader for x in x} == set(range(8))


@pytest.mark.parametrize("collate", [sorted_by_class, without_the_last_class])
def test_a_collation_that_gives_samples_to_other_patients_is_refused(collate):
    *_, loader = private(nn.Linear(1, CLASSES), DataLoader(DATA, collate_fn=collate))
    with pytest.raises(UserError, match="collate_fn that gives each item of a batch one row"):
        next(iter(loader))


# Sampling


def test_a_sampling_probability_is_what_was_said():
    engine, owners = PrivacyEngine(), [i // 3 for i in range(132)]
    data = TensorDataset(*samples(132, torch.complex64))
    chance = {"sampling_probability": P, "noise_multiplier": 7.9565, "rounds": 3}
    model, optimizer, loader = private(native(torch.complex64), data, engine, patients=owners, **chance)
    assert (loader.sampling_probability, optimizer.expected_batch_size, len(loader)) == (P, 24, 3)
    optimizer.attach_step_hook(lambda _: None)  # which replaces a hook
    for _ in range(3):
        step(model, optimizer, loader)
    with pytest.raises(AttributeError, match="sampling_probability"):
        loader.sampling_probability = 1.0
    assert engine.rounds == {NoisySum(P, 7.9565): 3}
    assert engine.get_epsilon(1e-3) == composition.epsilon({NoisySum(P, 7.9565): 3}, 1e-3)


def test_patients_are_drawn_whole_and_independently():
    """44 patients of two samples each: counts and pairs are those of independent draws."""
    generator = torch.Generator().manual_seed(5)
    items = torch.arange(88)
    dataset = DataLoader(TensorDataset(items, items), batch_size=7, shuffle=True, generator=generator)
    owners = np.repeat(np.arange(44), 2)
    model = nn.Linear(1, 1)
    rounds = 4000
    _, _, loader = private(model, dataset, patients=owners, sampling_probability=P, rounds=rounds)
    assert len(loader) == rounds
    drawn = np.zeros((rounds, 88))
    for number, (batch, _) in enumerate(loader):
        drawn[number, batch] = 1
    assert (drawn[:, 0::2] == drawn[:, 1::2]).all()
    drawn = drawn[:, 0::2]
    # Bounds of five standard errors.
    deviation = np.sqrt(P * (1 - P))
    assert np.abs(drawn.mean(axis=0) - P).max() < 5 * deviation / np.sqrt(rounds)
    assert drawn.sum(axis=1).var() == pytest.approx(44 * P * (1 - P), rel=5 * np.sqrt(2 / rounds))
    across_rounds = np.corrcoef(drawn[:-1].ravel(), drawn[1:].ravel())[0, 1]
    assert abs(across_rounds) < 5 / np.sqrt(drawn.size)


def test_a_round_that_draws_nobody_releases_noise_and_nothing_else():
    """The stand-in of zeros has a gradient, which must not show."""
    model, engine = native(), PrivacyEngine()
    stand_in = plain_gradient(model, torch.zeros(1, 1, 8, 8, dtype=torch.complex128), torch.zeros(1, dtype=torch.long))
    assert stand_in.any()
    settings = {"sampling_probability": 1e-9, "population": 3, "rounds": 1}
    parts = private(model, TensorDataset(*samples(3)), engine, **settings)
    assert not step(*parts).any()
    parts = private(parts[0].to_standard_module(), TensorDataset(*samples(3)), engine, noise_multiplier=2.0, **settings)
    found = step(*parts) * parts[1].expected_batch_size
    assert float(found.std()) == pytest.approx(2.0, rel=5 / np.sqrt(2 * len(found)))
    assert engine.rounds.total() == 2


# Refusals


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"poisson_sampling": False}, "poisson_sampling"),
        ({"max_grad_norm": [1.0, 1.0]}, "max_grad_norm"),
        ({"population": 2}, "population=2"),
        ({"patients": [1, 2]}, "found 2 labels"),
        ({"patients": ["a", "a", None]}, "patients"),
        ({"sampling_probability": 1.1}, "sampling_probability"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"max_grad_norm": 0.0}, "max_grad_norm"),
        ({"rounds": 0}, "rounds"),
    ],
)
def test_what_cannot_be_made_right_is_refused(changes, message):
    model = native()
    with pytest.raises((UserError, ValueError, TypeError), match=message):
        private(model, TensorDataset(*samples(3)), **changes)
    # Nothing is left on the network by a refused call.
    step(*private(model, TensorDataset(*samples(3))))


def test_networks_in_half_precision_are_refused():
    with pytest.raises(UserError, match=r"refuses half precision, found torch\.bfloat16"):
        private(nn.Linear(64, CLASSES, dtype=torch.bfloat16), TensorDataset(*samples(3, torch.float32)))


@pytest.mark.parametrize("place", ["forward", "step"])
def test_autocast_is_refused(place):
    model, optimizer, loader = private(copy.deepcopy(REAL), TensorDataset(*samples(3, torch.float32)))
    x, y = next(iter(loader))

    def train() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=place == "forward"):
            loss = functional.cross_entropy(model(x), y)
        loss.backward()
        with torch.autocast("cpu", torch.bfloat16, enabled=place == "step"):
            optimizer.step()

    with pytest.raises(UserError, match=r"refuses half precision, found torch\.bfloat16"):
        train()


def test_other_networks_optimizers_and_datasets_are_refused():
    model = native()
    x, y = samples(3)
    wrapped, *_ = private(model, TensorDataset(x, y))
    with pytest.raises(UserError, match="to_standard_module"):
        private(wrapped, TensorDataset(x, y))
    model = wrapped.to_standard_module()
    settings = {"sampling_probability": 0.5, "noise_multiplier": 1.0, "max_grad_norm": 1.0}
    stranger = torch.optim.SGD(native().parameters(), lr=0.1)
    with pytest.raises(UserError, match="optimizer"):
        PrivacyEngine().make_private(module=model, optimizer=stranger, data_loader=TensorDataset(x, y), **settings)

    with pytest.raises(UserError, match="not compiled"):
        private(torch.compile(native(), backend="eager"), TensorDataset(x, y))
    with pytest.raises(UserError, match="IterableDataset"):
        private(model, ChainDataset([]))
    distributed = DistributedDataParallel.__new__(DistributedDataParallel)
    nn.Module.__init__(distributed)
    with pytest.raises(UserError, match="one process"):
        check_network(distributed, stranger)


def test_another_release_of_opacus_is_refused(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda _: "1.7.0")
    with pytest.raises(UserError, match=r"found 1\.7\.0"):
        exec(Path(zetadp.opacus.__file__).read_text(), {"__name__": "zetadp.opacus"})


# Training loops that would break the guarantee


def test_a_step_needs_a_whole_batch_of_the_loader():
    x, y = samples(3)
    model, optimizer, loader = private(native(), TensorDataset(x, y))
    functional.cross_entropy(model(x), y).backward()
    with pytest.raises(UserError, match="data loader that make_private returned"):
        optimizer.step()
    step(model, optimizer, loader)
    with pytest.raises(UserError, match="none since the last step"):
        optimizer.step()
    x, y = next(iter(loader))
    functional.cross_entropy(model(x[:2]), y[:2]).backward()
    with pytest.raises(UserError, match="each of the 3 samples"):
        optimizer.step()


def test_opacus_may_not_cut_batches_into_pieces():
    _, optimizer, loader = private(native(), TensorDataset(*samples(6)), patients=[0, 0, 0, 1, 1, 1])
    with pytest.raises(UserError, match="BatchMemoryManager"):
        BatchMemoryManager(data_loader=loader, max_physical_batch_size=2, optimizer=optimizer).__enter__()


# The example of the page


def test_the_ledger_of_the_document_is_accounted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for example in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL):
        exec(example, names)
    capsys.readouterr()
    assert main(["ledger", "run.jsonl", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["private_rows"]["epsilon"] == composition.epsilon(
        {NoisySum(P, names["optimizer"].noise_multiplier): 20}, 1e-3
    )
    assert found["guarantee"] == "simulated"
