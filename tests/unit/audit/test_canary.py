from __future__ import annotations

import numpy as np
import pytest
import torch
from contributing import clipped_sums

from zetadp.audit.one_round import CANARY, CLASSES, SILENT, Audited, Stub
from zetadp.core.records import items_of
from zetadp.privacy.ledger import Ledger


def contributions(stub, clip: float) -> np.ndarray:
    """Return what the code for patients makes of each record, shape (record, dimension)."""
    images = stub.records.inputs.unflatten(0, (-1, CLASSES))
    labels = stub.records.targets.view(-1, CLASSES)
    result = clipped_sums(
        stub.model, stub.layout, images, labels, torch.arange(len(images)), count=len(images), bound=clip, chunk=8
    )
    return result.sums.double().numpy()


@pytest.mark.parametrize("clip", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("direction", ["general", "imaginary"])
def test_the_canary_reaches_the_clip_in_a_known_direction_and_the_others_are_zero(clip, direction):
    stub = Stub.of(clip=clip, direction=direction)
    found = contributions(stub, clip)
    assert np.linalg.norm(stub.direction) == pytest.approx(1)
    np.testing.assert_allclose(found[CANARY], clip * stub.direction, atol=1e-5 * clip)
    np.testing.assert_array_equal(found[SILENT], 0)


def test_directions_lie_where_they_should_in_the_complex_plane():
    parts = {}
    for direction in ("general", "imaginary"):
        complex_parts = Stub.of(clip=1.0, direction=direction).direction.reshape(-1, 2)
        parts[direction] = np.linalg.norm(complex_parts, axis=0)
    assert parts["imaginary"][0] == 0
    assert parts["general"].min() > 0.5


@pytest.mark.parametrize("direction", ["general", "imaginary"])
def test_at_saturated_weights_the_canary_contributes_nothing_and_afterwards_what_it_did(direction):
    stub = Stub.of(clip=1.0, direction=direction)
    with stub.saturated():
        np.testing.assert_array_equal(contributions(stub, 1.0)[CANARY], 0)
    np.testing.assert_allclose(contributions(stub, 1.0)[CANARY], stub.direction, atol=1e-5)


@pytest.mark.parametrize("noise", ["seeded", "os"])
def test_nodes_with_and_without_the_canary_differ_in_one_record_alone(tmp_path, noise):
    stub = Stub.of(clip=2.0)
    audited = Audited(noise_multiplier=1.5, clip=2.0, probability=0.5, population=4, noise=noise)
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        there, away = (stub.node(ledger, 3, audited, present=present, seed=0) for present in (True, False))
    assert there.units == items_of([[CANARY], [SILENT], [SILENT], [SILENT]], CLASSES)
    assert away.units == items_of([[SILENT], [SILENT], [SILENT], [SILENT]], CLASSES)
    for node in (there, away):
        assert node.mechanism.repeatable == (noise == "seeded")
        assert node.mechanism.draw(0).event.sampling_probability == 0.5
        assert (node.mechanism.event.population, node.mechanism.event.expected) == (4, 2)
        assert (node.mechanism.event.noise_multiplier, node.mechanism.event.clip) == (1.5, 2.0)
