from __future__ import annotations

import platform
import subprocess
import sys

import pytest
import torch

import zetadp.base.device
from zetadp.base.device import keep_freed_memory, pick_device

# Blocks of 8 MB, freed and taken again: how often did the system have to map a page?
CHURN = """
import resource, sys
import numpy as np
from zetadp.base.device import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def churn():
    blocks = [np.ones(1 << 20) for _ in range(8)]
for _ in range(3):
    churn()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    churn()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")
def test_freed_memory_is_used_again_without_the_system():
    def faults(kind: str) -> int:
        found = subprocess.run([sys.executable, "-c", CHURN, kind], capture_output=True, text=True, check=True)
        return int(found.stdout)

    assert faults("keep") < faults("default") / 5


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_elsewhere_nothing_happens(system, monkeypatch):
    monkeypatch.setattr(zetadp.base.device.sys, "platform", system)
    assert not keep_freed_memory()


def test_a_c_library_without_the_call_is_left_alone(monkeypatch):
    monkeypatch.setattr(zetadp.base.device.sys, "platform", "linux")
    monkeypatch.setattr(zetadp.base.device.ctypes, "CDLL", lambda _: object())
    assert not keep_freed_memory()


def test_a_chosen_device_computes_in_float32():
    cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul
    named = hasattr(cudnn, "conv")
    if named:
        cudnn.conv.fp32_precision = products.fp32_precision = "tf32"
    else:
        cudnn.allow_tf32 = products.allow_tf32 = True
    pick_device("cpu")
    if named:
        assert cudnn.conv.fp32_precision == products.fp32_precision == "ieee"
    else:
        assert not cudnn.allow_tf32
        assert not products.allow_tf32
