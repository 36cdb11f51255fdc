"""The attack on whole batches finds an image without noise, and the table and the page hold what was found."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest
import torch

from papers.directions import invert_batches
from papers.directions.compare_utility import clipped_sums, first_weights
from papers.directions.invert_batches import Run

ROOT = Path(__file__).parents[3]


def one() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return torch.rand(1, 256, generator=generator) * 2 - 0.4, torch.tensor([3])


def test_without_noise_one_image_is_found_to_a_part_of_its_start():
    true, labels = one()
    start = torch.randn(true.shape, generator=torch.Generator().manual_seed(5))
    message = clipped_sums(first_weights(0), true, labels, torch.tensor([math.inf]))
    found = invert_batches.searched(first_weights(0), message, labels, start, torch.tensor([-0.5, 2.0]), 400)[0]
    assert (found - true).square().mean() < 0.1 * (start - true).square().mean()
    assert found.min() >= -0.5
    assert found.max() <= 2.0


@pytest.mark.parametrize("mechanism", ["clipped", "by_layer"])
def test_a_message_without_noise_is_the_mean_of_clipped_gradients(mechanism):
    true, labels = one()
    run = Run("mnist", "iga", 1, mechanism, 0, 0)
    plain = Run("mnist", "iga", 1, "none", 0, 0).message(first_weights(0), true, labels)
    parts = [256 * 50, 50 * 15, 15 * 10]
    wanted = [part / max(1.0, float(part.norm())) for part in plain.split(parts)]
    expected = torch.cat(wanted) if mechanism == "by_layer" else plain / max(1.0, float(plain.norm()))
    torch.testing.assert_close(run.message(first_weights(0), true, labels), expected)


def test_images_are_matched_within_their_class_only():
    true = torch.eye(4, 256)
    moved = true[[1, 0, 3, 2]]
    classes = torch.tensor([0, 0, 1, 1])
    others = torch.stack([true + 1, true + 2])
    shown = [invert_batches.scores(true, x, true, x, classes, others) for x in (moved, true[[2, 3, 0, 1]])]
    assert shown[0]["matched"] == 0 < shown[0]["mse"]
    assert shown[1]["matched"] > 0
    assert shown[0]["others"] == pytest.approx(2.5)  # errors of 1 and 4
    assert shown[0]["others_std"] == pytest.approx(1.5)


def test_other_batches_have_the_same_classes_and_other_images():
    images = torch.arange(40.0)[:, None].expand(-1, 256)
    labels, drawn = torch.arange(40) % 3, torch.tensor([4, 0, 7, 1])
    others = invert_batches.other_batches(images, labels, drawn, 0)[..., 0].long()
    assert others.shape == (invert_batches.OTHERS, 4)
    assert (labels[others] == labels[drawn]).all()
    assert not torch.isin(others, drawn).any()
    assert all(len(batch.unique()) == len(batch) for batch in others)


def test_a_setting_that_leaks_more_has_the_smaller_error_in_an_ordered_pair():
    rows = pd.DataFrame({"mse": [1.0, 2.0], "capacity": [9.0, 3.0]})
    first, second = rows.itertuples()
    assert invert_batches.ordered([(first, second), (second, first)], "capacity") == 2
    assert invert_batches.ordered([(first, second._replace(capacity=10.0))], "capacity") == 0


def test_the_page_counts_pairs_within_one_mechanism_too():
    kept = pd.read_csv(ROOT / "papers/directions/results/judged.csv", comment="#").sum(numeric_only=True).astype(int)
    page = " ".join((ROOT / "papers/directions/README.md").read_text().split())
    for name in ("directions", "gaussians"):
        assert f"{kept[f'capacity_orders_{name}']} of {kept[name]}" in page
    assert f"orders {kept['capacity_orders']} of {kept['pairs']} pairs, and ε {kept['epsilon_orders']}" in page
