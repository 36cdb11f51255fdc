"""Inversion works where nothing protects, noise is that of epsilon, and found images meet the right true ones."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from contributing import contributors

from zetadp.accounting import gaussian
from zetadp.audit import inversion
from zetadp.audit.inversion import (
    Contributions,
    Message,
    Rebuilt,
    fit_whitening_losses,
    frame,
    rebuild,
    sheet,
    whitened_kspace,
)
from zetadp.base.tensors import Layout
from zetadp.mechanism.clipping import clipped_sums
from zetadp.mechanism.contributions import Gradient
from zetadp.mri.kspace import to_kspace, whiten
from zetadp.mri.similarity import nmse
from zetadp.nn.models import NetworkSettings, build
from zetadp.report.attackfigure import rebuilt_figure

SIDE, CLASSES = 16, 4
WHOLE = NetworkSettings(widths=(8, 16), convolutions=1, head="hidden", hidden=32, groups=4)


def head(random: np.random.Generator) -> np.ndarray:
    """Return a slice of an ellipse with structures of their own, and a little noise."""
    y, x = np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
    image = ((x / 0.7) ** 2 + (y / 0.9) ** 2 < 1).astype(float)
    for _ in range(3):
        middle, size = random.uniform(-0.5, 0.5, 2), random.uniform(0.15, 0.4)
        image[(x - middle[0]) ** 2 + (y - middle[1]) ** 2 < size**2] = random.uniform(0.3, 1.7)
    return image + 0.02 * random.standard_normal(image.shape)


@pytest.fixture
def network():
    return build(WHOLE, CLASSES, SIDE, np.random.default_rng(0))


def test_the_attacker_prepares_images_as_the_pipeline_does():
    random = np.random.default_rng(2)
    images = np.stack([head(random) for _ in range(3)])
    expected = whiten(to_kspace(images.astype(np.float32)))
    found = whitened_kspace(torch.from_numpy(images)).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_contributions_are_those_that_a_node_clips_and_sums(network):
    """The attacker's model of a message is checked against the shipped one: two patients of two images, clipped."""
    random = np.random.default_rng(3)
    images = np.stack([[head(random) for _ in range(2)] for _ in range(2)])
    labels, bound = torch.tensor([[0, 1], [2, 3]]), 0.5
    kspace = torch.from_numpy(whiten(to_kspace(images.astype(np.float32)))).unsqueeze(2)
    drawn = contributors(kspace, labels, torch.zeros(2, dtype=torch.int64), 1)
    sent = clipped_sums(Gradient(network, Layout.of(network)), drawn, bound=bound, chunk=4).sums[0] / 2
    found = Contributions(network, labels, whitened_kspace, clip=bound)(torch.from_numpy(images)).detach()
    assert float((found - sent).norm() / sent.norm()) < 1e-3


def test_what_whitening_takes_away_is_all_that_is_fitted():
    random = np.random.default_rng(8)
    image, other = head(random), head(random)
    # Scales of the parts that are even and odd about the centre, and the pixel in the centre.
    mirrored = np.roll(image[::-1, ::-1], (1, 1), (0, 1))
    changed = 3.0 * (image + mirrored) / 2 + 0.5 * (image - mirrored) / 2
    changed[SIDE // 2, SIDE // 2] += 2
    before, after = (whitened_kspace(torch.from_numpy(each[None])) for each in (image, changed))
    assert float((before - after).norm() / before.norm()) < 2e-3  # the ridge of whitening feels the scales a little
    np.testing.assert_allclose(fit_whitening_losses(changed, image), image, atol=1e-9)
    assert nmse(image, fit_whitening_losses(other, image)) > 0.02


# Messages of simulated patients


@pytest.fixture(autouse=True)
def few_public_patients(monkeypatch):
    monkeypatch.setattr(inversion, "PUBLIC", 4)


def test_without_noise_each_search_rebuilds_an_image_in_its_own_way_and_better_than_a_guess():
    found = []
    for objective in inversion.ATTACKS:
        message = Message("whole", WHOLE, SIDE, objective=objective)
        rebuilt = rebuild(replace(message, steps=8))
        (row,), (without,) = rebuilt.rows(), rebuild(replace(message, objective=None)).rows()
        assert row["ssim"] > 0.9 > without["ssim"]
        assert row["nmse"] < without["nmse"] / 10
        found.append(rebuilt.images)
    assert not np.array_equal(*found), "two searches by their names, and one search for the same thing"


def seen(monkeypatch, message):
    """Return the message that an attack is given."""
    given = []

    def invert(observed, of, shape, *_, **__):
        given.append(observed)
        return torch.ones(shape, dtype=torch.float64)

    monkeypatch.setattr(inversion, "invert", invert)
    rebuild(message)
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
    found = inversion._match(true[[1, 0, 2, 3]], true, sequences)
    np.testing.assert_allclose(found, true, atol=1e-8)
    elsewhere = inversion._match(true[[2, 3, 0, 1]], true, sequences)
    assert np.square(elsewhere - true).sum() > 0.5 * np.square(true).sum()


def test_images_of_a_patient_take_turns_in_sequences_and_then_in_slices():
    sequences, slices = Message("whole", WHOLE, images=6, number=1).positions
    assert sequences.tolist() == [1, 2, 3, 0, 1, 2]
    assert slices.tolist() == [0, 0, 0, 0, 1, 1]


def sheet_of(*messages: Message, unseen: bool = True):
    """Return the table of messages, whose images are found as well as by a guess, and of a guess itself."""
    guesses = [rebuild(replace(each, objective=None)) for each in messages]
    found = [replace(guess, message=replace(each, steps=7)) for guess, each in zip(guesses, messages, strict=True)]
    return sheet(frame([*(guesses[:1] if unseen else []), *found]))


def test_the_table_has_one_line_a_kind_and_the_bound_beside_it():
    plain, noised = (Message("whole", WHOLE, SIDE, epsilon=epsilon) for epsilon in (math.inf, 8.0))
    laid = sheet_of(plain, Message("whole", WHOLE, SIDE, number=1), noised)
    assert [(row[3], *row[6:]) for row in laid.rows] == [("–", "–", "1"), ("∞", "100.0 %", "2"), ("8", "78.9 %", "1")]
    assert "also for the row without a message" in laid.notes[0]
    other = sheet_of(Message("whole", WHOLE, SIDE, epsilon=8.0, delta=1e-5), unseen=False)
    assert other.rows[0][6] == f"{100 * (1 - gaussian.beta(1 / 10, gaussian.mu(8.0, 1e-5))):.1f} %"
    notes = "".join(other.notes)
    assert ("at δ = 1e-05" in notes, "7 steps of L-BFGS" in notes, "without a message" in notes) == (True, True, False)


def test_images_of_many_kinds_are_drawn_large_enough_to_recognise():
    images = np.random.default_rng(0).random((1, SIDE, SIDE))
    kinds = [(f"kind {number}", [Rebuilt(Message("net", WHOLE, SIDE), images, images)]) for number in range(20)]
    figure = rebuilt_figure(kinds, "title")
    figure.draw_without_rendering()
    heights = [panel.get_position().height * figure.get_figheight() for panel in figure.axes]
    assert min(heights) > 0.8  # inches
