from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

import zetadp.core.records
import zetadp.privacy.mechanism
from zetadp.base.randomness import Purpose
from zetadp.base.tensors import Layout
from zetadp.core.records import Node, choose_items, items_of
from zetadp.nn.layers import Linear
from zetadp.nn.normalisation import GroupNorm
from zetadp.privacy.bessel import mean_cosine, order_of
from zetadp.privacy.directions import Direction
from zetadp.privacy.events import Event
from zetadp.privacy.grid import Grid
from zetadp.privacy.kinds import NoisySum
from zetadp.privacy.ledger import Ledger
from zetadp.privacy.mechanism import ExactSampledGaussian, SampledGaussian


class HoldsEverything:
    """Stands for a ledger where the order of record and release is not the subject."""

    def holds(self, event: Event, times: int = 1) -> bool:
        return True


def mechanism(
    place: int = 0, *, seed: int = 5, ledger: object = None, dimension: int = 0, **changes: float
) -> SampledGaussian:
    settings = {"population": 44, "expected": 24, "noise_multiplier": 1.5, "clip": 2.0} | changes
    event = Event.poisson(f"node-{place}", **settings)
    if dimension:
        event = replace(event, kind=Direction.hiding(event.kind, dimension))
    return SampledGaussian(event, place, seed=seed, ledger=ledger or HoldsEverything())


def noise(mechanism: SampledGaussian, size: int, round_number: int = 0, again: int = 0) -> torch.Tensor:
    return mechanism.release(mechanism.draw(round_number), torch.zeros(size), again=again).double()


def test_noise_has_full_variance_in_both_parts_of_complex_and_in_real_coordinates():
    sigma, clip, expected = 1.5, 2.0, 3
    model = torch.nn.ModuleList([Linear(400, 250, dtype=torch.complex64), GroupNorm(1, 50_000)])
    layout = Layout.of(model)
    release = noise(mechanism(population=7, expected=expected, noise_multiplier=sigma, clip=clip), layout.dimension)
    parameters = layout.unflatten(release)
    weight = parameters["0.weight"].flatten()
    real = torch.cat([parameters["1.scale"], parameters["1.shift"]])
    wanted = (sigma * clip / expected) ** 2
    for part in (weight.real, weight.imag, real):
        count = len(part)
        assert count == 100_000
        # Standard errors of a Gaussian sample: sqrt(2/n) of the variance, 1/sqrt(n) of the mean.
        assert float(part.square().mean()) == pytest.approx(wanted, rel=5 * math.sqrt(2 / count))
        assert abs(float(part.mean())) < 5 * math.sqrt(wanted / count)
        assert stats.kstest(part.numpy() / math.sqrt(wanted), "norm").pvalue > 1e-6
    count = len(weight)
    assert abs(float(np.corrcoef(weight.real, weight.imag)[0, 1])) < 5 / math.sqrt(count)
    # The relation (pseudo-covariance) E[z z] is zero: the noise is circular.
    assert abs(complex((weight * weight).mean())) < 5 * math.sqrt(8 / count) * wanted


def test_noise_is_the_same_for_the_same_place_and_independent_everywhere_else():
    size = 20_000
    first = noise(mechanism(), size)
    assert torch.equal(first, noise(mechanism(), size))
    others = {
        "round": noise(mechanism(), size, round_number=1),
        "node": noise(mechanism(1), size),
        "repetition": noise(mechanism(), size, again=1),
        "second repetition": noise(mechanism(), size, again=2),
        "run": noise(mechanism(seed=6), size),
    }
    everything = torch.stack([first, *others.values()])
    correlations = np.corrcoef(everything) - np.eye(len(everything))
    assert np.abs(correlations).max() < 5 / math.sqrt(size)
    # Neither shifted by one place.
    shifted = np.corrcoef(everything[:, 1:], everything[:, :-1])
    assert np.abs(shifted - np.eye(len(shifted))).max() < 5 / math.sqrt(size)


def test_no_two_uses_share_a_stream(monkeypatch):
    """Sampling, noise and choice of images have streams of their own, in every round, at every node, in every run."""
    used = []
    original = zetadp.privacy.mechanism.stream

    def remember(*key: int) -> np.random.Generator:
        used.append(tuple(map(int, key)))
        return original(*key)

    monkeypatch.setattr(zetadp.privacy.mechanism, "stream", remember)
    labels = np.array([0, 0, 1, 1])
    for seed in (5, 6):
        for place in (0, 1):
            one = mechanism(place, seed=seed)
            for number in range(3):
                one.draw(number, again=1)
                draw = one.draw(number)
                choose_items(Node(one, items_of([[i] for i in range(44)], 4)), draw, np.tile(labels, 44), 2)
                for again in (0, 1):
                    one.release(draw, torch.zeros(2), again=again)
    assert len(set(used)) == len(used)
    by_purpose = Counter(key[1] for key in used)
    assert by_purpose == {Purpose.SAMPLING: 24, Purpose.IMAGES: 12, Purpose.NOISE: 24}


def test_a_round_released_again_is_drawn_again():
    """Two noises on one draw cost more than two rounds: at p = 0.1, sigma 1.53 each shows the sum at half variance."""
    one = mechanism(population=400, expected=100)
    first, second = one.draw(3).members, one.draw(3, again=1).members
    assert not np.array_equal(first, second)
    # Independent draws of a quarter each share a sixteenth of 400.
    assert abs(len(np.intersect1d(first, second)) - 25) < 5 * math.sqrt(25)


def test_every_patient_is_drawn_independently_with_probability_p():
    population, expected, rounds = 44, 24, 3000
    one = mechanism(population=population, expected=expected)
    mask = np.zeros((rounds, population))
    for number in range(rounds):
        draw = one.draw(number)
        mask[number, draw.members] = 1
        assert len(set(draw.members)) == len(draw.members)
    p = expected / population
    standardised = (mask - p) / math.sqrt(p * (1 - p))
    # Frequency of each patient, jointly.
    assert stats.chi2.sf(rounds * (standardised.mean(axis=0) ** 2).sum(), population) > 1e-6
    # Pairs of patients: fixed-size batches would correlate them by -1/43, which their sum shows.
    sizes = mask.sum(axis=1)
    assert sizes.var() == pytest.approx(population * p * (1 - p), rel=5 * math.sqrt(2 / rounds))
    pairs = (standardised.T @ standardised / rounds)[np.triu_indices(population, 1)]
    assert np.abs(pairs).max() < 5 / math.sqrt(rounds)
    # Rounds: the same patient one and two rounds later.
    for lag in (1, 2):
        later = (standardised[lag:] * standardised[:-lag]).mean(axis=0)
        assert np.abs(later).max() < 5 / math.sqrt(rounds)


def test_nodes_and_runs_draw_differently():
    members = [set(mechanism(place, seed=seed).draw(3).members) for place, seed in ((0, 5), (1, 5), (0, 6), (1, 6))]
    assert len({frozenset(m) for m in members}) == 4
    assert members[0] == set(mechanism().draw(3).members)


def test_full_participation_draws_everybody():
    assert mechanism(expected=44).draw(0).members.tolist() == list(range(44))


def test_a_round_that_draws_nobody_releases_noise():
    one = mechanism(population=1, expected=0.01)
    draw = one.draw(0)
    assert len(draw.members) == 0
    size = 50_000
    release = one.release(draw, torch.zeros(size)).double()
    wanted = (1.5 * 2.0 / 0.01) ** 2
    assert float(release.square().mean()) == pytest.approx(wanted, rel=5 * math.sqrt(2 / size))


@pytest.mark.parametrize("expected", [0.5, 3, 24])
def test_the_divisor_is_the_expected_number_never_the_realised_one(expected):
    one = mechanism(expected=expected, noise_multiplier=0)
    realised = set()
    for number in range(20):
        draw = one.draw(number)
        realised.add(len(draw.members))
        assert one.release(draw, torch.full((3,), 6.0)).tolist() == pytest.approx([6 / expected] * 3)
    assert len(realised) > 1


def test_noise_is_added_to_the_sum_and_leaves_it_unchanged():
    one = mechanism()
    draw = one.draw(0)
    total = torch.arange(1000.0)
    kept = total.clone()
    difference = one.release(draw, total) - mechanism().release(draw, torch.zeros(1000))
    torch.testing.assert_close(difference, total / 24, rtol=1e-5, atol=1e-5)
    assert torch.equal(total, kept)


def test_the_event_says_what_was_done():
    event = mechanism(1).draw(7).event
    assert event == Event("node-1", 7, 44, 24, 2.0, NoisySum(24 / 44, 1.5))


def test_nothing_is_released_before_its_event_is_recorded(tmp_path):
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.start({})
        one = mechanism(ledger=ledger)
        draw = one.draw(0)
        with pytest.raises(RuntimeError, match="before its release"):
            one.release(draw, torch.zeros(3))
        ledger.record([mechanism(1).draw(0).event])
        with pytest.raises(RuntimeError, match="before its release"):
            one.release(draw, torch.zeros(3))
        ledger.record([draw.event])
        with pytest.raises(RuntimeError, match="before its release, 2 times"):
            one.release(draw, torch.zeros(3), again=1)
        one.release(draw, torch.zeros(3))
        with pytest.raises(RuntimeError, match="before its release"):
            mechanism(ledger=ledger, noise_multiplier=1.4).release(
                mechanism(noise_multiplier=1.4).draw(0), torch.zeros(3)
            )
        ledger.start({})
        with pytest.raises(RuntimeError, match="before its release"):
            one.release(draw, torch.zeros(3))


def test_no_release_is_made_twice():
    """Two sums under one noise would show their difference bare, and the ledger would know of one."""
    one = mechanism()
    draw = one.draw(0)
    one.release(draw, torch.zeros(3))
    with pytest.raises(RuntimeError, match="was released already"):
        one.release(draw, torch.ones(3))
    one.release(draw, torch.ones(3), again=1)
    with pytest.raises(RuntimeError, match="was released already"):
        one.release(draw, torch.ones(3), again=1)


@pytest.mark.parametrize("expected", [0, -1, 44.5])
def test_expected_patients_beyond_the_population_are_refused(expected):
    with pytest.raises(ValueError, match="Expected"):
        mechanism(expected=expected)


@pytest.mark.parametrize("change", [{"kind": NoisySum(0.5, 1.5)}, {"count": 2}, {"expected": 12.0}])
def test_an_event_that_says_another_chance_than_is_drawn_with_is_refused(change):
    event = replace(mechanism().event, **change)
    with pytest.raises(ValueError, match="drawn for with the chance"):
        SampledGaussian(event, 0, seed=5, ledger=HoldsEverything())


def test_noise_without_a_clipping_norm_is_refused():
    with pytest.raises(ValueError, match="finite clipping norm"):
        mechanism(clip=math.inf)
    assert noise(mechanism(clip=math.inf, noise_multiplier=0), 3).tolist() == [0, 0, 0]


DIMENSION = 400


def directed(**changes: float) -> SampledGaussian:
    return mechanism(**({"noise_multiplier": 0.2} | changes), dimension=DIMENSION)


def test_a_direction_is_sent_whose_cosine_with_the_sum_has_the_stated_mean_however_long_the_sum():
    one = directed()
    kappa = one.event.kind.concentration
    centre = torch.randn(DIMENSION, generator=torch.Generator().manual_seed(3))
    sent = torch.stack([one.release(one.draw(n), centre * 10.0 ** (n % 7 - 3)) for n in range(2000)]).double()
    assert torch.allclose(sent.norm(dim=1), torch.ones(2000).double(), atol=1e-6)
    cosines = (sent @ (centre.double() / centre.double().norm())).numpy()
    mean = float(mean_cosine(order_of(DIMENSION), kappa))
    variance = 1 - mean**2 - (DIMENSION - 1) * mean / kappa
    assert cosines.mean() == pytest.approx(mean, abs=5 * math.sqrt(variance / 2000))
    assert mean > 50 * math.sqrt(variance / 2000)  # so that a direction that is lost would show
    assert len({tuple(row.tolist()) for row in sent}) == 2000


def test_a_round_without_patients_sends_a_direction_round_a_fixed_one():
    one = directed(population=1, expected=0.5)
    sent = torch.stack([one.release(one.draw(n), torch.zeros(DIMENSION)) for n in range(500)]).double()
    assert torch.allclose(sent.norm(dim=1), torch.ones(500).double(), atol=1e-6)
    mean = float(mean_cosine(order_of(DIMENSION), one.event.kind.concentration))
    assert float(sent[:, 0].mean()) == pytest.approx(mean, abs=5 / math.sqrt(500 * DIMENSION))
    assert float(sent[:, 1:].mean(dim=0).abs().max()) < 6 / math.sqrt(500 * DIMENSION)


def test_a_direction_of_another_dimension_than_was_recorded_is_not_sent():
    one = directed()
    with pytest.raises(ValueError, match=f"{DIMENSION} numbers"):
        one.release(one.draw(0), torch.ones(DIMENSION + 2))


def test_nothing_but_one_sum_with_seeded_noise_can_be_a_direction():
    event = directed().event
    with pytest.raises(ValueError, match="several rows"):
        SampledGaussian(replace(event, count=2), 0, seed=1, ledger=HoldsEverything(), rows=2)
    grid = Grid.choose(event.clip, noise_multiplier=event.noise_multiplier, population=44, dimension=DIMENSION)
    with pytest.raises(ValueError, match="Gaussian"):
        ExactSampledGaussian(event, grid=grid, ledger=HoldsEverything())
