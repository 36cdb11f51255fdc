"""What directions must be: drawn round that of the clipped sum, as the ledger says, and counted as what they cost."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from scipy import stats
from torch import Tensor
from training_builder import joined

from mutants.installing import FALSE_ALARM, certain, count_is_plausible, mutant, replacement, statistical
from mutants.of_contributions import contributions
from mutants.of_records import PLANS, Server, stated, trained, true_epsilon
from mutants.stub import CLIP, Stub, federation, random_records
from papers.directions.mechanism import Direction, cosine_law
from zetadp.account.book import recorded_runs
from zetadp.accounting.events import Event

ROUNDS = 200
AVERAGED = 300
"""Directions whose mean is one degree from the centre, give or take a twentieth of a degree."""
CLEAR, FAINT = 0.05, 1.5e-3
"""Noise multipliers: a mean cosine of 0.3 in the stub's 780 dimensions; and one of 0.96."""


def _above_the_middle(values: Tensor, middle: float, what: str) -> None:
    """Compare how many values lie above what half of them should exceed; two such comparisons make a check."""
    count = int((values > middle).sum())
    found = f"{count} of {values.numel()} {what} lie above {middle:.4f}, which half of them should exceed"
    assert count_is_plausible(count, values.numel(), 0.5, FALSE_ALARM / 2), found


def _median_cosine(event: Event) -> float:
    law = cosine_law(event.kind.concentration, event.kind.dimension)
    reached = np.exp(law.towards).sum(axis=1).cumsum()
    return float(np.interp(0.5, reached, law.edges[1:]))


def directions_are_as_stated(sent: Tensor, centre: Tensor, event: Event) -> None:
    """Compare unit vectors, shape (vector, dimension), with the law round a centre that an event states.

    Their cosines with the centre x have the stated median; and so has the part along j x, relative to what is not along
    x: one coordinate of a uniform direction in p - 1 dimensions, whose square has a beta law.
    """
    x = (centre / centre.norm()).double()
    y = sent.double()
    assert torch.allclose(y.norm(dim=1), torch.ones(len(y)).double(), atol=1e-5), "a direction is no unit vector"
    cosines = y @ x
    _above_the_middle(cosines, _median_cosine(event), "cosines with the centre")
    turned = torch.stack([-x[1::2], x[0::2]], dim=1).flatten()  # as complex numbers, pair by pair
    across = (y @ turned).square() / (1 - cosines.square())
    middle = float(stats.beta.median(0.5, (event.kind.dimension - 2) / 2))
    _above_the_middle(across, middle, "squared parts along j times the centre")


@statistical
def check_empty_rounds_send_directions_as_stated(folder: Path) -> None:
    """With one patient and p = 0.02, nearly all rounds draw nobody; each sends a direction round a fixed one.

    It has the stated median of the cosine with that one, and of the part along j times it. Of 200 draws each 52 to 148
    may lie above (alarm 5e-6). Without noise along j none does; where kappa is taken for the weight of the centre
    beside normal noise, all cosines do.
    """
    with federation(folder, [[0]], expected=0.02, sigma=CLEAR, directed=True) as fed:
        sent = fed.rounds(ROUNDS)[:, 0]
        assert len(fed.events()) == ROUNDS
        fixed = torch.eye(1, sent.shape[1])[0]
        directions_are_as_stated(sent, fixed, fed.events()[0])


@certain
def check_a_direction_is_that_of_the_clipped_sum(folder: Path) -> None:
    """Where noise is faint, the direction is that of the sum of contributions clipped by hand, to an angle of 1 degree.

    Gradients are from a quarter of the clip to eight times as long, so that neither their plain sum nor that of their
    directions will do.
    """
    data = joined(*(random_records(1, seed=n, scale=scale) for n, scale in enumerate((0.1, 0.3, 3.0))))
    gradients = contributions(folder / "alone", data, Stub(), math.inf)
    lengths = gradients.norm(dim=1, keepdim=True)
    assert lengths[0] < 0.3 * CLIP
    assert lengths[2] > CLIP
    with federation(folder, [[0, 1, 2]], expected=3, sigma=FAINT, directed=True, records=data) as fed:
        sent = torch.stack([fed.round(number)[0].double() for number in range(AVERAGED)]).mean(dim=0)
    total = (gradients * (CLIP / lengths).clamp_max(1)).sum(dim=0)
    cosine = float(sent @ total / total.norm() / sent.norm())
    assert cosine > math.cos(math.radians(2)), f"the direction is {math.degrees(math.acos(cosine)):.1f} degrees off"


@certain
def check_the_statement_of_directions_is_that_of_all_rounds(folder: Path) -> None:
    """Epsilon is that of as many rounds as messages left a node, with opposite centres, to 1 %.

    The measure is Gaussian noise that hides no more, by a library. In the 1028 dimensions of the network it costs 0.3 %
    more than the directions.
    """
    server = Server()
    trained(folder, server, side=16, mechanism=Direction.law)
    (run,) = recorded_runs(folder / "ledger.jsonl")
    found, bound = stated(run), true_epsilon(server.releases, PLANS[0])
    assert 0.99 * bound <= found <= 1.001 * bound, f"{found} is stated, of at most {bound}"


DRAW = "papers.directions.sampler:draw_direction"
CLIPPING = "zetadp.mechanism.clipping:clip_factors"


@mutant("papers.directions.sampler:_orthogonal", check_empty_rounds_send_directions_as_stated)
def whole_complex_projection_taken_out(original, w, x):
    turned = np.stack([-x[1::2], x[0::2]], axis=1).ravel()
    return np.asarray(original(original(w, x), turned))


@mutant(DRAW, check_empty_rounds_send_directions_as_stated)
def sum_with_normal_noise_scaled_to_one(original, centre, concentration, draws):
    noise = torch.from_numpy(draws.standard_normal(len(centre))).float()
    largest = centre.norm().clamp_min(1e-12)
    return torch.nn.functional.normalize(concentration * centre / largest + noise, dim=0)


@mutant(DRAW, check_empty_rounds_send_directions_as_stated)
def sum_of_zero_sent_as_it_is(original, centre, *more):
    return torch.as_tensor(original(centre, *more)) if centre.any() else centre


@mutant(CLIPPING, check_a_direction_is_that_of_the_clipped_sum)
def direction_of_the_sum_before_clipping(original, gradients, bound):
    return original(gradients, None)


@mutant(CLIPPING, check_a_direction_is_that_of_the_clipped_sum)
def direction_of_the_sum_of_directions(original, gradients, bound):
    if bound is None:
        return original(gradients, bound)
    tiny = 1e-6
    scale, finite = original(gradients, tiny)
    return scale * (bound / tiny), finite


@mutant("zetadp.account.exposure:declared", check_the_statement_of_directions_is_that_of_all_rounds)
def directions_of_an_epoch_counted_as_one(original, history, declared_rounds):
    found = original(history, declared_rounds)
    return Counter({kind: math.ceil(kind.sampling_probability * count) for kind, count in found.items()})


@replacement("zetadp.accounting.composition:quoted", check_the_statement_of_directions_is_that_of_all_rounds)
def centres_taken_to_be_at_right_angles(original):
    def nearer(kind):
        if not isinstance(kind, Direction):
            return kind
        return replace(kind, concentration=kind.concentration * math.sin(math.pi / 4))

    def quoted(mechanisms, *more):
        return original({nearer(kind): count for kind, count in mechanisms.items()}, *more)

    return quoted
