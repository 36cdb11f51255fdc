from __future__ import annotations

import logging

import pytest
import torch

from zetadp.privacy import captured as module
from zetadp.privacy.captured import captured_or_plain

GPU = torch.device("cuda")


def test_without_a_gpu_the_computation_is_taken_as_it_is_and_not_run():
    def compute():
        raise AssertionError

    assert captured_or_plain(compute, torch.device("cpu")) is compute


def test_where_capture_fails_one_line_says_so_and_the_computation_is_taken_as_it_is(monkeypatch, caplog):
    def fails(compute, device):
        msg = "operation not permitted when stream is capturing\nCUDA kernel errors might be reported later"
        raise RuntimeError(msg)

    monkeypatch.setattr(module, "captured", fails)

    def compute():
        pass

    with caplog.at_level(logging.WARNING):
        assert captured_or_plain(compute, GPU) is compute
    (line,) = caplog.messages
    assert "not permitted" in line
    assert "\n" not in line


def test_too_little_memory_is_told_to_whoever_chooses_the_size(monkeypatch):
    def fails(compute, device):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(module, "captured", fails)
    with pytest.raises(torch.OutOfMemoryError):
        captured_or_plain(lambda: None, GPU)
