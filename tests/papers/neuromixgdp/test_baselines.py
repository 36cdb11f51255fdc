"""The rivals of mixed rows: nobody contributes more than the noise hides, and what they teach is what was put in."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from papers.neuromixgdp.embedding import MeanEmbedding
from papers.neuromixgdp.moments import ClassMoments, nearest_mean

CLASSES, COMPONENTS = 3, 6
RANDOM = np.random.default_rng(0)
AXES = torch.linalg.qr(torch.randn(COMPONENTS, 2, generator=torch.Generator().manual_seed(0)))[0]
EMBEDDING = MeanEmbedding.draw(CLASSES, COMPONENTS, 50, 0.5, RANDOM)
RIVALS = {
    "means": ClassMoments(CLASSES),
    "moments": ClassMoments(CLASSES, AXES),
    "stretched": ClassMoments(CLASSES, 5 * AXES),
    "merf": EMBEDDING,
}


def people(number: int, seed: int = 0, long: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (number,), generator=random)
    centres = 0.5 * torch.eye(CLASSES, COMPONENTS)
    return long * (centres[labels] + 0.1 * torch.randn(number, COMPONENTS, generator=random)), labels


@pytest.mark.parametrize("rival", RIVALS.values(), ids=RIVALS)
@pytest.mark.parametrize("long", [0.0, 0.3, 1.0, 50.0])
def test_nobody_contributes_more_than_norm_one(rival, long):
    norms = rival.contributions(people(500, long=long)[0]).norm(dim=1)
    assert float(norms.max()) <= 1 + 1e-6
    assert float(rival.contributions(AXES.T).norm(dim=1).min()) > 1 - 1e-5, "the budget is used"


@pytest.mark.parametrize("rival", RIVALS.values(), ids=RIVALS)
def test_noise_and_one_person_are_what_mu_says(rival):
    """Every number has noise 1 / mu; without one person the sums differ by that person's contribution."""
    x, labels = people(200)
    exact = rival.released(x, labels, math.inf, np.random.default_rng(1))
    noisy = rival.released(x, labels, 0.25, np.random.default_rng(1)) - exact
    assert float(noisy.std()) == pytest.approx(4, rel=5 / math.sqrt(2 * noisy.numel()))
    assert len(torch.unique(noisy)) == noisy.numel()
    without = rival.released(x[1:], labels[1:], math.inf, np.random.default_rng(1))
    moved = (exact - without).norm(dim=1)
    assert torch.count_nonzero(moved > 1e-6) == 1, "a person is in the sums of one class alone"
    torch.testing.assert_close(moved[labels[0]], rival.contributions(x[:1]).norm().double(), rtol=1e-4, atol=1e-6)


def test_moments_without_noise_are_those_of_the_data():
    x, labels = people(3000)
    moments = RIVALS["moments"]
    sums = moments.released(x, labels, math.inf, RANDOM)
    for number in range(CLASSES):
        own = x[labels == number].double()
        torch.testing.assert_close(moments.means(sums)[number], own.mean(dim=0), rtol=1e-4, atol=1e-5)
        seen = own @ AXES.double()
        torch.testing.assert_close(
            moments.covariances(sums)[number], torch.cov(seen.T, correction=0), rtol=1e-3, atol=1e-5
        )
    made = moments.samples(sums, 4000, np.random.default_rng(2))
    of_first = made.features.real[made.labels[:, 0] == 1].double()
    assert float((of_first.mean(dim=0) - moments.means(sums)[0]).abs().max()) < 0.01
    torch.testing.assert_close(
        torch.cov((of_first @ AXES.double()).T), moments.covariances(sums)[0], rtol=0.15, atol=1e-3
    )


def test_noise_makes_no_covariance_that_none_can_have():
    moments = RIVALS["moments"]
    sums = moments.released(*people(50), 0.05, np.random.default_rng(3))
    assert float(torch.linalg.eigvalsh(moments.covariances(sums)).min()) > -1e-9
    assert torch.isfinite(moments.samples(sums, 5, RANDOM).features.real).all()


def test_the_nearest_mean_wins():
    means = torch.tensor([[1.0, 0.0], [0.0, 0.5]])
    weight, bias = nearest_mean(means)
    x = torch.rand(100, 2)
    nearest = torch.cdist(x, means).argmin(dim=1)
    assert ((x @ weight.T + bias).argmax(dim=1) == nearest).all()


def test_the_generator_learns_the_classes_from_the_embedding_alone():
    sums = EMBEDDING.released(*people(6000), 5.0, np.random.default_rng(4))
    made = EMBEDDING.generated(sums, 50, steps=100, rate=1e-3, seed=0)
    means = torch.stack([made.features.real[made.labels[:, number] == 1].mean(dim=0) for number in range(CLASSES)])
    x, labels = people(300, seed=9)
    weight, bias = nearest_mean(means)
    assert float(((x @ weight.T + bias).argmax(dim=1) == labels).float().mean()) > 0.9
    again = EMBEDDING.generated(sums, 50, steps=100, rate=1e-3, seed=0)
    assert torch.equal(made.features, again.features)
