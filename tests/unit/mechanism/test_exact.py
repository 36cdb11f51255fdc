from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from zetadp.mechanism import exact
from zetadp.mechanism.exact import rounded_normal
from zetadp.mechanism.exact_decisions import STRIPS, Prefix, candidate, drop, exp_bounds, strip_sums

# sigma = 42.57 on a grid of 2**29 steps, as in training.
TRAINING = Fraction(42.57) * 2**29
SCALES = [Fraction(7, 10), Fraction(3), Fraction(50), TRAINING, Fraction(2**48)]


def random_bytes(seed: int):
    return np.random.default_rng(seed).bytes


def reference(first: np.ndarray, second: np.ndarray, scale: Fraction, source) -> list[int]:
    """The same candidates from the same words, every decision made in integers."""
    values = []
    for one, two in zip(first.tolist(), second.tolist(), strict=True):
        choice, keep = Prefix(two >> 32, 32), Prefix(two & (2**32 - 1), 32)
        magnitude = candidate(choice, Prefix(one >> 12, 52), keep, scale, source)
        if magnitude is not None:
            values.append(-magnitude if one & 1 else magnitude)
    return values


def delicate_words(scale: Fraction) -> np.ndarray:
    """Words whose uniform numbers lie at and right beside what they are compared with."""
    random = np.random.default_rng(7)
    lows, _, total, _ = strip_sums(160)
    pairs = []
    for strip in range(105):
        boundary = (lows[strip] << 32) // total
        for choice in {min(max(0, boundary + offset), 2**32 - 1) for offset in (-1, 0, 1)}:
            pairs.append((int(random.integers(2**52)), choice, int(random.integers(2**32))))
        # The middle of the strip's own interval, for what follows; the tail has none of its own.
        choice = (boundary + ((lows[strip - 1] << 32) // total if strip else 0)) // 2
        for place in [*random.integers(2**52, size=4).tolist(), 0, 2**52 - 1]:
            border = exp_bounds(drop(strip, Fraction(place, 2**52)), 32)[0]
            pairs += [(place, choice, min(max(0, border + offset), 2**32 - 1)) for offset in (-2, -1, 0, 1)]
        # Places right at the next half-integer of scale * h * (i + x) and beside it.
        at = Fraction(math.floor(scale * (strip + Fraction(1, 2)) / STRIPS) + Fraction(1, 2)) * STRIPS / scale - strip
        if 0 < at < 1:
            place = math.floor(at * 2**52)
            pairs += [(min(max(0, place + offset), 2**52 - 1), choice, 0) for offset in (-1, 0, 1)]
    first = [place << 12 | int(random.integers(2**12)) for place, _, _ in pairs]
    second = [choice << 32 | keep for _, choice, keep in pairs]
    return np.array([first, second], dtype=np.uint64)


@pytest.mark.parametrize("scale", SCALES, ids=float)
def test_vectorised_draws_are_those_of_integer_arithmetic_also_where_it_is_close(scale, monkeypatch):
    words = np.concatenate(
        [delicate_words(scale), np.random.default_rng(1).integers(0, 2**64, (2, 4000), np.uint64)], 1
    )
    asked = []

    def counted(*arguments):
        asked.append(arguments)
        return candidate(*arguments)

    monkeypatch.setattr(exact, "candidate", counted)
    assert exact._candidates(*words, scale, random_bytes(2)).tolist() == reference(*words, scale, random_bytes(2))
    assert len(asked) > 100


def test_next_to_all_ordinary_draws_are_decided_without_the_slow_path(monkeypatch):
    asked = []
    monkeypatch.setattr(exact, "candidate", lambda *arguments: asked.append(arguments))
    rounded_normal(200_000, TRAINING, source=random_bytes(1))
    assert len(asked) < 20


def test_tail_beyond_the_tables_is_reached_with_exact_bits_but_not_beyond_the_range_of_integers(monkeypatch):
    # U = 1 - 2**-90 or so: the magnitude is that of probability 2**-90, far beyond the last strip of the tables.
    def source(count: int) -> bytes:
        return b"\xff" * (count - 1) + b"\x7f" if count == 8 else bytes(count)

    far = candidate(Prefix(2**32 - 1, 32), Prefix(0, 52), Prefix(0, 32), Fraction(1000), source)
    assert far is not None
    assert far > 6000
    word = np.array([0], dtype=np.uint64), np.array([(2**32 - 1) << 32], dtype=np.uint64)
    assert exact._candidates(*word, Fraction(1000), source).tolist() == [far]
    monkeypatch.setattr(exact, "LIMIT", 6000)
    with pytest.raises(OverflowError, match="nothing was released"):
        exact._candidates(*word, Fraction(1000), source)


@pytest.mark.parametrize("size", [0, 1, 5, exact.BLOCK, 3 * exact.BLOCK + 1])
def test_as_many_as_asked_and_the_same_from_the_same_bytes(size):
    values = rounded_normal(size, TRAINING, source=random_bytes(5))
    assert values.shape == (size,)
    assert values.dtype == np.int64
    assert np.array_equal(values, rounded_normal(size, TRAINING, source=random_bytes(5)))
    assert len(set(values.tolist())) == size
    if size:
        assert not np.array_equal(values, rounded_normal(size, TRAINING, source=random_bytes(6)))


@pytest.mark.parametrize("scale", [0, -1, 2**48 + 1])
def test_scale_out_of_range_is_refused(scale):
    with pytest.raises(ValueError, match="0 < scale <= 2\\*\\*48"):
        rounded_normal(3, scale)


def test_seed_is_refused_and_missing_bytes_are_noticed():
    with pytest.raises(TypeError, match="takes no seed"):
        rounded_normal(3, 1, source=5)
    with pytest.raises(RuntimeError, match="random bytes, found 3"):
        rounded_normal(3, 1, source=lambda count: b"abc")
    with pytest.raises(RuntimeError, match="Expected 8 random bytes"):
        Prefix(0, 1).extend(lambda count: b"")
