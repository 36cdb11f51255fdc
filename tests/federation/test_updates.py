from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zetadp.federation.flower.protocol import WrongUpdateError, decode, encode


def vector(dimension: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(dimension, generator=torch.Generator().manual_seed(seed))


@given(dimension=st.integers(1, 1000), seed=st.integers(0, 99))
def test_an_update_travels_bit_for_bit_in_four_bytes_a_part(dimension, seed):
    sent = vector(dimension, seed)
    sent[0] = -0.0
    content = encode(sent)
    assert len(content) == 4 * dimension
    assert torch.equal(decode(content, dimension).view(torch.int32), sent.view(torch.int32))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(bad):
    content = bytearray(encode(vector(300)))
    content[:4] = np.array([bad], "<f4").tobytes()
    with pytest.raises(WrongUpdateError, match="that are not"):
        decode(bytes(content), 300)
