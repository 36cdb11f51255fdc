"""Images are rebuilt where nothing protects, noise is that of epsilon, and found images meet the right true ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from zetadp.audit import rebuilding
from zetadp.audit.inversion import Found, Search
from zetadp.audit.rebuilding import Message, frame, guessed, rebuild, sheet
from zetadp.audit.spread import spread
from zetadp.nn.models import NetworkSettings
from zetadp.privacy import gaussian

SIDE = 16
WHOLE = NetworkSettings(widths=(8, 16), convolutions=1, head="hidden", hidden=32, groups=4)


@pytest.fixture(autouse=True)
def few_public_patients(monkeypatch):
    monkeypatch.setattr(rebuilding, "PUBLIC", 4)


@pytest.mark.parametrize("objective", ["cosine", "euclidean"])
def test_without_noise_one_image_is_rebuilt_and_better_than_guessed(objective):
    message = Message("whole", WHOLE, SIDE, objective=objective)
    (row,), (without,) = rebuild(message, Search(steps=8)).rows(), guessed(message).rows()
    assert row["ssim"] > 0.9 > without["ssim"]
    assert row["nmse"] < without["nmse"] / 10


def seen(monkeypatch, message):
    """Return the message that an attack is given."""
    given = []

    def invert(observed, of, shape, *_, **__):
        given.append(observed)
        return Found(torch.ones(shape, dtype=torch.float64), 0.0)

    monkeypatch.setattr(rebuilding, "invert", invert)
    rebuild(message, Search(steps=1))
    return given[0]


def test_the_noise_on_the_mean_is_what_epsilon_asks_for_the_sum(monkeypatch):
    plain = Message("whole", WHOLE, SIDE, clip=0.5, patients=2)
    noised = Message("whole", WHOLE, SIDE, clip=0.5, patients=2, epsilon=8.0)
    clean = seen(monkeypatch, plain)
    assert float(clean.norm()) <= 0.5
    noise = (seen(monkeypatch, noised) - clean).numpy()
    expected = 0.5 / 2 / gaussian.mu(8.0, 1e-3)
    assert noise.std() == pytest.approx(expected, rel=5 / math.sqrt(2 * len(noise)))


def test_found_images_of_one_sequence_are_matched_and_others_are_not():
    random = np.random.default_rng(0)
    true = random.standard_normal((4, SIDE, SIDE))
    sequences = np.array([0, 0, 1, 1])
    found = rebuilding._matched(true[[1, 0, 2, 3]], true, sequences)
    np.testing.assert_allclose(found, true, atol=1e-8)
    elsewhere = rebuilding._matched(true[[2, 3, 0, 1]], true, sequences)
    assert np.square(elsewhere - true).sum() > 0.5 * np.square(true).sum()


def test_images_of_a_patient_take_turns_in_sequences_and_then_in_slices():
    sequences, slices = Message("whole", WHOLE, images=6, number=1).places
    assert sequences.tolist() == [1, 2, 3, 0, 1, 2]
    assert slices.tolist() == [0, 0, 0, 0, 1, 1]


def test_the_table_has_one_line_a_kind_and_the_bound_beside_it():
    kinds = [Message("whole", WHOLE, SIDE, epsilon=epsilon) for epsilon in (math.inf, 8.0)]
    messages = [kinds[0], Message("whole", WHOLE, SIDE, number=1), kinds[1]]
    found = [rebuilding.Rebuilt(each, guessed(each).true, guessed(each).found) for each in messages]
    scores = frame([guessed(kinds[0]), *found])
    assert len(scores) == 4
    laid = sheet(scores, Search(steps=3), 1e-3)
    assert [row[3:5:3] for row in laid.rows] == [("–",), ("∞",), ("8",)]
    assert [row[6] for row in laid.rows] == ["–", "100.0 %", "78.9 %"]
    assert [row[7] for row in laid.rows] == ["1", "2", "1"]


def test_processes_change_neither_results_nor_their_order():
    jobs = [3, 1, 2]
    assert spread(math.factorial, jobs, 1, str) == spread(math.factorial, jobs, 2, str) == [6, 1, 2]
