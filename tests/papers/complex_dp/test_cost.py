"""What is timed in Ziller et al.'s cost tables is the same step, with and without privacy."""

from __future__ import annotations

import copy

import pandas as pd
import pytest
import torch

from papers.complex_dp import measure_cost
from papers.complex_dp.measure_cost import KINDS, PRINTED, SmallNetwork, layers, steps

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small_images(monkeypatch):
    monkeypatch.setattr(measure_cost, "SIDE", 8)


@pytest.mark.parametrize("kind", KINDS)
def test_both_steps_are_equal_without_clipping_and_noise(kind, monkeypatch):
    monkeypatch.setattr(measure_cost, "NOISE", 0.0)
    monkeypatch.setattr(measure_cost, "CLIP", 1e6)
    models = [SmallNetwork(KINDS[kind])]
    models.append(copy.deepcopy(models[0]))
    before = [p.detach().clone() for p in models[0].parameters()]
    for number, model in enumerate(models):
        torch.manual_seed(1)  # the same images
        list(steps(kind, model, CPU).values())[number]()
    pairs = zip(*(model.parameters() for model in models), before, strict=True)
    for plain, private, start in pairs:
        moved = torch.linalg.vector_norm(plain - start)
        assert moved > 0
        assert torch.linalg.vector_norm(plain - private) < 1e-3 * moved


def test_complex_layers_agree_with_pytorch_s_own():
    calls = layers(CPU)
    for name in ("linear", "convolution"):
        stacked, native = calls[f"{name}, complex"](), calls[f"{name}, complex64"]()
        torch.testing.assert_close(stacked, torch.cat((native.real, native.imag), dim=1), rtol=1e-3, atol=1e-3)


def test_every_printed_time_has_a_measured_one():
    timed = {*layers(CPU), *(name for kind in KINDS for name in steps(kind, SmallNetwork(KINDS[kind]), CPU))}
    assert {*pd.read_csv(PRINTED, comment="#")["what"]} == {name for name in timed if "complex64" not in name}
