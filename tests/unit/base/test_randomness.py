from __future__ import annotations

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


@given(first=KEYS, second=KEYS)
def test_streams_of_different_names_differ(first, second):
    assert (numbers(first) == numbers(second)) == (first == second)


def test_values_are_the_same_on_every_machine():
    """Philox is counter-based and NumPy promises its stream; a change would change every simulated cohort."""
    expected = np.random.Generator(np.random.Philox(np.random.SeedSequence(7, spawn_key=(2, 0, 3))))
    assert stream(7, Purpose.NOISE, 0, 3).random() == expected.random()
