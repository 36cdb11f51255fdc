"""Small networks and patients for the tests of the training core."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from zetadp.base.epsilon import Target
from zetadp.base.runfolder import RunName
from zetadp.base.tensors import Layout
from zetadp.base.validation import UserError
from zetadp.brain.backbone import Backbone
from zetadp.mri.decathlon import SEQUENCES
from zetadp.nn.models import NetworkSettings, build
from zetadp.training.checkpoint import RunFiles
from zetadp.training.holders import LocalHolders
from zetadp.training.loop import Trained, train
from zetadp.training.plan import NodeConstants, Plan
from zetadp.training.promise import check_noise
from zetadp.training.records import LabelledItems, items_of, single_items
from zetadp.training.settings import TrainingSettings

CLASSES, SIZE = 4, 8
CLASSIFICATION = {"name": "classification", "classes": CLASSES, "balanced": True}
TINY = NetworkSettings(widths=(2, 4), convolutions=1, head="pooled", groups=2)
NETWORKS = {
    "complex hidden": NetworkSettings(widths=(2, 4), convolutions=1, hidden=3, groups=2),
    "complex pooled": NetworkSettings(widths=(2, 4), convolutions=2, head="pooled", groups=2),
    "real k-space": NetworkSettings("real", widths=(2, 4), convolutions=1, hidden=3, groups=2),
    "real image": NetworkSettings("real", "image", widths=(2, 4), convolutions=2, head="pooled", groups=2),
    "linear": NetworkSettings("linear"),
    "complex fourier": NetworkSettings(
        widths=(2, 4), convolutions=1, head="pooled", groups=2, transform="fourier", trained="norms"
    ),
    "dense complex": NetworkSettings("dense", "complex", widths=(6, 5), activation="cardioid"),
    "dense real": NetworkSettings("dense", "image", widths=(6, 5)),
    "spectrogram complex": NetworkSettings("spectrogram", "complex", widths=(2, 3), hidden=4, activation="igaussian"),
    "spectrogram real": NetworkSettings("spectrogram", "image", widths=(2, 3), hidden=4),
    "head": NetworkSettings("head", "features", components=3),
}


@dataclass(frozen=True)
class Held:
    """A node of a test: its public constants, and which records are whose; ``single`` draws images by themselves."""

    name: str
    patients: Sequence[Sequence[int]]
    population: int
    expected: float
    noise_multiplier: float
    single: int | None = None

    def units(self, each: int) -> list[list[int]]:
        """Return the items of each unit, of records of ``each`` items."""
        found = items_of(self.patients, each)
        return found if self.single is None else single_items(found, self.single)


def plan_for(
    run: RunName, network: NetworkSettings, settings: TrainingSettings, nodes: Sequence[Held], **more: object
) -> Plan:
    """Return the plan of a test's training."""
    constants = tuple(NodeConstants(n.name, n.population, n.expected, n.noise_multiplier) for n in nodes)
    if nodes[0].single is not None:
        more = {"unit": "image", "units_of_a_person": nodes[0].single, **more}
    more = {"task": CLASSIFICATION, **more}
    plan = Plan(run, network, settings, constants, **more)
    try:
        check_noise(plan)
    except UserError:  # most tests choose the noise: a run may not be named after an epsilon that it exceeds
        return replace(plan, run=replace(run, target=Target(math.inf)))
    return plan


def train_run(
    run: RunName,
    network: NetworkSettings,
    settings: TrainingSettings,
    nodes: Sequence[Held],
    data: LabelledItems,
    validation: LabelledItems | None,
    *,
    ledger_path: Path,
    checkpoint_path: Path,
    of_plan: dict[str, object] | None = None,
    **more: object,
) -> Trained:
    """Train as the library does."""
    plan = plan_for(run, network, settings, nodes, **(of_plan or {}))
    each = items_each(data) if data.strata.any() else settings.images_per_patient
    units = [node.units(each) for node in nodes]
    files = RunFiles(ledger_path, checkpoint_path)
    after_round = more.pop("after_round", None)
    return train(LocalHolders(plan, data, units, **more), files, validation=validation, after_round=after_round)


def network(settings: NetworkSettings, seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return a network whose every parameter, biases and shifts too, is away from its starting value."""
    generator = np.random.default_rng(seed)
    model = build(settings, CLASSES, SIZE, generator)
    for parameter in model.parameters():
        parts = torch.view_as_real(parameter.detach()) if parameter.is_complex() else parameter.detach()
        parts += 0.1 * torch.from_numpy(generator.standard_normal(parts.shape)).float()
    return as_dtype(model, dtype)


def as_dtype(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Change the precision of a network; complex parameters stay complex."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype.to_complex() if parameter.is_complex() else dtype)
    return model


def patients(
    count: int, images: int, seed: int = 0, *, domain: str = "kspace", dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Return images of shape (patient, image, 1, row, column) and labels of shape (patient, image)."""
    generator = np.random.default_rng(seed)
    values = torch.from_numpy(generator.standard_normal((2, count, images, 1, SIZE, SIZE))).to(dtype)
    labels = torch.from_numpy(generator.integers(0, CLASSES, (count, images)))
    return (values[0] if domain == "image" else torch.complex(values[0], values[1])), labels


def records(count: int, images_per_class: int = 1, seed: int = 0) -> LabelledItems:
    """Return records of random k-space with a pattern for each class."""
    images, _ = patients(count, CLASSES * images_per_class, seed)
    pattern, _ = patients(1, CLASSES, 12345)
    values = images[:, :, 0] + pattern[:, :, 0].repeat_interleave(images_per_class, dim=1)
    return LabelledItems.stacked(values.unsqueeze(2), torch.arange(CLASSES).repeat_interleave(images_per_class))


def items_each(data: LabelledItems) -> int:
    """Return how many items each record has, which lie stratum after stratum."""
    ends = np.flatnonzero(np.diff(data.strata) < 0)
    return int(ends[0]) + 1 if len(ends) else len(data.strata)


def joined(*parts: LabelledItems) -> LabelledItems:
    """Return the items of several records one after the other."""
    inputs, targets = (torch.cat([getattr(part, name) for part in parts]) for name in ("inputs", "targets"))
    return LabelledItems(inputs, targets, np.concatenate([part.strata for part in parts]))


def by_record(data: LabelledItems) -> Tensor:
    """Return the inputs as a view of shape (record, item, ...)."""
    return data.inputs.view(-1, items_each(data), *data.inputs.shape[1:])


def of_record(data: LabelledItems, record: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of one record."""
    each = items_each(data)
    own = slice(each * record, each * (record + 1))
    return data.inputs[own], data.targets[own]


def backbone(seed: int = 0) -> Backbone:
    """Return a backbone of random weights with public heads of random weights."""
    settings = NetworkSettings(widths=(2, 4), convolutions=1, head="pooled", groups=2, transform="fourier")
    model = network(settings, seed).eval().requires_grad_(requires_grad=False)
    random = torch.Generator().manual_seed(seed)
    heads = {
        n: (torch.randn(CLASSES, n, dtype=torch.complex64, generator=random), torch.zeros(CLASSES) + 0j) for n in (2, 4)
    }
    centre, projection = torch.randn(8, generator=random), torch.randn(8, 8, generator=random)
    return Backbone(model, settings, SEQUENCES, SIZE, centre, projection, heads, {"made": "for tests"})


def plain_gradient(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Return the gradient of one patient's mean loss as a flat real vector, by ordinary automatic differentiation."""
    loss = functional.cross_entropy(model(images), labels)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    return Layout.of(model).flatten(dict(zip(parameters, gradients, strict=True)))
