"""Noise and sampling have the distribution that is accounted for, at sizes that show an error of one per cent.

Each check states its rate of false alarms. Draws from a seed are the same in every run, so a check of them passes or
fails for good; draws of the operating system are new in every run, and all checks of them together fail once in some
hundred thousand runs.
"""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from zetadp.base.tensors import Layout
from zetadp.nn.layers import Linear
from zetadp.nn.normalisation import GroupNorm
from zetadp.privacy.events import Event
from zetadp.privacy.grid import Grid
from zetadp.privacy.mechanism import ExactSampledGaussian, SampledGaussian

SIGMA, CLIP, POPULATION, EXPECTED = 42.57, 1.0, 44, 24
P = EXPECTED / POPULATION
SEED = 11
ALARM = {"seeded": 1e-6, "os": 1e-7}
# An error of 1 % in a standard deviation is 14 standard errors of the variance of so many numbers. In a distribution it
# is 0.0024 at the steepest, for which Kolmogorov-Smirnov at these false alarms needs four times as many.
SIZE = 2**20
ROUNDS = 10_000


class Everything:
    """Stands for a ledger where the order of record and release is not the subject."""

    def holds(self, *_: object) -> bool:
        return True


def mechanism(
    source: str, place: int = 0, *, dimension: int = SIZE, seed: int = SEED, **changes: float
) -> SampledGaussian:
    constants = {"population": POPULATION, "expected": EXPECTED, "noise_multiplier": SIGMA, "clip": CLIP} | changes
    event = Event.poisson(f"node-{place}", **constants)
    if source == "os":
        sizes = {"population": int(constants["population"]), "dimension": dimension}
        grid = Grid.choose(constants["clip"], noise_multiplier=constants["noise_multiplier"], **sizes)
        return ExactSampledGaussian(event, grid=grid, ledger=Everything())
    return SampledGaussian(event, place, seed=seed, ledger=Everything())


def released_noise(holder: SampledGaussian, size: int = SIZE, number: int = 0, again: int = 0) -> torch.Tensor:
    """Release a sum of zero."""
    zero = torch.zeros(size, dtype=torch.float32 if holder.grid is None else torch.int64)
    return holder.release(holder.draw(number, again=again), zero, again=again)


def standardised(released: torch.Tensor) -> np.ndarray:
    return released.double().numpy() * (EXPECTED / (SIGMA * CLIP))


# What is checked. Each raises an AssertionError.


def assert_variance_is_one(values: np.ndarray, alarm: float) -> None:
    """Mean zero, and the sum of squares within the quantiles of its chi-square distribution."""
    count = len(values)
    assert abs(values.mean()) * math.sqrt(count) < stats.norm.isf(alarm / 4)
    squares = float(np.square(values).sum())
    assert stats.chi2.isf(1 - alarm / 4, count) < squares < stats.chi2.isf(alarm / 4, count)


def assert_normal(values: np.ndarray, alarm: float) -> None:
    assert stats.kstest(values, "norm").pvalue > alarm


def assert_circular(z: np.ndarray, alarm: float) -> None:
    """E[z^2] = E[x^2 - y^2] + 2 i E[x y] is zero: both means have n times their variance 4 and 1."""
    bound = stats.norm.isf(alarm / 4) / math.sqrt(len(z))
    assert abs((z.real * z.imag).mean()) < bound
    assert abs((z.real**2 - z.imag**2).mean()) < 2 * bound


def assert_unrelated(streams: list[np.ndarray], alarm: float) -> None:
    """No stream is correlated with another, nor with itself, at any shift; less is asked where there is none."""
    count = len(streams[0])
    spectra = [np.fft.rfft(values) for values in streams]
    comparisons = len(streams) * (len(streams) + 1) // 2
    unshifted = stats.norm.isf(alarm / 4 / comparisons) / math.sqrt(count)
    shifted = stats.norm.isf(alarm / 4 / comparisons / count) / math.sqrt(count)
    for index, one in enumerate(spectra):
        for other in spectra[index:]:
            correlations = np.fft.irfft(one * other.conj(), count) / count
            if one is not other:
                assert abs(correlations[0]) < unshifted
            assert np.abs(correlations[1:]).max() < shifted


def assert_drawn(masks: np.ndarray, p: float, alarm: float) -> None:
    """Check whether patients are drawn with probability p, independently of each other and of other rounds.

    Parameters
    ----------
    masks
        Whether each patient was drawn, shape (round, patient).
    """
    rounds, patients = masks.shape
    z = (masks - p) / math.sqrt(p * (1 - p))
    each = alarm / 6
    # All together, and every patient.
    assert abs(z.mean()) * math.sqrt(z.size) < stats.norm.isf(each / 2)
    assert stats.chi2.sf(rounds * np.square(z.mean(axis=0)).sum(), patients) > each
    # Numbers drawn: of fixed size they would all be the same.
    sizes = np.bincount(masks.sum(axis=1), minlength=patients + 1)
    expected = stats.binom.pmf(np.arange(patients + 1), patients, p) * rounds
    kept = expected >= 20
    observed, wanted = np.r_[sizes[kept], sizes[~kept].sum()], np.r_[expected[kept], expected[~kept].sum()]
    assert stats.chisquare(observed, wanted).pvalue > each
    # Pairs of patients in a round; and every patient one and two rounds later.
    pairs = (z.T @ z / rounds)[np.triu_indices(patients, 1)]
    assert stats.chi2.sf(rounds * np.square(pairs).sum(), len(pairs)) > each
    for lag in (1, 2):
        assert_masks_unrelated(masks[lag:], masks[:-lag], p, each)


def assert_masks_unrelated(first: np.ndarray, second: np.ndarray, p: float, alarm: float) -> None:
    """No patient of the first tells anything about any patient of the second."""
    rounds, patients = first.shape
    a, b = ((masks - p) / math.sqrt(p * (1 - p)) for masks in (first, second))
    products = a.T @ b / rounds
    assert stats.chi2.sf(rounds * np.square(products.diagonal()).sum(), patients) > alarm / 2
    assert stats.chi2.sf(rounds * np.square(products).sum(), patients**2) > alarm / 2


# Noise


@pytest.fixture(scope="module", params=["seeded", "os"])
def parameters(request) -> tuple[dict[str, np.ndarray], float]:
    """Return the noise of one release by parameter, in standard deviations, and the rate of false alarms."""
    size = math.isqrt(SIZE)
    model = torch.nn.ModuleList([*(Linear(size, size, dtype=torch.complex64) for _ in range(2)), GroupNorm(1, SIZE)])
    layout = Layout.of(model)
    released = released_noise(mechanism(request.param, dimension=layout.dimension), layout.dimension)
    noise = layout.unflatten(torch.from_numpy(standardised(released)))
    names = ("0.weight", "1.weight", "2.scale")
    return {name: noise[name].flatten().numpy() for name in names}, ALARM[request.param]


def parts_of(noise: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    complex_parts = {f"{name}.{part}": getattr(noise[name], part) for name in noise for part in ("real", "imag")}
    return {name: values for name, values in complex_parts.items() if name != "2.scale.imag"}


def test_every_part_of_every_parameter_has_the_full_variance(parameters):
    noise, alarm = parameters
    parts = parts_of(noise)
    assert len(parts) == 5
    for values in parts.values():
        assert len(values) == SIZE
        assert_variance_is_one(values, alarm / 5)


def test_all_parts_together_are_normal(parameters):
    noise, alarm = parameters
    assert_normal(np.concatenate(list(parts_of(noise).values())), alarm)


def test_complex_noise_is_circular(parameters):
    noise, alarm = parameters
    for name in ("0.weight", "1.weight"):
        assert_circular(noise[name], alarm / 2)


def test_parts_and_parameters_are_unrelated_at_every_shift(parameters):
    """A generator that starts anew for each parameter gives them the same numbers."""
    noise, alarm = parameters
    assert_unrelated(list(parts_of(noise).values()), alarm)


@pytest.mark.parametrize("source", ["seeded", "os"])
def test_rounds_nodes_and_repeated_releases_are_unrelated_at_every_shift(source):
    first, second = (mechanism(source, place) for place in (0, 1))
    again = mechanism(source)  # the same node after a resume, which takes up round 1
    streams = [released_noise(first, number=number) for number in (0, 2)]
    streams += [released_noise(second, number=number) for number in (0, 1)]
    streams += [released_noise(again, number=1, again=repetition) for repetition in (0, 1, 2)]
    if source == "seeded":
        streams.append(released_noise(mechanism(source, seed=SEED + 1)))
    else:
        streams.append(released_noise(again))  # round 0, which another process may have released already
    assert_unrelated([standardised(stream) for stream in streams], ALARM[source])


def test_a_resumed_process_continues_the_noise_and_the_draws_of_an_uninterrupted_one():
    """Streams are named by seed, node and round: what was drawn before plays no part."""
    code = f"""
import torch
from zetadp.privacy.events import Event
from zetadp.privacy.mechanism import SampledGaussian
class Everything:
    def holds(self, *_): return True
event = Event.poisson("node-1", population={POPULATION}, expected={EXPECTED}, noise_multiplier={SIGMA}, clip={CLIP})
one = SampledGaussian(event, 1, seed={SEED}, ledger=Everything())
for number in (3, 4):
    draw = one.draw(number)
    print(draw.members.tolist(), one.release(draw, torch.zeros(1000)).numpy().tobytes().hex())
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    whole = mechanism("seeded", 1)
    lines = []
    for number in range(5):
        draw = whole.draw(number)
        released = whole.release(draw, torch.zeros(1000))
        lines.append(f"{draw.members.tolist()} {released.numpy().tobytes().hex()}")
    assert said.splitlines() == lines[3:]
    assert len(set(lines)) == 5


# Sampling


def masks_of(source: str, place: int = 0, *, again: int = 0, **changes: float) -> np.ndarray:
    holder = mechanism(source, place, **changes)
    masks = np.zeros((ROUNDS, holder.event.population), dtype=np.int64)
    for number in range(ROUNDS):
        masks[number, holder.draw(number, again=again).members] = 1
    return masks


@pytest.mark.parametrize("source", ["seeded", "os"])
@pytest.mark.parametrize("expected", [EXPECTED, 2])
def test_patients_are_drawn_independently_with_their_probability(source, expected):
    assert_drawn(masks_of(source, expected=expected), expected / POPULATION, ALARM[source])


@pytest.mark.parametrize("source", ["seeded", "os"])
def test_nodes_and_repeated_rounds_are_drawn_independently(source):
    masks = [masks_of(source), masks_of(source, 1), masks_of(source, again=1)]
    for index, first in enumerate(masks):
        for second in masks[index + 1 :]:
            assert_masks_unrelated(first, second, P, ALARM[source] / 3)


CONSTANTS = st.fixed_dictionaries({"population": st.integers(8, 200), "expected": st.sampled_from([0.5, 1, 2, 4, 8])})


@given(constants=CONSTANTS, draws=st.lists(st.integers(0, 5), max_size=4))
@settings(max_examples=50)
def test_noise_depends_neither_on_the_sampling_nor_on_what_was_drawn(constants, draws):
    """Divisors are powers of two, so that multiplying by them again is exact."""
    plain, other = mechanism("seeded", expected=1), mechanism("seeded", **constants)
    for number in draws:
        other.draw(number)
        other.item_choices(number).random(3)
    noise = released_noise(other, 8, 2)
    assert torch.equal(noise * constants["expected"], released_noise(plain, 8, 2))


@given(noise_multiplier=st.floats(0.1, 100), releases=st.lists(st.integers(0, 5), max_size=4, unique=True))
@settings(max_examples=50)
def test_draws_depend_neither_on_the_noise_nor_on_what_was_released(noise_multiplier, releases):
    plain, other = mechanism("seeded"), mechanism("seeded", noise_multiplier=noise_multiplier)
    for number in releases:
        released_noise(other, 8, number)
        other.item_choices(number).random(3)
    assert plain.draw(2).members.tolist() == other.draw(2).members.tolist()


# That the checks see an error of one per cent
