from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zetadp.base.randomness import Purpose, stream

KEYS = st.tuples(
    st.integers(0, 2**128 - 1), st.sampled_from(Purpose), st.lists(st.integers(0, 2**31), max_size=4).map(tuple)
)


def numbers(key: tuple[int, Purpose, tuple[int, ...]]) -> list[int]:
    seed, purpose, place = key
    return stream(seed, purpose, *place).integers(0, 2**63, size=4).tolist()


@given(key=KEYS)
def test_a_stream_is_a_function_of_its_name(key):
    assert numbers(key) == numbers(key)


@given(first=KEYS, second=KEYS)
def test_streams_of_different_names_differ(first, second):
    assert (numbers(first) == numbers(second)) == (first == second)


def test_neighbouring_names_do_not_run_together():
    places = [(), (0,), (0, 0), (1,), (0, 1), (1, 0), (12,), (1, 2), (1, 2, 0)]
    seeds = (0, 1, 2**32, 2**64, 2**64 + 1)
    keys = list(itertools.product(seeds, Purpose, places))
    assert len({tuple(numbers(key)) for key in keys}) == len(keys)


def test_all_bits_of_the_seed_count():
    """PyTorch's CPU generator keeps 32 of them, so that streams of a large grid collide."""
    drawn = {tuple(numbers((1 << bit, Purpose.NOISE, (0, 0)))) for bit in range(128)}
    assert len(drawn) == 128


def test_streams_of_neighbouring_rounds_are_uncorrelated():
    size = 20_000
    drawn = np.stack([stream(7, Purpose.NOISE, 0, number).standard_normal(size) for number in range(6)])
    assert np.abs(np.corrcoef(drawn) - np.eye(6)).max() < 5 / size**0.5


def test_values_are_the_same_on_every_machine():
    """Philox is counter-based and NumPy promises its stream; a change would change every simulated cohort."""
    expected = np.random.Generator(np.random.Philox(np.random.SeedSequence(7, spawn_key=(2, 0, 3))))
    assert stream(7, Purpose.NOISE, 0, 3).random() == expected.random()
