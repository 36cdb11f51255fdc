"""Who is drawn: each patient independently, with the stated probability, in every round and at every node.

Without noise a message shows who was drawn: patients' contributions are linearly independent, so the coefficients of a
message in them are ones and zeros. Exact mechanisms need some noise, too little here to blur a coefficient.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from mutants.installing import FALSE_ALARM, count_is_plausible, mutant, statistical
from mutants.stub import federation, random_records

PATIENTS, EXPECTED = 4, 2.0
NODES, ROUNDS = 4, 100
SIDE = 2
"""Images of four pixels: 20 complex and 20 real parameters suffice to tell four patients apart."""
LARGE = 100.0
"""Scale at which every gradient of the stub exceeds the clip."""


def _drawn(folder: Path, *, exact: bool) -> tuple[Tensor, float]:
    """Return who was drawn, boolean of shape (round, node, patient), and the probability that the ledger states."""
    held = [[node * PATIENTS + i for i in range(PATIENTS)] for node in range(NODES)]
    data = random_records(NODES * PATIENTS, side=SIDE, scale=LARGE)
    with federation(folder / "alone", [[p] for own in held for p in own], expected=1, side=SIDE, records=data) as fed:
        contributions = fed.round(0).view(NODES, PATIENTS, -1).double()
    sigma = 1e-3 if exact else 0.0
    with federation(folder, held, expected=EXPECTED, sigma=sigma, side=SIDE, records=data, exact=exact) as fed:
        messages = fed.rounds(ROUNDS).double() * EXPECTED
        (probability,) = {event.sampling_probability for event in fed.attempt().events}
    # For each node all rounds at once.
    return _members(contributions, messages.permute(1, 2, 0)).permute(2, 0, 1), probability


def _members(contributions: Tensor, sums: Tensor) -> Tensor:
    """Return who is in each sum, boolean of shape (..., patient, sum).

    Parameters
    ----------
    contributions
        Shape (..., patient, dimension).
    sums
        Shape (..., dimension, sum).
    """
    shortest = float(contributions.norm(dim=-1).min())
    assert shortest > 0, "a patient that is drawn alone adds nothing"
    solved = torch.linalg.lstsq(contributions.mT, sums).solution
    drawn: Tensor = solved > 0.5
    worst = float((solved - drawn.double()).abs().max())
    assert worst < 0.1, f"a message is not a sum of patients' contributions: a coefficient is off by {worst:.2f}"
    return drawn


def _is_poisson(drawn: Tensor, p: float) -> None:
    """Compare who was drawn with independent coins of probability p, nodes pooled; all counts are binomial.

    Asked are frequencies, batch sizes, pairs at a node, pairs at two nodes, and one patient in two rounds running.
    Pairs of nodes, and of rounds, are disjoint.
    """
    sizes = drawn.sum(dim=2)
    questions = [
        (f"a node draws {size} of {PATIENTS}", sizes == size, float(stats.binom.pmf(size, PATIENTS, p)))
        for size in range(PATIENTS + 1)
    ]
    for a in range(PATIENTS):
        questions.append((f"patient {a} is drawn", drawn[..., a], p))
        questions.append((f"patient {a} is drawn two rounds running", drawn[::2, :, a] & drawn[1::2, :, a], p * p))
        questions += [
            (f"patients {a} and {b} of a node are drawn together", drawn[..., a] & drawn[..., b], p * p)
            for b in range(a)
        ]
        questions += [
            (f"patients {a} and {b} of two nodes are drawn together", drawn[:, ::2, a] & drawn[:, 1::2, b], p * p)
            for b in range(PATIENTS)
        ]
    for what, answer, chance in questions:
        found, trials = int(answer.sum()), answer.numel()
        plausible = count_is_plausible(found, trials, chance, FALSE_ALARM / len(questions))
        assert plausible, f"{what}: {found} times in {trials}, expected {chance * trials:.0f}"


@statistical
def check_patients_are_drawn_by_independent_coins(folder: Path) -> None:
    """Patients are drawn as often, together, apart and in succession as by independent coins of the stated p.

    Four nodes of four patients at p = 1/2, 100 rounds: 35 binomial counts with an alarm of 3e-7 each.

    A batch of fixed size is always two of four (150 of 400 are expected); one that is cut at three is never four (25
    are expected; none has probability 6e-12); a mask shared by two nodes draws patients of one place together in 100 of
    200 rounds instead of 50; one used in every round draws each patient always or never.
    """
    _is_poisson(*_drawn(folder, exact=False))


@statistical
def check_exact_sampling_is_by_independent_coins(folder: Path) -> None:
    """Coins from the operating system are as independent, and as often heads, as those from a seed must be."""
    _is_poisson(*_drawn(folder, exact=True))


@statistical
def check_a_repeated_round_is_drawn_anew(folder: Path) -> None:
    """A further release of a round has a draw of its own.

    That 40 coins fall alike has probability 1e-12.

    Two noises on one draw tell more than two rounds, for which the accountant takes them.
    """
    count = 40
    held = [list(range(count))]
    masks = []
    for restart in range(2):
        data = random_records(count, seed=restart)
        with federation(folder / str(restart), [[p] for p in range(count)], expected=1, records=data) as fed:
            contributions = fed.round(0).double()
        with federation(folder, held, expected=count / 2, records=data, resumed=restart > 0) as fed:
            message = fed.round(0)[0].double() * count / 2
            paid = len(fed.attempt().releases())
        masks.append(_members(contributions, message[:, None]))
    assert paid == 2, f"two releases of one round, {paid} paid for"
    assert not torch.equal(masks[0], masks[1]), "a round released twice had one draw"


DRAWN = "zetadp.mechanism.release:NodeMechanism._draw_positions"
DRAW = "zetadp.mechanism.release:NodeMechanism.draw"


def _batch(order: np.ndarray, start: int, size: int) -> np.ndarray:
    return np.sort(order[start : start + size])


@mutant(DRAWN, check_patients_are_drawn_by_independent_coins)
def batches_of_fixed_size(original, self, event, again):
    order = np.random.default_rng((self.seed, self.node_index, event.round, again)).permutation(event.population)
    return _batch(order, 0, round(event.expected))


@mutant(DRAWN, check_patients_are_drawn_by_independent_coins)
def shuffled_batches(original, self, event, again):
    size = max(1, round(event.expected))
    epoch, batch = divmod(event.round, math.ceil(event.population / size))
    order = np.random.default_rng((self.seed, self.node_index, epoch)).permutation(event.population)
    return _batch(order, batch * size, size)


@mutant(DRAW, check_patients_are_drawn_by_independent_coins)
def draw_cut_to_a_pad(original, self, round_number, *, again=0):
    full = original(self, round_number, again=again)
    return replace(full, members=full.members[: math.ceil(1.5 * self.event.expected)])


@mutant(DRAWN, check_patients_are_drawn_by_independent_coins)
def empty_draw_drawn_anew(original, self, event, again):
    members = original(self, event, again)
    further = 1000
    while not len(members):
        members = original(self, event, further)
        further += 1
    return members


@mutant(DRAWN, check_patients_are_drawn_by_independent_coins)
def mask_reused_in_every_round(original, self, event, again):
    return original(self, replace(event, round=0), again)


@mutant(DRAWN, check_patients_are_drawn_by_independent_coins)
def mask_shared_by_all_nodes(original, self, event, again):
    first = copy.copy(self)
    first.node_index = 0
    return original(first, event, again)


@mutant(DRAWN, check_a_repeated_round_is_drawn_anew)
def repeated_round_keeps_its_draw(original, self, event, again):
    return original(self, event, 0)


@mutant("zetadp.mechanism.release:bernoulli_mask", check_exact_sampling_is_by_independent_coins)
def exact_batches_of_fixed_size(original, probability, count, *more):
    return np.isin(np.arange(count), _batch(np.random.default_rng().permutation(count), 0, round(probability * count)))
