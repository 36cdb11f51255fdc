from __future__ import annotations

import pytest
import torch

from zetadp.base.precision import set_tf32, tf32_in_convolutions
from zetadp.mri.dataset import pick_device


@pytest.fixture(autouse=True)
def _restored():
    yield
    set_tf32(convolutions=False)


def products_may_round() -> bool:
    if hasattr(torch.backends.cudnn, "conv"):
        return torch.backends.cuda.matmul.fp32_precision == "tf32"
    return torch.backends.cuda.matmul.allow_tf32


@pytest.mark.parametrize("convolutions", [True, False])
def test_convolutions_round_where_that_was_asked_for_and_products_never(convolutions):
    set_tf32(convolutions=convolutions)
    assert tf32_in_convolutions() == convolutions
    assert not products_may_round()


def test_a_chosen_device_computes_in_float32():
    set_tf32(convolutions=True)
    pick_device("cpu")
    assert not tf32_in_convolutions()
