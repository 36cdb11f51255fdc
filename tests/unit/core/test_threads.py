from __future__ import annotations

import threading

import pytest
import torch

from zetadp.core.round import side_by_side


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_as_many_are_served_at_once_as_pytorch_has_threads():
    together = threading.Barrier(3)
    together_wait = [together.wait] * 6
    assert len(side_by_side(lambda wait: wait(timeout=30), together_wait)) == 6


def test_one_thread_starts_none():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        own = threading.get_ident()
        assert side_by_side(lambda _: threading.get_ident(), range(4)) == [own] * 4
    finally:
        torch.set_num_threads(before)
