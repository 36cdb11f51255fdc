from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zetadp.core.plan import UPDATES
from zetadp.federation.flower.protocol import WrongUpdateError, decode, encode, size_of


def vector(dimension: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(dimension, generator=torch.Generator().manual_seed(seed))


@given(dimension=st.integers(1, 1000), seed=st.integers(0, 99))
def test_float32_travels_bit_for_bit_in_four_bytes_a_part(dimension, seed):
    sent = vector(dimension, seed)
    sent[0] = -0.0
    content = encode(sent)
    assert len(content) == 4 * dimension
    assert torch.equal(decode(content, dimension).view(torch.int32), sent.view(torch.int32))


@pytest.mark.parametrize(("form", "error"), [("float16", 2**-11), ("int8", 1 / 254)])
@given(dimension=st.integers(1, 1000), scale=st.sampled_from([1e-3, 1.0, 1e3]))
def test_rounding_is_within_half_a_step_and_takes_less_room(form, error, dimension, scale):
    sent = scale * vector(dimension, 3)
    content = encode(sent, form)
    assert len(content) == size_of(dimension, form)
    arrived = decode(content, dimension, form)
    largest = torch.stack([part.abs().max() for part in sent.split(256)]).repeat_interleave(256)[:dimension]
    reference = sent.abs() + 2**-14 if form == "float16" else largest
    assert ((arrived - sent).abs() <= 1.01 * error * reference + 1e-30).all()


@pytest.mark.parametrize("form", UPDATES)
def test_rounding_again_changes_nothing_so_a_replay_is_the_same_message(form):
    content = encode(vector(700), form)
    assert encode(vector(700), form) == content
    assert encode(decode(content, 700, form), form) == content


def test_sizes_are_those_of_the_theory():
    dimension = 2 * 93_412
    assert [size_of(dimension, form) for form in UPDATES] == [4 * dimension, 2 * dimension, dimension + 4 * 730]


def test_numbers_beyond_half_precision_saturate_and_stay_finite():
    assert decode(encode(torch.tensor([1e30, -1e30]), "float16"), 2, "float16").tolist() == [65504, -65504]


@pytest.mark.parametrize("form", UPDATES)
@pytest.mark.parametrize("change", [-1, 1, 100])
def test_another_length_is_refused(form, change):
    content = encode(vector(300), form)
    wrong = content[:change] if change < 0 else content + bytes(change)
    with pytest.raises(WrongUpdateError, match=f"expected {len(content)} bytes .* found {len(wrong)}"):
        decode(wrong, 300, form)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("form", ["float32", "float16", "int8"])
def test_what_is_not_finite_is_refused(form, bad):
    content = bytearray(encode(vector(300), form))
    value = np.array([bad], "<f2" if form == "float16" else "<f4").tobytes()
    content[: len(value)] = value
    with pytest.raises(WrongUpdateError, match="that are not"):
        decode(bytes(content), 300, form)


def test_a_block_of_zeros_stays_zero():
    assert not decode(encode(torch.zeros(300), "int8"), 300, "int8").any()
