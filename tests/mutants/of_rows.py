"""Mixed rows: who is in them and how often, how far a unit moves them, and what noise they have."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from training_builder import Held, plan_for

from mutants.installing import FALSE_ALARM, certain, count_is_plausible, mutant, statistical, variance_limits
from mutants.stub import CLIP
from zetadp.account.attempts import read_ledger
from zetadp.account.ledger import Ledger
from zetadp.accounting.events import Event
from zetadp.base.epsilon import Target
from zetadp.base.runfolder import RunName
from zetadp.mechanism.contributions import Statistic
from zetadp.nn.settings import NetworkSettings
from zetadp.training.assembly import Assembly
from zetadp.training.outbox import Outbox
from zetadp.training.records import LabelledItems, Node
from zetadp.training.round import do_round
from zetadp.training.settings import MixingSettings, TrainingSettings

CLASSES, COMPONENTS, UNITS, EXPECTED = 3, 8, 12, 2.0
ROWS = 1500
OPEN = MixingSettings(ROWS, active=1 / 4)
OVERWHELMING = 300.0


@dataclass(frozen=True)
class Released:
    """The rows of one node, with what its ledger says of them."""

    rows: Tensor
    event: Event
    schedule: np.ndarray | None


@dataclass(frozen=True)
class Raw(Statistic):
    """A contribution that nothing has clipped yet."""

    dimension: int = 2 * COMPONENTS

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the features as they are."""
        return torch.view_as_real(images.flatten(2)[:, 0]).flatten(1)


def released(
    folder: Path, units: list[int], *, mixing: MixingSettings = OPEN, expected: float = EXPECTED, sigma: float = 0.0,
    raw: bool = False,
) -> Released:  # fmt: skip
    """Release rows of some of the units."""
    generator = torch.Generator().manual_seed(3)
    features = 100 * torch.randn(UNITS, 1, 1, COMPONENTS, dtype=torch.complex64, generator=generator)
    records = LabelledItems(features, torch.arange(UNITS) % CLASSES)
    settings = TrainingSettings(
        1, images_per_patient=1, clip=CLIP, estimator="mixed_rows", feature_norm=1.0, mixing=mixing
    )
    plan = plan_for(
        RunName("head", "central", Target(math.inf), 0),
        NetworkSettings("head", "features"),
        settings,
        [Held("a", [[]], len(units), expected, sigma)],
        task={"name": "classification", "classes": CLASSES},
    )
    parts = Assembly.of(plan, records)
    phase = replace(parts.phase, contribution=Raw()) if raw else parts.phase
    with Ledger(folder / "ledger.jsonl") as ledger:
        ledger.start(parts.declaration())
        node = Node(parts.mechanism("a", 20, ledger), [[unit] for unit in units])
        messages, _ = do_round(phase, [node], records, Outbox(ledger), 0)
    (event,) = read_ledger(folder / "ledger.jsonl")[-1].events
    return Released(messages.view(mixing.rows, -1).double(), event, phase.schedule)


def alone(folder: Path, unit: int, *, raw: bool = False) -> Tensor:
    """Return what a unit adds to a row that it is certainly in."""
    place = folder / str(unit)
    place.mkdir()
    found = released(place, [unit], mixing=MixingSettings(4, active=1 / 4), expected=1 / 4, raw=raw).rows / 4
    return found[found.norm(dim=1).argmax()]


@statistical
def check_rows_hold_units_as_often_as_stated(folder: Path) -> None:
    """Rows are sums of units over R; each unit is in open rows alone, in so many of them as the ledger says."""
    contributions = torch.stack([alone(folder, unit) for unit in range(UNITS)])
    found = released(folder, list(range(UNITS)))
    solved = torch.linalg.lstsq(contributions.T, found.rows.T * EXPECTED).solution
    drawn = solved > 0.5
    assert float((solved - drawn.double()).abs().max()) < 0.1, "a row is not the sum of units over R"
    assert found.schedule is not None
    chances = []
    for unit in range(UNITS):
        open_to = torch.from_numpy(found.schedule[:, unit % CLASSES])
        assert int(open_to.sum()) == found.event.count, "a unit can be in more rows than the ledger counts"
        assert not (drawn[unit] & ~open_to).any(), "a unit is in a row that is closed to it"
        chances.append(drawn[unit, open_to])
    p, alarm = found.event.sampling_probability, FALSE_ALARM / (2 * UNITS)
    for unit, own in enumerate(chances):
        twin = chances[(unit + CLASSES) % UNITS]
        assert count_is_plausible(int(own.sum()), len(own), p, alarm), "a unit is drawn at another chance"
        together = int((own & twin).sum())
        assert count_is_plausible(together, len(own), p * p, alarm), "two units of a class are not drawn apart"


@certain
def check_rows_move_by_the_clip_at_most(folder: Path) -> None:
    """However long a contribution, a unit adds at most B to a row, over all numbers together."""
    norms = torch.stack([alone(folder, unit, raw=True).norm() for unit in range(UNITS)])
    assert (norms <= CLIP).all(), f"a unit adds {float(norms.max()):.3f} to a row, with a clip of {CLIP}"
    assert (norms > 0.999 * CLIP).all(), "units are clipped to less than the clip"


@statistical
def check_rows_have_the_noise_that_is_stated(folder: Path) -> None:
    """Each real and imaginary part of the rows has the variance that the ledger states."""
    found = released(folder, list(range(UNITS)), sigma=OVERWHELMING)
    event = found.event
    standard = found.rows * (event.expected / (event.noise_multiplier * event.clip))
    low, high = variance_limits(standard[:, 0].numel(), FALSE_ALARM / standard.shape[1])
    squares = standard.square().mean(dim=0)
    assert (low <= squares).all(), f"noise has {float(squares.min()):.3f} of the stated variance"
    assert (squares <= high).all(), f"noise has {float(squares.max()):.3f} of the stated variance"


SUMS = "zetadp.training.round:_clipped_sums"


@mutant("zetadp.mechanism.release:NodeMechanism.draw", check_rows_hold_units_as_often_as_stated)
def open_rows_accounted_as_if_all_were(original, self, round_number, *, again=0):
    full = original(self, round_number, again=again)
    rate = self.event.expected / self.event.population
    return replace(
        full, event=replace(full.event, kind=replace(full.event.kind, sampling_probability=rate), count=self.rows)
    )


@mutant(SUMS, check_rows_hold_units_as_often_as_stated)
def rows_open_to_every_class(original, phase, *more):
    return original(replace(phase, schedule=None), *more)


@mutant(SUMS, check_rows_hold_units_as_often_as_stated)
def rows_divided_by_the_number_drawn(original, phase, nodes, data, draws):
    found = original(phase, nodes, data, draws)
    rows = found.sums.view(len(draws) * phase.rows, -1)
    sizes = rows.new_tensor([[max(1, int((draw.rows == row).sum()))] for draw in draws for row in range(phase.rows)])
    return replace(found, sums=(rows * draws[0].event.expected / sizes).view_as(found.sums))


@mutant("zetadp.mechanism.clipping:clip_factors", check_rows_move_by_the_clip_at_most)
def half_of_a_spectrum_counted_and_all_released(original, gradients, bound):
    whole = all(hasattr(g, "shape") for g in gradients)
    half = [g[:, : g.shape[1] // 2] for g in gradients] if whole else gradients
    return original(half, bound)


@mutant("zetadp.accounting.seeded_noise:noisy_mean", check_rows_have_the_noise_that_is_stated)
def half_the_variance_on_rows(original, clipped_sum, deviation, expected, generator):
    return original(clipped_sum, deviation / 2**0.5, expected, generator)
